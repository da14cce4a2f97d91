"""The first lines of a comparison: what hadar gains over plain Slurm, and what that assumes.

Beside the strongest plain Slurm of the same jobs (`slurm`, with its words for how users write), run
by run. Several seeds, loads or workloads give a range, one run an interval.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hadar_slurm.lab.study.compare import Record
from hadar_slurm.lab.study.experiment import LEARNED, LIMIT, ORACLE
from hadar_slurm.lab.study.gains.intervals import PERCENT
from hadar_slurm.lab.study.gains.losers import LONGER, LONGER_S, Losers
from hadar_slurm.lab.study.gains.near import Check
from hadar_slurm.lab.study.gains.pairs import Gain, Kind, gains_of, is_of, plain_rows
from hadar_slurm.lab.study.gains.words import between, counted, opponents, per_cent
from hadar_slurm.lab.study.summary import HOUR_S, ComparableRuns

_ABSENT = (
    "No plain Slurm is among the policies, so that nothing is said of a gain: add slurm and "
    "slurm:list:open to --policy."
)
_CANNOT = (
    " That is too far to state a gain: Slurm was set up otherwise than assumed, users chose their "
    "types otherwise, or jobs waited for what is not in the history (other jobs, limits, nodes "
    "down). docs/policies.md has the words that describe a site's Slurm."
)
_LONGER = (
    f"A user's jobs take longer where they take more than {100 * (LONGER - 1):.0f} % and "
    f"{LONGER_S / 60:.0f} minutes longer on the mean, or time limits end more of them."
)
_ONE_RUN = (
    f"The interval is made to have the gain in {PERCENT} % of cases with other users and days like "
    "these (docs/compare.md); the runs are not repeated, and a single run moves further with other "
    "jobs (--leave-out 10 --seed 0,1,2,3)."
)
_UNCHECKED = (
    " Nothing recorded of these jobs at this load shows how near the simulated Slurm is to yours."
)
_NO_INTERVAL = (
    "It is one run of few jobs, in which single ones decide: differences of a tenth may be chance."
)
_LABELS = ("trace", "load", "seed", "policy", "speeds", "sizes", "movable", "adoption")
_SIZES = {
    ORACLE: "all sizes known",
    LIMIT: "of sizes only time limits known",
    LEARNED: "sizes learned from the jobs that end",
    "prior": "of sizes known what would be of the first of all jobs",
}


class Judgement(NamedTuple):
    """What a comparison says of hadar."""

    gains: tuple[Gain, ...]
    # What was recorded beside the nearest plain Slurm, a sentence for each workload.
    happened: tuple[str, ...]
    # Whether plain Slurm is near what was recorded, or nothing was.
    is_near: bool
    # Whether hadar ran, with an opponent or not.
    has_hadar: bool


def judged(found: Sequence[ComparableRuns]) -> Judgement:
    """Return what the runs say of hadar beside plain Slurm."""
    happened, is_near = _happened(found)
    has_hadar = any(is_of(entry, "hadar") for group in found for entry in group.done)
    return Judgement(tuple(gains_of(found)), happened, is_near, has_hadar)


def verdict(found: Judgement) -> tuple[str, ...]:
    """Return the sentences for people who decide; () without hadar and a recorded history.

    The first is the gain of each kind of hadar, unless no plain Slurm is near what was recorded.
    """
    if not found.is_near:
        return found.happened
    if not found.gains:
        return found.happened or ((_ABSENT,) if found.has_hadar else ())
    return (
        _first(found.gains),
        *found.happened,
        *_details(found.gains),
        *_certainty(found.gains),
        _assumed(found.gains, found.happened),
    )


def gains_tree(found: Judgement) -> list[Record]:
    """Return the gain of each run over the strongest plain Slurm beside it, 0.12 for 12 % less.

    `is_near` is false where no plain Slurm is near what was recorded, so that `verdict` states no
    gain; `interval` is [least, largest] gain, null where there are too few jobs; `users` is null
    where jobs have none.
    """
    return [
        {
            **{name: pair.ours.get(name) for name in _LABELS},
            "opponent": pair.theirs["policy"],
            "is_near": found.is_near,
            "gain": 1.0 - pair.ratio,
            "interval": (near := pair.interval) and [1.0 - near.high, 1.0 - near.low],
            "users": users_tree(pair.losers),
        }
        for gain in found.gains
        for pair in gain.pairs
    ]


def users_tree(losers: Losers) -> Record | None:
    """Return how many users lose, and the one who loses most; None where jobs have no users."""
    if not losers.users:
        return None
    return {
        "number": losers.users,
        "lose": len(losers.who),
        "share": len(losers.who) / losers.users,
        "worst": losers.who[0].tree if losers.who else None,
    }


def _happened(found: Sequence[ComparableRuns]) -> tuple[tuple[str, ...], bool]:
    """Return what was recorded beside the nearest plain Slurm, and whether all are near."""
    said, is_near = [], True
    for group in found:
        known = [
            (check, str(entry.records[0]["bare_policy"]))
            for entry in plain_rows(group)
            if (check := _check(entry.records))
        ]
        if not known:
            continue
        check, policy = min(known, key=lambda pair: pair[0].distance)
        text = (
            f"{group.labels['trace']}: what happened is a mean completion time of "
            f"{check.measured_s / HOUR_S:.2f} h ({check.jobs:,.0f} jobs); the nearest "
            f"plain Slurm ({policy}) has {check.simulated_s / HOUR_S:.2f} h, "
            f"{per_cent(abs(check.error))} {'more' if check.error > 0 else 'less'}."
        )
        said.append(text + _CANNOT * (not check.is_near))
        is_near &= check.is_near
    return tuple(dict.fromkeys(said)), is_near


def _check(records: Sequence[Record]) -> Check | None:
    """Return what was recorded of enough jobs, the mean over the seeds; None where nothing was."""
    names = ("jobs", "mean_jct_s", "simulated_jct_s")
    recorded = [record["recorded"] for record in records if "recorded" in record]
    known = [check for r in recorded if (check := Check(*(r[n] for n in names))).has_enough]
    return Check(*map(statistics.fmean, zip(*known, strict=True))) if known else None


def _first(gains: Sequence[Gain]) -> str:
    """Return the sentence with the gain of each kind of hadar."""
    parts, before = list[str](), ("", "", "")
    for gain in gains:
        name, verb = gain.kind.policy, "shorten" if gain.ratio <= 1 else "lengthen"
        runs = f" in {len(gain.pairs)} runs" if len(gain.pairs) > 1 else ""
        beside = opponents(str(pair.theirs["bare_policy"]) for pair in gain.pairs)
        who = f" {name} would {verb} {'it' if parts else 'the mean completion time'}"
        # What is as in the part before is not said again.
        parts.append(
            f"with {conditions(gain.kind)},{who if (name, verb) != before[:2] else ''} by "
            f"{per_cent(abs(1 - gain.ratio))}"
            + (f" ({between(gain.interval)}{runs})" if gain.interval else "")
            + f" {beside}" * (beside != before[2])
            + how_many_lose([pair.losers for pair in gain.pairs])
        )
        before = name, verb, beside
    text = "; ".join(parts)
    return f"{text[:1].upper()}{text[1:]}."


def conditions(kind: Kind) -> str:
    """Return what a policy knows, what can move, and who takes part."""
    moves = {None: "every job movable", 0.0: "no job movable", 100.0: "every job movable"}
    share = moves.get(kind.movable) or f"{kind.movable:g} % of the jobs movable"
    has_speeds = kind.speeds == ORACLE
    speeds = [] if has_speeds else [f"throughputs as with --speeds {kind.speeds}"]
    parts = [_SIZES[kind.sizes], *speeds, share]
    if kind.adoption is not None:
        parts.append(f"{kind.adoption:g} % of the users taking part")
    return f"{', '.join(parts[:-1])} and {parts[-1]}"


def how_many_lose(found: Sequence[Losers]) -> str:
    """Return the share of the users who lose, of all runs together; "" where jobs have none."""
    number, lose = sum(each.users for each in found), sum(len(each.who) for each in found)
    if not number:
        return ""
    runs = f" of {len(found)} runs" if len(found) > 1 else ""
    return f", and the jobs of {lose or 'none'} of {number} users{runs} would take longer"


def _details(gains: Sequence[Gain]) -> Iterator[str]:
    """Yield what is worse than before under each kind of hadar."""
    for gain in gains:
        if text := f"{_users(gain)}{_killed(gain)}":
            yield f"{f'With {conditions(gain.kind)}:' if len(gains) > 1 else ''}{text}".strip()


def _users(gain: Gain) -> str:
    """Return how the user fares who loses most, and the one whose jobs are slowed down most."""
    found = [worst for pair in gain.pairs for worst in pair.losers.who[:1]]
    text = ""
    if found:
        worst = max(found, key=lambda each: each.ratio)
        text += (
            f" {worst.user} loses most ({counted(worst.jobs, 'job')} of "
            f"{counted(worst.gpus, 'GPU')}): {worst.mean_jct_s / HOUR_S:.2f} h instead of "
            f"{worst.mean_jct_before_s / HOUR_S:.2f} h on the mean ({worst.why})."
        )
    known = [p for p in gain.pairs if p.ours.get("max_user_slowdown") is not None]
    if known:
        ours, theirs = (
            statistics.fmean(float(run["max_user_slowdown"]) for run in runs)
            for runs in zip(*((pair.ours, pair.theirs) for pair in known), strict=True)
        )
        text += (
            f" The largest mean slow-down of a user's jobs, over their time alone, is {ours:.1f}, "
            f"under plain Slurm {theirs:.1f}."
        )
    return text


def _killed(gain: Gain) -> str:
    pairs = gain.pairs
    ours, theirs = (
        sum(int(run.get("killed") or 0) for run in runs)
        for runs in zip(*((pair.ours, pair.theirs) for pair in pairs), strict=True)
    )
    if not (ours or theirs):
        return ""
    end = f"Time limits end {counted(ours, 'job')}, under plain Slurm {theirs:,}"
    text = f" {end}; these count as done at their limits."
    known = [pair.whole for pair in pairs if "killed_jobs" in pair.ours and "jcts_s" in pair.ours]
    known = [(number, ratio) for number, ratio in known if number]
    if not known:
        return text
    number, ratio = sum(n for n, _ in known), statistics.geometric_mean([r for _, r in known])
    return text + (
        f" The {number:,} that they end under neither take {per_cent(abs(1 - ratio))} "
        f"{'less' if ratio <= 1 else 'more'} time on the mean."
    )


def _certainty(gains: Sequence[Gain]) -> Iterator[str]:
    """Yield what taking longer is, what intervals of one run are, and that there is none."""
    if any(pair.losers.users for gain in gains for pair in gain.pairs):
        yield _LONGER
    single = [gain for gain in gains if len(gain.pairs) == 1]
    if any(gain.interval for gain in single):
        yield _ONE_RUN
    if any(gain.interval is None for gain in single):
        yield _NO_INTERVAL


def _assumed(gains: Sequence[Gain], happened: Sequence[str]) -> str:
    """Return what the first sentence does not say, and how a site's first day is asked for."""
    known, parts = [gain.kind.speeds == ORACLE for gain in gains], list[str]()
    if any(known):
        parts.append("throughputs are known" + " where no source is named" * (not all(known)))
    if not any(gain.kind.adoption for gain in gains):
        parts.append("all users take part")
    text = f"Assumed: {', and '.join(parts)}." if parts else ""
    text += " hadard places all jobs: in mode steer the gain differs by points (docs/compare.md)."
    text += "" if happened else _UNCHECKED
    if any(kind.sizes == ORACLE and kind.movable in (None, 100.0) for kind, _ in gains):
        text += (
            " All sizes known and every job movable is the best case: --sizes learned --movable 0 "
            "is the first day of a site."
        )
    return text
