"""The first lines of a comparison: what hadar gains over plain Slurm, and what that assumes.

Beside the strongest plain Slurm of the same jobs (`slurm`, with its words for how users write), run
by run. Several seeds, loads or workloads give a range, one run an interval.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from math import log

from hadar_slurm.lab.study.compare import Record
from hadar_slurm.lab.study.experiment import SPEEDS
from hadar_slurm.lab.study.gains.intervals import PERCENT, Interval
from hadar_slurm.lab.study.gains.losers import LONGER, LONGER_S, UserChange, losers_of
from hadar_slurm.lab.study.gains.pairs import Gain, gains_of, plain_rows
from hadar_slurm.lab.study.summary import HOUR_S, ComparableRuns, is_of

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
_LABELS = ("trace", "load", "seed", "policy", "movable", "adoption")
_SIZES = {
    "": "all sizes known",
    "sizes limit": "of sizes only time limits known",
    "sizes learned": "sizes learned from the jobs that end",
    "sizes prior": "of sizes known what would be of the first of all jobs",
}


def verdict(found: Sequence[ComparableRuns]) -> tuple[str, ...]:
    """Return the sentences for people who decide; () without hadar and a recorded history.

    The first is the gain of each kind of hadar, unless no plain Slurm is near what was recorded.
    """
    entries = [entry for group in found for entry in group.done]
    happened, may_judge = _happened(found)
    gains = gains_of(found)
    if not may_judge:
        return tuple(happened)
    if not gains:
        is_there = any(is_of(entry.policy, "hadar") for entry in entries)
        return (*happened,) or ((_ABSENT,) if is_there else ())
    return (
        _first(gains),
        *happened,
        *_details(gains),
        *_certainty(gains),
        _assumed(gains, happened),
    )


def gains_tree(found: Sequence[ComparableRuns]) -> list[Record]:
    """Return the gain of each run over the strongest plain Slurm beside it, 0.12 for 12 % less.

    `is_near` is false where no plain Slurm is near what was recorded, so that `verdict` states no
    gain; `interval` is [least, largest] gain, null where there are too few jobs; `users` is null
    where jobs have none.
    """
    _, may_judge = _happened(found)
    return [
        {
            **{name: pair.ours.get(name) for name in _LABELS},
            "beside": pair.theirs["policy"],
            "is_near": may_judge,
            "gain": 1.0 - pair.ratio,
            "interval": (near := pair.interval) and [1.0 - near.high, 1.0 - near.low],
            "users": _users_tree(*losers_of(pair)),
        }
        for gain in gains_of(found)
        for pair in gain.pairs
    ]


def _users_tree(number: int, losers: Sequence[UserChange]) -> Record | None:
    if not number:
        return None
    return {
        "number": number,
        "lose": len(losers),
        "share": len(losers) / number,
        "worst": losers[0].tree if losers else None,
    }


def _happened(found: Sequence[ComparableRuns]) -> tuple[list[str], bool]:
    """Return what was recorded beside the nearest plain Slurm, and whether a gain may be stated."""
    said, may_judge = [], True
    for group in found:
        means = [(_recorded(entry.records), entry.policy) for entry in plain_rows(group)]
        known = [(mean, policy) for mean, policy in means if mean]
        if not known:
            continue
        nearest, policy = min(known, key=lambda pair: abs(log(_ratio(pair[0]))))
        error = _ratio(nearest) - 1.0
        text = (
            f"{group.labels['trace']}: what happened is a mean completion time of "
            f"{nearest['mean_jct_s'] / HOUR_S:.2f} h ({nearest['jobs']:,.0f} jobs); the nearest "
            f"plain Slurm ({policy.partition(' ')[0]}) has "
            f"{nearest['simulated_jct_s'] / HOUR_S:.2f} h, "
            f"{_per_cent(abs(error))} {'more' if error > 0 else 'less'}."
        )
        said.append(text + _CANNOT * (abs(error) > FAR))
        may_judge &= abs(error) <= FAR
    return list(dict.fromkeys(said)), may_judge


def _recorded(records: Sequence[Record]) -> Record:
    """Return what was recorded of enough jobs, the mean over the seeds; {} where nothing was."""
    known = [record["recorded"] for record in records if "recorded" in record]
    known = [each for each in known if each["jobs"] >= LEAST_JOBS]
    names = ("jobs", "mean_jct_s", "simulated_jct_s")
    return {name: statistics.fmean(each[name] for each in known) for name in names} if known else {}


def _ratio(recorded: Record) -> float:
    return max(float(recorded["simulated_jct_s"]), 1.0) / max(float(recorded["mean_jct_s"]), 1.0)


def _first(gains: Sequence[Gain]) -> str:
    """Return the sentence with the gain of each kind of hadar."""
    parts, before = list[str](), ("", "", "")
    for gain in gains:
        name, verb = gain.policy.partition(" ")[0], "shorten" if gain.ratio <= 1 else "lengthen"
        runs = f" in {len(gain.pairs)} runs" if len(gain.pairs) > 1 else ""
        opponents = _names(pair.theirs for pair in gain.pairs)
        opponents += "" if gain.adoption is None else ", each job on the GPU types that it held"
        who = f" {name} would {verb} {'it' if parts else 'the mean completion time'}"
        # What is as in the part before is not said again.
        parts.append(
            f"with {_conditions(gain)},{who if (name, verb) != before[:2] else ''} by "
            f"{_per_cent(abs(1 - gain.ratio))}"
            + (f" ({_between(gain.interval)}{runs})" if gain.interval else "")
            + f" beside the strongest plain Slurm ({opponents})" * (opponents != before[2])
            + _how_many_lose(gain)
        )
        before = name, verb, opponents
    text = "; ".join(parts)
    return f"{text[:1].upper()}{text[1:]}."


def _conditions(gain: Gain) -> str:
    moves = {None: "every job movable", 0.0: "no job movable", 100.0: "every job movable"}
    share = moves.get(gain.movable) or f"{gain.movable:g} % of the jobs movable"
    speeds = [f"throughputs as with --speeds {name}" for name in [_speeds(gain)] if name]
    parts = [_SIZES[_sizes(gain)], *speeds, share]
    if gain.adoption is not None:
        parts.append(f"{gain.adoption:g} % of the users taking part")
    return f"{', '.join(parts[:-1])} and {parts[-1]}"


def _how_many_lose(gain: Gain) -> str:
    """Return the share of the users who lose, of all runs together; "" where jobs have none."""
    found = [losers_of(pair) for pair in gain.pairs]
    number, lose = sum(users for users, _ in found), sum(len(losers) for _, losers in found)
    if not number:
        return ""
    runs = f" of {len(found)} runs" if len(found) > 1 else ""
    return f", and the jobs of {lose or 'none'} of {number} users{runs} would take longer"


def _between(interval: Interval) -> str:
    """Return a range of ratios as changes."""
    low, high = 1.0 - interval.high, 1.0 - interval.low
    if low >= 0 or high <= 0:
        least, most = sorted((abs(low), abs(high)))
        return f"between {100 * least:.0f} and {_per_cent(most)}"
    return f"between {_per_cent(-low)} longer and {_per_cent(high)} shorter"


def _count(number: float, one: str) -> str:
    return (
        f"{number:,.3g} {one}{'' if number == 1 else 's'}"
        if number < 100
        else f"{number:,.0f} {one}s"
    )


def _per_cent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _names(records: Iterable[Record]) -> str:
    names = Counter(str(record["policy"]).partition(" ")[0] for record in records)
    return ", ".join(f"{name} in {n}" if len(names) > 1 else name for name, n in names.items())


def _details(gains: Sequence[Gain]) -> Iterator[str]:
    """Yield what is worse than before under each kind of hadar."""
    for gain in gains:
        if text := f"{_users(gain)}{_killed(gain)}":
            yield f"{f'With {_conditions(gain)}:' if len(gains) > 1 else ''}{text}".strip()


def _users(gain: Gain) -> str:
    """Return how the user fares who loses most, and the one whose jobs are slowed down most."""
    found = [worst for pair in gain.pairs for worst in losers_of(pair)[1][:1]]
    text = ""
    if found:
        worst = max(found, key=lambda each: each.ratio)
        text += (
            f" {worst.user} loses most ({_count(worst.jobs, 'job')} of "
            f"{_count(worst.gpus, 'GPU')}): {worst.mean_jct_s / HOUR_S:.2f} h instead of "
            f"{worst.mean_jct_before_s / HOUR_S:.2f} h on the mean ({worst.why})."
        )
    known = [p for p in gain.pairs if p.ours.get("max_user_slowdown") is not None]
    if known:
        ours, theirs = (
            statistics.fmean(float(pair[side]["max_user_slowdown"]) for pair in known)
            for side in (0, 1)
        )
        text += (
            f" The largest mean slow-down of a user's jobs, over their time alone, is {ours:.1f}, "
            f"under plain Slurm {theirs:.1f}."
        )
    return text


def _killed(gain: Gain) -> str:
    pairs = gain.pairs
    ours, theirs = (sum(int(pair[side].get("killed") or 0) for pair in pairs) for side in (0, 1))
    if not (ours or theirs):
        return ""
    end = f"Time limits end {_count(ours, 'job')}, under plain Slurm {theirs:,}"
    text = f" {end}; these count as done at their limits."
    known = [pair.whole for pair in pairs if "killed_jobs" in pair.ours and "jcts_s" in pair.ours]
    known = [(number, ratio) for number, ratio in known if number]
    if not known:
        return text
    number, ratio = sum(n for n, _ in known), statistics.geometric_mean([r for _, r in known])
    return text + (
        f" The {number:,} that they end under neither take {_per_cent(abs(1 - ratio))} "
        f"{'less' if ratio <= 1 else 'more'} time on the mean."
    )


def _certainty(gains: Sequence[Gain]) -> Iterator[str]:
    """Yield what taking longer is, what intervals of one run are, and that there is none."""
    if any(map(_how_many_lose, gains)):
        yield _LONGER
    single = [gain for gain in gains if len(gain.pairs) == 1]
    if any(gain.interval for gain in single):
        yield _ONE_RUN
    if any(gain.interval is None for gain in single):
        yield _NO_INTERVAL


def _assumed(gains: Sequence[Gain], happened: Sequence[str]) -> str:
    """Return what the first sentence does not say, and how a site's first day is asked for."""
    speeds, parts = [_speeds(gain) for gain in gains], list[str]()
    if not all(speeds):
        parts.append("throughputs are known" + " where no source is named" * any(speeds))
    if not any(gain.adoption for gain in gains):
        parts.append("all users take part")
    text = f"Assumed: {', and '.join(parts)}." if parts else ""
    text += " hadard places all jobs: in mode steer the gain is some points less (docs/compare.md)."
    text += "" if happened else _UNCHECKED
    if any(_sizes(gain) == "" and gain.movable in (None, 100.0) for gain in gains):
        text += (
            " All sizes known and every job movable is the best case: --sizes learned --movable 0 "
            "is the first day of a site."
        )
    return text


def _speeds(gain: Gain) -> str:
    """Return the source of throughputs; "" where they are known."""
    return next((part for part in _known(gain) if part in SPEEDS), "")


def _sizes(gain: Gain) -> str:
    return next((part for part in _known(gain) if part in _SIZES), "")


def _known(gain: Gain) -> list[str]:
    """Return the words in brackets behind a policy."""
    return gain.policy.partition(" (")[2].rstrip(")").split(", ")
