"""The sections of docs/slurm-fidelity.md on hadar's gains and on histories, from their records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean
from textwrap import wrap
from typing import Any

from slurm_fidelity.gains import MOST_POINTS, SEEDS
from slurm_fidelity.steered import LATE, POLL_S, ROUND_S

GAINS, HISTORIES = "## What hadar gains, steered", "## As a site's history"
# Both come before it.
_NEXT = "## How\n"
_HOUR_S = 3600.0

_OF_GAINS = """\
The same lists are played on the real slurmctld with hadard in mode `steer` as well, as on a site's
first day: no job can be moved, and of sizes hadard knows time limits only. The simulator plays
them with the same knowledge, in the same compressed seconds, with rounds of {round_s:g} s: *under
steer*, where simulated Slurm starts the jobs within the limits that policy `hadar` sets, and
*alone*, where policy `hadar` places all jobs, as in `hadar compare`. *Gain* is by how much the mean
completion time is shorter than under plain Slurm, in real plays and in simulated ones, in brackets
from the least to the largest of a plain and a steered play; *off* is the second over the first, in
points. Losses come first; times are real seconds.
"""
_NOTES = """\
* Jobs are submitted by `hadar-sbatch` without GPU types, also where the users of plain Slurm write
  `[a|b]` or leave slow types out. hadard has a table of throughputs in which each job is a workload
  of its own, and polls every {poll_s:g} s. *Late* is by how much a job was
  submitted late at most, in real seconds.
* *Under steer* the jobs of an account exchange places, as hadard has it. Of the jobs that Slurm
  could start at once it starts {late:.0%} before hadard sees them, on any GPUs, also of several
  types: that share is from journals of earlier plays, in which a poll takes minutes of the list.
  Other lags are those of plain Slurm's simulations. All are drawn {seeds} times. Simulated Slurm
  looks at its queue once in a second then, not with two schedulers at looks of their own.
* *Alone* the jobs of all users exchange places, and hadard sees each before it starts, so `hadar
  compare` may promise more than mode `steer` gives.
"""
_OF_HISTORIES = """\
The first real play of each list, written as `sacct` prints it, is given to `hadar compare`, with
its usual plain Slurms ({usual}) and, where other
words describe the list's Slurm and users, with these. The nearest is compared with what was
recorded; mean completion times in hours. Where it is off by more than 15 %, the page of the
comparison says that no gain can be stated. A plain Slurm may be near by chance, where the one that
describes the list's is not.
"""


def gains_section(tree: Mapping[str, Any]) -> str:
    """Return the section of a record of gains."""
    lists = tree["lists"]
    near = sum(abs(each["off"]) <= MOST_POINTS for each in lists)
    lines = [
        _OF_GAINS.format(round_s=ROUND_S),
        "| list | jobs | plays | mean JCT: plain | steered | simulated: plain | under steer | "
        "gain | under steer | off | alone | off | late, s | load |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for each in lists:
        cells = [
            each["list"], str(each["jobs"]), f"{len(each['plain_s'])} + {len(each['steered_s'])}",
            *(_several(each[key]) for key in ("plain_s", "steered_s")),
            *(_range(each[f"simulated_{key}"]) for key in ("plain_s", "steered_s")),
            f"{each['real']:.1%}{_between(each, '')}",
            f"{each['simulated']:.1%}{_between(each, 'simulated_')}", f"{each['off']:+.1f}",
            f"{each['alone']:.1%}", f"{100 * (each['alone'] - each['real']):+.1f}",
            f"{each['late_s']:.1f}", f"{each['load']:.0f}",
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    signed = mean(each["off"] for each in lists)
    text = (
        f"Under steer the mean absolute difference is {tree['mean_off']:.1f} points (asked for: "
        f"{MOST_POINTS:g}), with its sign {signed:+.1f}; {near} of {len(lists)} lists are within "
        f"{MOST_POINTS:g}. Alone it is {tree['mean_alone_off']:.1f}."
    )
    lines += [
        "",
        *wrap(text, 100),
        "",
        *_scatter(lists),
        "",
        _NOTES.format(poll_s=POLL_S, late=LATE, seeds=len(SEEDS)),
    ]
    return "\n".join(lines)


def _single(each: Mapping[str, Any], kind: str) -> list[float]:
    """Return the gains of each steered play over each plain one, in percent, sorted."""
    plain, steered = each[f"{kind}plain_s"], each[f"{kind}steered_s"]
    return sorted(100.0 * (1.0 - s / p) for p in plain for s in steered)


def _between(each: Mapping[str, Any], kind: str) -> str:
    gains = _single(each, kind)
    return f" ({gains[0]:.0f} to {gains[-1]:.0f})" if len(gains) > 1 else ""


def _scatter(lists: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return lines on how much the gains of single real plays differ."""
    real = {each["list"]: _single(each, "") for each in lists if len(_single(each, "")) > 1}
    if not real:
        return []
    widths = {name: gains[-1] - gains[0] for name, gains in real.items()}
    widest = max(widths, key=lambda name: widths[name])
    far = [each for each in lists if abs(each["off"]) > MOST_POINTS]
    within = [
        f"`{each['list']}`" for each in far if each["list"] in real
        and real[each["list"]][0] <= 100 * each["simulated"] <= real[each["list"]][-1]
    ]  # fmt: skip
    beyond = [f"`{each['list']}`" for each in far if f"`{each['list']}`" not in within]
    text = (
        "Real plays of one list have gains that differ by "
        f"{mean(widths.values()):.1f} points in the mean and by {widths[widest]:.1f} at most "
        f"(`{widest}`). Of the lists that are further off than {MOST_POINTS:g} points the "
        f"simulated gain is between those of real plays on {_either(within)}, and beyond them on "
        f"{_either(beyond)}."
    )
    return wrap(text, 100)


def _either(names: Sequence[str]) -> str:
    return " and ".join(names) or "none"


def histories_section(trees: Sequence[Mapping[str, Any]], usual: Sequence[str]) -> str:
    """Return the section of a record of histories."""
    names = ", ".join(f"`{name}`" for name in usual)
    lines = [
        _OF_HISTORIES.format(usual=names),
        "| list | recorded | nearest of its own | | off | says | as described | | off |",
        "|---|--:|---|--:|--:|---|---|--:|--:|",
    ]
    for tree in trees:
        near, own = tree["usual"], tree["described"]
        cells = [
            tree["list"], _hours(tree["recorded_s"]), f"`{near['policy']}`",
            _hours(near["mean_jct_s"]), f"{near['off']:+.0%}",
            "a gain" if near["may_judge"] else "that it cannot judge",
            *(
                (f"`{own['policy']}`", _hours(own["mean_jct_s"]), f"{own['off']:+.0%}")
                if own
                else ("-", "-", "-")
            ),
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def with_section(page: str, heading: str, text: str) -> str:
    """Return the page with a section in place of the one of that heading, or before the last ones.

    Raises ValueError where the page has no place for it.
    """
    section = f"{heading}\n\n{text}\n"
    begin = page.find(f"{heading}\n")
    if begin < 0:
        begin = end = page.index(_NEXT)
    else:
        end = page.index("\n## ", begin) + 1
    return page[:begin] + section + page[end:]


def _several(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.1f}" for value in values)


def _range(values: Sequence[float]) -> str:
    return f"{mean(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def _hours(seconds: float) -> str:
    return f"{seconds / _HOUR_S:.2f}"
