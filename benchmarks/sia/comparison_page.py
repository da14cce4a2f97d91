"""Writes README.md: what the recorded runs of `side_by_side.py` come to."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

Run = Mapping[str, Any]
Kind = tuple[str, int]

OURS = ("hadar", "srsf", "hlas")
# Rigid jobs with the batch sizes of the workload; then schedulers that change more than GPU types.
RIGID = (*OURS, "gavel", "sia_fix-batch")
TUNING = ("sia_fix",)
ELASTIC = ("sia",)
# hadar is to be better than these.
RIVALS = ("gavel", "sia_fix", "sia_fix-batch")
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


def text(runs: Sequence[Run]) -> str:
    """Return the page."""
    compared = pairs(runs)
    return "\n".join(
        [
            _OPENING,
            _wrapped(_origin(runs)),
            "",
            "## Where hadar loses\n",
            *_losses(compared),
            "",
            "## hadar beside each\n",
            *_verdicts(compared),
            "",
            *_figures(runs),
            _NOTES,
        ]
    )


def pairs(runs: Sequence[Run]) -> list[Pair]:
    """Return each rival beside hadar with rounds of 360 s, and with rounds of its own length."""
    kinds = {_kind(run) for run in runs}
    found = []
    for theirs in sorted(kinds, key=_order):
        if theirs[0] in RIVALS:
            for ours in sorted({("hadar", 360), ("hadar", theirs[1])} & kinds, reverse=True):
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
    names = (*RIGID, *TUNING, *ELASTIC)
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
    rows = [["workload", "figure", "hadar", "h", "beside", "h", "ratio"]]
    for pair in compared:
        for name in pair.lost:
            ours, theirs = pair.by_workload[name]
            cells = [f"{ours:.2f}", _named(pair.theirs), f"{theirs:.2f}", f"{ours / theirs:.2f}"]
            rows.append([name, pair.figure, f"{pair.ours[1]} s", *cells])
    return _table(rows, words=3) if len(rows) > 1 else ["On none of these workloads."]


def _verdicts(compared: Sequence[Pair]) -> list[str]:
    rows = [["figure", "hadar", "beside", "workloads", "better on", "mean h", "theirs", "ratio"]]
    for pair in compared:
        ours, theirs = pair.means
        count = len(pair.by_workload)
        cells = [str(count), str(count - len(pair.lost)), f"{ours:.2f}", f"{theirs:.2f}"]
        names = [pair.figure, f"{pair.ours[1]} s", _named(pair.theirs)]
        rows.append([*names, *cells, f"{ours / theirs:.2f}"])
    return _table(rows, words=3)


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
    problems = ((RIGID, "rigid"), (TUNING, "batch size tuned"), (ELASTIC, "elastic"))
    for names, problem in problems:
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


_OPENING = """\
# Beside Gavel and Sia, in Sia's own simulator

Written by `side_by_side.py`; change [comparison_page.py](comparison_page.py), not this.

The simulator, the workloads and the cluster are those of Sia's artifact (SOSP 2023,
github.com/siasosp23/artifacts at aaf7a0d, directory `sia-simulator`): 160 jobs in 8 hours on two
nodes with 8 A100, three with 8 RTX 2080 Ti and six with 4 T4; gangs of 1 to 16; step times measured
by its authors. Its own program runs, `multi_simulator.py`, with its own options. For our policies
[one_run.py](one_run.py) puts a subclass in the place of its Gavel, and
[translation.py](translation.py) translates.

```
git clone https://github.com/siasosp23/artifacts sia && git -C sia checkout aaf7a0d
python3.11 -m venv sia-venv
sia-venv/bin/pip install -e . -r benchmarks/sia/requirements.txt
nice sia-venv/bin/python benchmarks/sia/side_by_side.py sia
```

What is recorded is not run again; `--write-only` writes this page from it.
"""

_NOTES = """\
## What is compared

* **Rigid.** A job has the GPUs and the batch size of the workload. Gavel and our policies see the
  same: its steps, those done, and its steps/s on each GPU type. Gavel is the artifact's, with its
  default objective (greatest total throughput) and its round of 360 s.
* **`sia_fix`** is the artifact's Sia for fixed numbers of GPUs, with the options in the first line
  of `sia_fix.py`. It gets less than Gavel and ours: no steps, and no step times on a type before
  the job has run there. But *it tunes batch sizes*: that is another problem. `sia_fix-batch` is the
  same with the batch sizes of the workload, fixed by the call with which the simulator fixes them
  for Gavel.
* **Elastic.** `sia`, with the options of `run_experiment.sh`, also chooses numbers of GPUs: another
  problem again, and no claim is made beside it.
* **Empty cells** are runs that have not been made.
* **Metrics** are those of the artifact's `print_run_stats.py`: JCT from submission to end, makespan
  from the first submission to the last end. Every start takes the job's restart time, 25 to 250 s.
* **The simulator** lets GPUs that become free within a round idle until its end, for all
  schedulers. A gang that changes nodes, but neither its type nor its GPUs by node, pays nothing.
* **Steps as shown.** The steps that the simulator shows differ from those that it then trains, by
  up to 10 % for yolov3 and 7 % for cifar10. Nothing corrects them, for Gavel or for ours.
* **Throughputs.** Ours, from the simulator's measured step times, equal those of its Gavel in every
  digit for all 18 kinds of jobs on all three types.
* **Short cuts.** Answers of some functions of the simulator are kept ([one_run.py](one_run.py)).
  With and without this, Gavel and `hadar` have the same figures on saturn-1.
* **Solver.** The integer programs of `sia_fix` and `sia` are solved by HiGHS, to a gap of 0.01 %,
  for at most 60 s: with GLPK, which `sia_fix` asks for without a gap, one round with 50 jobs took
  up to a minute.
"""
