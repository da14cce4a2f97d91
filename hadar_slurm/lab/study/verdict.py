"""The first lines of a comparison: what hadar gains over plain Slurm, and what that assumes.

Beside the strongest plain Slurm of the same jobs (`slurm`, with its words for how users write), run
by run, so that several seeds, loads or workloads give a range.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from math import log
from typing import NamedTuple

from hadar_slurm.lab.study.compare import Record
from hadar_slurm.lab.study.experiment import ORACLE, SPEEDS
from hadar_slurm.lab.study.summary import HOUR_S, ComparableRuns

_ABSENT = (
    "No plain Slurm is among the policies, so that nothing is said of a gain: add slurm and "
    "slurm:list:open to --policy."
)
# Relative error of a simulated mean JCT beyond which nothing is said of a gain, and the least
# number of jobs that show it; hadar report's too.
FAR, LEAST_JOBS = 0.15, 10
_CANNOT = (
    " That is too far to state a gain: Slurm was set up otherwise than assumed, users chose their "
    "types otherwise, or jobs waited for what is not in the history (other jobs, limits, nodes "
    "down). docs/policies.md has the words that describe a site's Slurm."
)
_ONE_RUN = "It is one run, in which single jobs decide: differences of a tenth may be chance."


_SIZES = {
    "": "the sizes of all jobs are known",
    "sizes limit": "of sizes only time limits are known",
    "sizes learned": "sizes are learned from the jobs that end",
    "sizes prior": "of sizes is known what would be of the first of all jobs",
}


class _Pair(NamedTuple):
    """A run of hadar, and the strongest plain Slurm of the same jobs, by mean JCT."""

    ours: Record
    theirs: Record


def verdict(found: Sequence[ComparableRuns]) -> tuple[str, ...]:
    """Return the sentences for people who decide; none without hadar and a recorded history."""
    ours = dict.fromkeys(
        entry.policy for group in found for entry in group.done if _is(entry.policy, "hadar")
    )
    if any(entry.records[0].get("adopted") for group in found for entry in group.done):
        return ()
    happened, may_judge = _happened(found)
    said = [text for policy in ours for text in _of(policy, found)] if may_judge else []
    return (*happened, *said) or ((_ABSENT,) if ours else ())


def _happened(found: Sequence[ComparableRuns]) -> tuple[list[str], bool]:
    """Return what was recorded beside the nearest plain Slurm, and whether a gain may be stated."""
    said, may_judge = [], True
    for group in found:
        plain = [(e.policy, r) for e in group.done if _is(e.policy, "slurm") for r in e.records]
        known = [(r["recorded"], name) for name, r in plain if "recorded" in r]
        known = [each for each in known if each[0]["jobs"] >= LEAST_JOBS]
        if not known:
            continue
        nearest, policy = min(known, key=lambda pair: abs(log(_ratio(pair[0]))))
        error = _ratio(nearest) - 1.0
        text = (
            f"{group.labels['trace']}: what happened is a mean completion time of "
            f"{nearest['mean_jct_s'] / HOUR_S:.2f} h ({nearest['jobs']:,} jobs); the nearest plain "
            f"Slurm ({policy.partition(' ')[0]}) has {nearest['simulated_jct_s'] / HOUR_S:.2f} h, "
            f"{abs(error):.0%} {'more' if error > 0 else 'less'}."
        )
        said.append(text + _CANNOT * (abs(error) > FAR))
        may_judge &= abs(error) <= FAR
    return said, may_judge


def _ratio(recorded: Record) -> float:
    return max(float(recorded["simulated_jct_s"]), 1.0) / max(float(recorded["mean_jct_s"]), 1.0)


def _is(policy: str, name: str) -> bool:
    """Return whether a row is one of a policy, whatever its words and what it knows."""
    return policy.partition(" ")[0].partition(":")[0] == name


def _of(policy: str, found: Sequence[ComparableRuns]) -> Iterator[str]:
    groups = [group for group in found if any(entry.policy == policy for entry in group.done)]
    pairs = [pair for group in groups for pair in _pairs(policy, group)]
    if not pairs:
        return
    ratios = [pair.ours["mean_jct_s"] / pair.theirs["mean_jct_s"] for pair in pairs]
    gain = 1.0 - statistics.geometric_mean(ratios)
    runs = f"{len(pairs)} runs" if len(pairs) > 1 else "one run"
    spread = f", {_change(1 - max(ratios))} to {_change(1 - min(ratios))} in {runs}"
    yield (
        f"{policy}: the mean completion time is {abs(gain):.0%} "
        f"{'shorter' if gain >= 0 else 'longer'} than under the strongest plain Slurm "
        f"({_names(pair.theirs for pair in pairs)}){spread if len(pairs) > 1 else ''}."
        f"{_users(pairs)}{_killed(pairs)}"
    )
    if len(pairs) == 1:
        yield _ONE_RUN
    yield _assumed(policy, groups)


def _pairs(policy: str, group: ComparableRuns) -> Iterator[_Pair]:
    opponents = [r for e in group.done if _is(e.policy, "slurm") for r in e.records]
    for ours in (r for e in group.done if e.policy == policy for r in e.records):
        alike = [r for r in opponents if r.get("seed") == ours.get("seed") and r["mean_jct_s"] > 0]
        if alike and ours["mean_jct_s"] > 0:
            yield _Pair(ours, min(alike, key=lambda record: record["mean_jct_s"]))


def _change(gain: float) -> str:
    return f"{abs(gain):.0%} {'shorter' if gain >= 0 else 'longer'}"


def _names(records: Iterable[Record]) -> str:
    names = Counter(str(record["policy"]).partition(" ")[0] for record in records)
    return ", ".join(f"{name} in {n}" if len(names) > 1 else name for name, n in names.items())


def _users(pairs: Sequence[_Pair]) -> str:
    """Return how the user fares for whom jobs are slowed down most."""
    known = [p for p in pairs if p.ours.get("max_user_slowdown") is not None]
    if not known:
        return ""
    ours, theirs = (
        statistics.fmean(float(pair[side]["max_user_slowdown"]) for pair in known)
        for side in (0, 1)
    )
    return f" The worst user's jobs take {ours:.1f} times as long as alone, there {theirs:.1f}."


def _killed(pairs: Sequence[_Pair]) -> str:
    ours, theirs = (sum(int(pair[side].get("killed") or 0) for pair in pairs) for side in (0, 1))
    if not (ours or theirs):
        return ""
    return f" Time limits end {ours:,} jobs, there {theirs:,}, and these count as done."


def _assumed(policy: str, groups: Sequence[ComparableRuns]) -> str:
    """Return what the figure assumes, and how a site's first day is asked for."""
    known = policy.partition(" (")[2].rstrip(")").split(", ")
    sizes = next((part for part in known if part in _SIZES), "")
    speeds = next((part for part in known if part in SPEEDS), ORACLE)
    shares = {group.labels.get("movable") for group in groups}
    moves = "as many jobs as stated may be migrated"
    if len(shares) == 1:
        share = shares.pop()
        moves = "every job may be migrated" if share is None else f"{share:g} % of the jobs may be"
        moves += "" if share is None else " migrated"
    how = "known" if speeds == ORACLE else f"as with --speeds {speeds}"
    text = f"Assumed: {_SIZES[sizes]}, throughputs are {how}, {moves}, and all users take part."
    if not sizes and moves.startswith("every"):
        text += " That is the best case: --sizes learned --movable 0 is the first day of a site."
    return text
