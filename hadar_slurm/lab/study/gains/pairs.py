"""Runs of hadar, each beside the strongest plain Slurm of the same jobs."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from hadar_slurm.lab.study.compare import Record
from hadar_slurm.lab.study.gains.intervals import Interval, ratio_interval
from hadar_slurm.lab.study.gains.losers import Losers, losers_of
from hadar_slurm.lab.study.summary import ComparableRuns, PolicyRecords

# Slurm as sites without hadard have it: users who leave all types open, in two forms, who leave out
# types that are slow for them, and who look where they would end first. The strongest counts.
PLAIN_SLURMS = ("slurm", "slurm:list", "slurm:list:open", "slurm:list:look")


@dataclass(frozen=True)
class Pair:
    """A run of hadar, and the strongest plain Slurm of the same jobs, by mean JCT."""

    ours: Record
    theirs: Record

    @property
    def ratio(self) -> float:
        """Return the mean completion time over that of plain Slurm."""
        return float(self.ours["mean_jct_s"]) / float(self.theirs["mean_jct_s"])

    @cached_property
    def losers(self) -> Losers:
        """Return the users who lose."""
        return losers_of(self.ours, self.theirs)

    @property
    def whole(self) -> tuple[int, float]:
        """Return the number of jobs that time limits end in neither run, and the ratio of these.

        A ratio of 1 where there are none. Raises KeyError where the jobs' times are not known.
        """
        killed = {*self.ours["killed_jobs"], *self.theirs["killed_jobs"]}
        times = zip(self.ours["jcts_s"], self.theirs["jcts_s"], strict=True)
        whole = [pair for number, pair in enumerate(times) if number not in killed]
        ours_s, theirs_s = (sum(pair[side] for pair in whole) for side in (0, 1))
        return len(whole), ours_s / theirs_s if theirs_s > 0 else 1.0

    @cached_property
    def interval(self) -> Interval | None:
        """Return the interval of the ratio; None where jobs are too few, or their times unknown."""
        if "jcts_s" not in self.ours or "jcts_s" not in self.theirs:
            return None
        return ratio_interval(self.ours["jcts_s"], self.theirs["jcts_s"], self.ours["users"])


def paired(ours: Record, opponents: Sequence[Record]) -> Pair | None:
    """Return a run beside the strongest of `opponents`; None without one, or for times of 0."""
    alike = [record for record in opponents if record["mean_jct_s"] > 0]
    if not alike or not ours["mean_jct_s"] > 0:
        return None
    return Pair(ours, min(alike, key=lambda record: float(record["mean_jct_s"])))


class Kind(NamedTuple):
    """A policy with what it knows, what it can move and who takes part."""

    # As rows are named: with all notes.
    row: str
    # Its name alone, and where throughputs and sizes come from.
    policy: str
    speeds: str
    sizes: str
    # Per cent of the jobs; None: all that the workload lets move.
    movable: float | None
    # Per cent of the users whose jobs are the policy's; None: all.
    adoption: float | None

    @classmethod
    def of(cls, record: Record) -> Kind:
        """Return the kind of a run."""
        return cls(
            row=record["policy"],
            policy=record["bare_policy"],
            speeds=record["speeds"],
            sizes=record["sizes"],
            movable=record.get("movable"),
            adoption=record.get("adoption"),
        )


class Gain(NamedTuple):
    """What one kind of hadar gains over plain Slurm."""

    kind: Kind
    pairs: tuple[Pair, ...]

    @property
    def ratio(self) -> float:
        """Return the ratio of the mean completion times, the geometric mean over the runs."""
        return statistics.geometric_mean([pair.ratio for pair in self.pairs])

    @property
    def interval(self) -> Interval | None:
        """Return the range over several runs, else the one run's interval if there is any."""
        ratios = [pair.ratio for pair in self.pairs]
        return self.pairs[0].interval if len(ratios) == 1 else Interval(min(ratios), max(ratios))


def gains_of(found: Sequence[ComparableRuns]) -> list[Gain]:
    """Return the kinds of hadar with a plain Slurm beside them, in the order of the runs."""
    kinds: dict[Kind, list[Pair]] = {}
    for group in found:
        opponents = [record for entry in plain_rows(group) for record in entry.records]
        for ours in (r for e in group.done if is_of(e, "hadar") for r in e.records):
            pairs = kinds.setdefault(Kind.of(ours), [])
            pair = paired(ours, list(_alike(ours, opponents)))
            pairs += [pair] if pair else []
    return [Gain(kind, tuple(pairs)) for kind, pairs in kinds.items() if pairs]


def _alike(ours: Record, opponents: Sequence[Record]) -> Iterator[Record]:
    # A plain Slurm that stops jobs has runs by what can move; others have one for all. Users who do
    # not take part write their jobs as without hadar.
    moves, same = (None, ours.get("movable")), ("seed", "beside")
    for record in opponents:
        is_alike = all(record.get(name) == ours.get(name) for name in same)
        if is_alike and record.get("movable") in moves:
            yield record


def plain_rows(group: ComparableRuns) -> list[PolicyRecords]:
    """Return the rows of plain Slurm alone; under adoption those without adopters."""
    return [
        entry
        for entry in group.done
        if is_plain(entry.records[0]) and not entry.records[0].get("adoption")
    ]


def is_plain(record: Record) -> bool:
    """Return whether a run is plain Slurm's, whatever its words."""
    return _policy(record) == "slurm"


def is_of(entry: PolicyRecords, name: str) -> bool:
    """Return whether a row is one of a policy, whatever its words and what it knows."""
    return _policy(entry.records[0]) == name


def _policy(record: Record) -> str:
    """Return the name of a run's policy without its words."""
    return str(record["bare_policy"]).partition(":")[0]
