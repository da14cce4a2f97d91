"""Writes time_to_quality.md from the runs of time_to_quality.py."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

Run = dict[str, Any]

_NAMES = {
    "one": "one node",
    "auto": "five copies, as shipped",
    "averaged": "five copies, averaging",
}
_OPENING = """\
# How much sooner five unequal nodes reach the quality of one

Written by `time_to_quality.py --page`; change [time_to_quality_page.py](time_to_quality_page.py),
not this.

```
python benchmarks/hadare/time_to_quality.py --json benchmarks/hadare/time_to_quality.jsonl --page
```

{machine}

On a real local Slurm under hadard, submitted by `hadar-sbatch`; each run is a line of
[time_to_quality.jsonl](time_to_quality.jsonl). Nodes are processes of one machine, paced by samples
to speeds 1, 1, 0.5, 0.5 and 0.2: a batch takes {period:g} s at speed 1
([shared_task.py](shared_task.py)). All else takes the time that it takes: the exchange of gradients
over TCP (loopback), files, Slurm. ± is the standard deviation over {seeds} seeds; loss is the
cross-entropy on held-out data in nats. The ceiling is 3.2, the sum of the speeds.
"""
_CLOSING = """\
*Time* is from the first step of the first copy to the end of the last copy, so all that copies do
to find each other counts. *With start* begins when the job is submitted: {start} pass until the
first step, with Slurm, hadard and the import of PyTorch by all copies on two cores. *Sooner*
compares times seed by seed.

* Copies that train synchronously share the batch of one node; so steps and learning rate are those
of one node. The network for images has BatchNorm, which normalises each copy's share by itself; its
copies train {factor:g} times one node's steps, to make up for that.
* A batch of language has 8 sequences, and shares are whole ones: 3, 3, 1, 1, and none for the
slowest node, whose GPU stays idle. So the ceiling is 2.67 there.
* The network between the nodes is this machine's loopback, the models are small. Where the exchange
of gradients takes more than 30 % of a step, copies average.
"""


def page(path: Path, *, machine: str, period_s: float, factor: float) -> None:
    """Write the page beside the runs."""
    runs = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    starts = [run["start_s"] for run in runs if run["system"] == "auto"]
    lines = [
        _OPENING.format(machine=machine, period=period_s, seeds=len({run["seed"] for run in runs})),
        *_verdict(runs),
        "",
        *_table(runs),
        "",
        _CLOSING.format(start=_of(starts, "{:.0f} s"), factor=factor),
    ]
    path.with_suffix(".md").write_text("\n".join(lines), encoding="utf-8")


def _verdict(runs: Sequence[Run]) -> list[str]:
    """Return what holds, the worst first."""
    found = []
    for task in sorted({run["task"] for run in runs}):
        better, sooner = _by_seed(runs, task, "auto", "loss"), _sooner(runs, task, "auto", 0)
        noise = stdev(_values(runs, task, "one", "loss"))
        found.append((mean(sooner), task, mean(better), noise))
    words = []
    for times, task, difference, noise in sorted(found):
        is_within = "within" if difference <= noise else "NOT within"
        words.append(
            f"* **{task}: {times:.2f} times sooner**; the held-out loss differs from one node's by "
            f"{difference:+.3f}, {is_within} one node's noise by seed ({noise:.3f})."
        )
    return words


def _table(runs: Sequence[Run]) -> list[str]:
    rows = [
        "| task | | steps | loss | difference by seed | time, s | sooner | with start |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for task in sorted({run["task"] for run in runs}):
        for system, name in _NAMES.items():
            losses = _values(runs, task, system, "loss")
            if not losses:
                continue
            cells = [task, name, f"{_steps(runs, task, system)}", _of(losses, "{:.3f}")]
            is_one = system == "one"
            cells.append("" if is_one else _of(_by_seed(runs, task, system, "loss"), "{:+.3f}"))
            cells.append(_of(_values(runs, task, system, "seconds"), "{:.0f}"))
            cells += [
                "" if is_one else _of(_sooner(runs, task, system, started), "{:.2f}")
                for started in (0, 1)
            ]
            rows.append(f"| {' | '.join(cells)} |")
    return rows


def _of(values: Sequence[float], form: str) -> str:
    text = form.format(mean(values))
    return f"{text} ± {form.format(stdev(values)).lstrip('+')}" if len(values) > 1 else text


def _values(runs: Sequence[Run], task: str, system: str, key: str) -> list[float]:
    return [run[key] for run in _sorted(runs) if run["task"] == task and run["system"] == system]


def _steps(runs: Sequence[Run], task: str, system: str) -> int:
    return int(_values(runs, task, system, "steps")[0])


def _sorted(runs: Sequence[Run]) -> list[Run]:
    return sorted(runs, key=lambda run: run["seed"])


def _pairs(
    runs: Sequence[Run], task: str, system: str, of: Callable[[Run, Run], float]
) -> list[float]:
    """Return what `of` makes of one node and a system, seed by seed."""
    named = {(run["system"], run["seed"]): run for run in runs if run["task"] == task}
    seeds = sorted(seed for name, seed in named if name == system)
    return [of(named["one", seed], named[system, seed]) for seed in seeds if ("one", seed) in named]


def _by_seed(runs: Sequence[Run], task: str, system: str, key: str) -> list[float]:
    return _pairs(runs, task, system, lambda one, other: other[key] - one[key])


def _sooner(runs: Sequence[Run], task: str, system: str, started: int) -> list[float]:
    def ratio(one: Run, other: Run) -> float:
        return (one["seconds"] + started * one["start_s"]) / (  # type: ignore[no-any-return]
            other["seconds"] + started * other["start_s"]
        )

    return _pairs(runs, task, system, ratio)
