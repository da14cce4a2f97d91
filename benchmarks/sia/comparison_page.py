"""Writes README.md: what the recorded runs of `side_by_side.py` come to."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from statistics import mean
from typing import Any

from page_words import BOUND, NOTES, OPENING

Run = Mapping[str, Any]
Kind = tuple[str, int]

# What the jobs of a scheduler are like: gangs of fixed size with the batch sizes of the workload,
# the same with batch sizes that the jobs tune, or gangs that change their size too.
JOBS = {
    "batch size fixed": ("hadar", "srsf", "hlas", "gavel", "sia_fix-batch"),
    "batch size tuned": ("hadar-tuned", "hadar-tuned-now", "sia_fix"),
    "elastic": ("sia",),
}
# Ours, and what it is to be better than: with the same jobs, and with others.
SAME = (
    ("hadar", ("gavel", "sia_fix-batch")),
    ("hadar-tuned", ("sia_fix",)),
    ("hadar-tuned-now", ("sia_fix",)),
)
OTHER = (("hadar", ("sia_fix",)), ("hadar-tuned", ("gavel",)))
FIGURES = {"mean JCT": "mean_jct_s", "makespan": "makespan_s"}


@dataclass(frozen=True, slots=True)
class Pair:
    """hadar beside another scheduler in one figure, on the workloads that both have run; hours."""

    figure: str
    ours: Kind
    theirs: Kind
    by_workload: Mapping[str, tuple[float, float]]

    @property
    def means(self) -> tuple[float, float]:
        """Return the mean over the workloads of either."""
        pairs = list(self.by_workload.values())
        return mean(ours for ours, _ in pairs), mean(theirs for _, theirs in pairs)

    @property
    def lost(self) -> list[str]:
        """Return the workloads on which hadar is not better."""
        return [name for name, (ours, theirs) in self.by_workload.items() if ours >= theirs]


def text(runs: Sequence[Run], bounds: Sequence[Run] = ()) -> str:
    """Return the page."""
    same, other = pairs(runs, SAME), pairs(runs, OTHER)
    return "\n".join(
        [
            OPENING,
            _wrapped(_origin(runs)),
            "",
            "## Where hadar loses\n",
            "With the same jobs:\n",
            *_losses(same),
            "",
            "With other jobs, batch sizes fixed beside tuned or tuned beside fixed:\n",
            *_losses(other),
            "",
            "## hadar beside each\n",
            "With the same jobs:\n",
            *_verdicts(same),
            "",
            "With other jobs:\n",
            *_verdicts(other),
            "",
            *bounded(runs, bounds),
            *_figures(runs),
            NOTES,
        ]
    )


def pairs(runs: Sequence[Run], asked: Sequence[tuple[str, Sequence[str]]]) -> list[Pair]:
    """Return each rival beside ours with rounds of 360 s, and with rounds of its own length."""
    kinds = {_kind(run) for run in runs}
    found = []
    for name, rivals in asked:
        for theirs in sorted(kinds, key=_order):
            if theirs[0] in rivals:
                for ours in sorted({(name, 360), (name, theirs[1])} & kinds, reverse=True):
                    found += [_pair(runs, figure, ours, theirs) for figure in FIGURES]
    return [pair for pair in found if pair.by_workload]


def _pair(runs: Sequence[Run], figure: str, ours: Kind, theirs: Kind) -> Pair:
    left, right = (_by_workload(runs, kind, FIGURES[figure]) for kind in (ours, theirs))
    shared = {name: (left[name], right[name]) for name in left if name in right}
    return Pair(figure, ours, theirs, shared)


def _by_workload(runs: Sequence[Run], kind: Kind, figure: str) -> dict[str, float]:
    """Return a figure of one scheduler in hours, by workload."""
    found = {run["workload"]: run[figure] / 3600 for run in runs if _kind(run) == kind}
    return {name: found[name] for name in sorted(found, key=_family_and_number)}


def _kind(run: Run) -> Kind:
    return run["scheduler"], run["interval_s"]


def _order(kind: Kind) -> tuple[int, int]:
    names = [name for its in JOBS.values() for name in its]
    return (names.index(kind[0]) if kind[0] in names else len(names), -kind[1])


def _named(kind: Kind) -> str:
    return f"`{kind[0]}`, {kind[1]} s"


def _origin(runs: Sequence[Run]) -> str:
    """Return how many runs there are, from when, and with which versions."""
    dates = sorted({run["date"] for run in runs})
    versions = sorted({", ".join(f"{k} {v}" for k, v in run["versions"].items()) for run in runs})
    days = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    minutes = sum(run["cpu_s"] for run in runs) / 60
    return (
        f"{len(runs)} runs ({minutes:.0f} CPU minutes), {days}; {'; '.join(versions)}. Each run is "
        "a line of [runs.jsonl](runs.jsonl)."
    )


def _losses(compared: Sequence[Pair]) -> list[str]:
    rows = [["workload", "figure", "ours", "h", "beside", "h", "ratio"]]
    for pair in compared:
        for name in pair.lost:
            ours, theirs = pair.by_workload[name]
            cells = [f"{ours:.2f}", _named(pair.theirs), f"{theirs:.2f}", f"{ours / theirs:.2f}"]
            rows.append([name, pair.figure, _named(pair.ours), *cells])
    return _table(rows, words=3) if len(rows) > 1 else ["On none of these workloads."]


def _verdicts(compared: Sequence[Pair]) -> list[str]:
    rows = [["figure", "ours", "beside", "workloads", "better on", "mean h", "theirs", "ratio"]]
    for pair in compared:
        ours, theirs = pair.means
        count = len(pair.by_workload)
        cells = [str(count), str(count - len(pair.lost)), f"{ours:.2f}", f"{theirs:.2f}"]
        names = [pair.figure, _named(pair.ours), _named(pair.theirs)]
        rows.append([*names, *cells, f"{ours / theirs:.2f}"])
    return _table(rows, words=3)


def bounded(runs: Sequence[Run], bounds: Sequence[Run]) -> list[str]:
    """Return the bound on the makespan of jobs with fixed batch sizes beside what there is."""
    if not bounds:
        return []
    names = ("hadar", "sia_fix-batch", "sia_fix")
    found = {name: _by_workload(runs, (name, 360), "makespan_s") for name in names}
    rows = [["workload", "last job", "on", "bound", *(f"`{name}`" for name in names)]]
    for bound in bounds:
        workload, bound_h = bound["workload"], bound["bound_s"] / 3600
        its = [found[name].get(workload) for name in names]
        cells = ["" if value is None else f"{value:.2f}" for value in its]
        rows.append([workload, bound["job"], bound["gpu_type"], f"{bound_h:.2f}", *cells])
    below = sum(
        found["sia_fix"].get(bound["workload"], inf) < bound["bound_s"] / 3600 for bound in bounds
    )
    verdict = (
        f"The makespan of `sia_fix`, whose jobs tune their batch sizes, is below it on {below} of "
        f"{len(bounds)}. "
    )
    if below:
        verdict += "There no scheduler of jobs with fixed batch sizes can be better than it."
    else:
        verdict += "So it does not show that a scheduler of fixed batch sizes could not be better."
    return [
        "## A bound on the makespan with fixed batch sizes\n",
        _wrapped(BOUND),
        "",
        _wrapped(verdict),
        "",
        *_table(rows, words=3),
        "",
    ]


def _figures(runs: Sequence[Run]) -> list[str]:
    """Return the tables with every figure."""
    lines = []
    for title, figure, shown in (
        ("Mean JCT, hours", "mean_jct_s", _hours),
        ("Makespan, hours", "makespan_s", _hours),
        ("p99 of JCT, hours", "p99_jct_s", _hours),
        ("Restarts", "restarts", _whole),
    ):
        lines += [f"## {title}\n", *_by_scheduler(runs, figure, shown), ""]
    return lines


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.2f}"


def _whole(number: float) -> str:
    return f"{number:.0f}"


def _by_scheduler(runs: Sequence[Run], figure: str, shown: Callable[[float], str]) -> list[str]:
    workloads = sorted({run["workload"] for run in runs}, key=_family_and_number)
    rows = [["scheduler, round", "jobs", *workloads, "mean"]]
    for problem, names in JOBS.items():
        kinds = {_kind(run) for run in runs if run["scheduler"] in names}
        for kind in sorted(kinds, key=_order):
            values = {run["workload"]: run[figure] for run in runs if _kind(run) == kind}
            cells = [shown(values[name]) if name in values else "" for name in workloads]
            whole = len(values) == len(workloads)
            average = shown(mean(values.values())) if whole else ""
            rows.append([_named(kind), problem, *cells, average])
    return _table(rows, words=2)


def _family_and_number(workload: str) -> tuple[bool, int]:
    family, number = workload.rsplit("-", 1)
    return family != "saturn", int(number)


def _table(rows: Sequence[Sequence[str]], *, words: int) -> list[str]:
    """Return a table whose first `words` columns are text and whose others are numbers."""
    head, *body = (f"| {' | '.join(row)} |" for row in rows)
    numbers = len(rows[0]) - words
    return [head, f"|{'---|' * words}{'--:|' * numbers}", *body]


def _wrapped(paragraph: str) -> str:
    return textwrap.fill(paragraph, 100, break_long_words=False, break_on_hyphens=False)
