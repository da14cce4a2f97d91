"""Write cluster.md and its picture from the runs of cluster.py and what recorded.py makes of them.

    python benchmarks/hadare/cluster_page.py

Both lie beside this file, as `cluster.jsonl` and `recorded.jsonl`.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import matplotlib as mpl

mpl.use("Agg")  # no screen is needed, and none may be there
from cluster import FOUR_STEPS, ONE_STEPS, PERIOD_S, SPEEDS, SYSTEMS
from matplotlib.figure import Figure

HERE = Path(__file__).resolve().parent
DATE, MACHINE = "2026-11-21 and 22", "two cores, no GPU, Debian 12"
PICTURE = "cluster.svg"
NAMES = {
    "one-node": "one job on the best node",
    "one-hadare": "one job, HadarE on five nodes",
    "four-slurm": "four jobs, plain Slurm",
    "four-hadar": "four jobs, Hadar (policy `hadar`)",
    "four-hadare": "four jobs, HadarE",
}
LIMIT = 0.85 * sum(SPEEDS.values()) / max(SPEEDS.values())


def lines_of(name: str) -> list[dict[str, Any]]:
    """Return the records in a file beside this one."""
    text = (HERE / name).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def table(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a row for each system, over its seeds."""
    rows = [
        "| | runs | seconds | beside the first of its group | CRU | off its pace | computing |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    firsts: dict[str, float] = {}
    for system in SYSTEMS:
        found = [run for run in runs if run["system"] == system and not run["is_void"]]
        if not found:
            continue
        seconds = [run["seconds"] for run in found]
        first = firsts.setdefault(system.partition("-")[0], mean(seconds))
        rows.append(
            f"| {NAMES[system]} | {len(found)} | {', '.join(f'{s:.0f}' for s in seconds)} "
            f"| {first / mean(seconds):.2f} x sooner | {mean(run['cru'] for run in found):.3f} "
            f"| {max(run['pace']['off'] for run in found):.2%} "
            f"| {max(run['pace']['computing'] for run in found):.0%} |"
        )
    return rows


def learnt(curves: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what one job had learnt, alone and in copies, in the end and when."""
    by_seed: defaultdict[int, dict[str, Any]] = defaultdict(dict)
    for curve in curves:
        if curve["system"] in ("one-node", "one-hadare"):
            by_seed[curve["seed"]][curve["system"]] = curve["points"]
    rows = [
        "| seed | | loss | accuracy | after | the loss of one node at half its steps after |",
        "|---:|---|---:|---:|---:|---:|",
    ]
    for seed, found in sorted(by_seed.items()):
        if len(found) < 2:
            continue
        half = next(point for point in found["one-node"] if point[1] >= ONE_STEPS / 2)
        for system, points in sorted(found.items(), reverse=True):
            seconds, _, loss, accuracy = points[-1]
            ends = (f"{end_s:.0f} s" for end_s, _, now, _ in points if now <= half[2])
            rows.append(
                f"| {seed} | {NAMES[system]} | {loss:.3f} | {accuracy:.1%} | {seconds:.0f} s "
                f"| {next(ends, 'not reached')} |"
            )
    return rows


def draw(curves: Sequence[Mapping[str, Any]]) -> None:
    """Draw held-out loss by time and by steps of the single jobs."""
    with mpl.rc_context({"svg.hashsalt": "hadare", "svg.fonttype": "none"}):
        figure = Figure(figsize=(9, 3.4), layout="constrained")
        by_time, by_steps = figure.subplots(1, 2, sharey=True)
        colours = {"one-node": "#7f7f7f", "one-hadare": "#d1495b"}
        for curve in curves:
            if (colour := colours.get(curve["system"])) is None:
                continue
            seconds, steps, loss, _ = zip(*curve["points"], strict=True)
            label = NAMES[curve["system"]] if curve["seed"] == 0 else None
            by_time.plot(seconds, loss, color=colour, marker=".", label=label)
            by_steps.plot(steps, loss, color=colour, marker=".")
        by_time.set(xlabel="seconds on the cluster", ylabel="held-out loss (nats)")
        by_steps.set(xlabel="steps of the job")
        by_time.legend(frameon=False)
        for axes in (by_time, by_steps):
            axes.spines[["top", "right"]].set_visible(False)
            axes.set_xlim(left=0)
        figure.savefig(HERE / PICTURE, metadata={"Date": None})


def main() -> None:
    """Write both."""
    runs, curves = lines_of("cluster.jsonl"), lines_of("recorded.jsonl")
    draw(curves)
    same = sum(curve["is_same"] for curve in curves)
    speeds = ", ".join(f"{speed:g}" for speed in SPEEDS.values())
    shown, rows = "\n".join(table(runs)), "\n".join(learnt(curves))
    page = f"""\
# HadarE on a cluster

Written by `cluster_page.py`; change that, not this.

```
python benchmarks/hadare/cluster.py --json benchmarks/hadare/cluster.jsonl
python benchmarks/hadare/recorded.py benchmarks/hadare/cluster.jsonl \\
    --json benchmarks/hadare/recorded.jsonl
```

{DATE}, {MACHINE}: the dockerized cluster, Slurm 26.05, hadard with the rights of an
operator. Five nodes are paced to speeds {speeds} by sleeping: a step of a node of
speed 1 takes {PERIOD_S:g} s, of which it computes the part in the last column. One job
has {ONE_STEPS:,} steps, each of four jobs {FOUR_STEPS:,}: the task `images` of
[tasks.py](tasks.py), momentum SGD. The clock starts when all jobs are there and may be
started, and stops when the last checkpoint can be read: starting Python and PyTorch on
all nodes at once, on two cores, is in it, and so is every consolidation.

{shown}

One job in copies is to end {LIMIT:.2f} times sooner than on the best node (0.85 of what
the speeds allow), and nodes are to be held at least 0.95 of the time (CRU).

## What was learnt

Trained again off the cluster after the recorded slots, {same} of {len(curves)} jobs
came to the model of the cluster to the bit; so the losses between are what they had
learnt.

{rows}

![Held-out loss by time and by steps]({PICTURE})

[README.md](README.md) measures what copies learn at equal steps and at equal time, over
seeds, tasks and optimisers.
"""
    (HERE / "cluster.md").write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
