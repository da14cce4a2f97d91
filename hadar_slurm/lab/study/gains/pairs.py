"""Runs of hadar, each beside the strongest plain Slurm of the same jobs."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hadar_slurm.lab.study.compare import Record
from hadar_slurm.lab.study.gains.intervals import Interval, ratio_interval
from hadar_slurm.lab.study.summary import ComparableRuns, PolicyRecords, is_of


class Pair(NamedTuple):
    """A run of hadar, and the strongest plain Slurm of the same jobs, by mean JCT."""

    ours: Record
    theirs: Record

    @property
    def ratio(self) -> float:
        """Return the mean completion time over that of plain Slurm."""
        return float(self.ours["mean_jct_s"]) / float(self.theirs["mean_jct_s"])

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

    @property
    def interval(self) -> Interval | None:
        """Return the interval of the ratio; None where jobs are too few, or their times unknown."""
        if "jcts_s" not in self.ours or "jcts_s" not in self.theirs:
            return None
        return ratio_interval(self.ours["jcts_s"], self.theirs["jcts_s"], self.ours["users"])


class Gain(NamedTuple):
    """What one kind of hadar, a policy with what it knows and can move, gains over plain Slurm."""

    policy: str
    # Per cent of the jobs; None: all that the workload lets move.
    movable: float | None
    # Per cent of the users whose jobs are the policy's; None: all, and plain Slurm chooses types.
    adoption: float | None
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
    kinds: dict[tuple[str, float | None, float | None], list[Pair]] = {}
    for group in found:
        opponents = [record for entry in plain_rows(group) for record in entry.records]
        for ours in (r for e in group.done if is_of(e.policy, "hadar") for r in e.records):
            kind = ours["policy"], ours.get("movable"), ours.get("adoption")
            kinds.setdefault(kind, []).extend(_paired(ours, opponents))
    return [Gain(*kind, tuple(pairs)) for kind, pairs in kinds.items() if pairs]


def _paired(ours: Record, opponents: Sequence[Record]) -> Iterator[Pair]:
    # A plain Slurm that stops jobs has runs by what can move; others have one for all.
    moves = None, ours.get("movable")
    alike = [
        record
        for record in opponents
        if record.get("seed") == ours.get("seed")
        and record.get("movable") in moves
        and record["mean_jct_s"] > 0
    ]
    if alike and ours["mean_jct_s"] > 0:
        yield Pair(ours, min(alike, key=lambda record: record["mean_jct_s"]))


def plain_rows(group: ComparableRuns) -> list[PolicyRecords]:
    """Return the rows of plain Slurm alone; under adoption those without adopters."""
    return [
        entry
        for entry in group.done
        if is_of(entry.policy, "slurm") and not entry.records[0].get("adoption")
    ]
