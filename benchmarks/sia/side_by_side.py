"""Our policies beside Gavel and Sia in Sia's own simulator (SOSP'23).

    python benchmarks/sia/side_by_side.py ARTIFACT [--schedulers hadar,gavel] [--workloads saturn-1]
    python benchmarks/sia/side_by_side.py ARTIFACT --bounds
    python benchmarks/sia/side_by_side.py --write-only

ARTIFACT is a checkout of github.com/siasosp23/artifacts. Each run is a line of runs.jsonl; what is
there is not run again. `--bounds` computes bounds.jsonl instead. README.md, beside them, is written
from these lines.
"""

from __future__ import annotations

import argparse
import json
from itertools import product
from pathlib import Path
from typing import Any

from comparison_page import text
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

HERE = Path(__file__).resolve().parent
RUNS, BOUNDS, PAGE = HERE / "runs.jsonl", HERE / "bounds.jsonl", HERE / "README.md"
WORKLOADS = [f"{family}-{number}" for family in ("saturn", "philly") for number in range(1, 5)]
# Scheduler and round in seconds. The artifact runs its Gavel at 360 s and Sia at 60 s.
CELLS = [
    ("hadar", 360),
    ("hadar-tuned", 360),
    ("hadar-tuned-now", 360),
    ("gavel", 360),
    ("sia_fix", 360),
    ("srsf", 360),
    ("hlas", 360),
    ("sia_fix-batch", 360),
    ("hadar", 60),
    ("sia_fix", 60),
    ("sia", 60),
]

Cell = tuple[str, str, int]


def read(path: Path) -> list[dict[str, Any]]:
    """Return the recorded lines."""
    text = path.read_text("utf-8") if path.exists() else ""
    return [json.loads(line) for line in text.splitlines()]


def cell_of(run: dict[str, Any]) -> Cell:
    """Return what identifies a run: workload, scheduler and round."""
    return run["workload"], run["scheduler"], run["interval_s"]


def wanted(workloads: list[str], schedulers: list[str]) -> list[Cell]:
    """Return the runs to make, scheduler by scheduler in the order of `CELLS`."""
    return [
        (workload, scheduler, interval_s)
        for (scheduler, interval_s), workload in product(CELLS, workloads)
        if scheduler in schedulers
    ]


def run_all(artifact: Path, cells: list[Cell], path: Path) -> None:
    """Make the runs that are not recorded yet, and record each as soon as it has ended."""
    from one_run import play  # needs the simulator's libraries

    missing = [cell for cell in cells if cell not in set(map(cell_of, read(path)))]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn()) as bar:
        task = bar.add_task("", total=len(cells), completed=len(cells) - len(missing))
        for cell in missing:
            bar.update(task, description="{}, {}, {} s".format(*cell))
            line = json.dumps(play(artifact, *cell))
            with path.open("a", encoding="utf-8") as runs:
                runs.write(f"{line}\n")
            bar.advance(task)


def find_bounds(artifact: Path, workloads: list[str], path: Path) -> None:
    """Compute the bound of each workload, and record all of them."""
    from bounds import bound  # needs the simulator's libraries

    lines = [json.dumps(bound(artifact, workload)) for workload in workloads]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    """Make the runs, and write the page."""
    words = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    words.add_argument("artifact", type=Path, nargs="?")
    words.add_argument("--workloads", default=",".join(WORKLOADS))
    words.add_argument("--schedulers", default=",".join(dict(CELLS)))
    words.add_argument("--runs", type=Path, default=RUNS, help="where runs are recorded")
    words.add_argument("--page", type=Path, default=PAGE, help="where the page is written")
    words.add_argument("--bounds", action="store_true", help="compute bounds.jsonl, run nothing")
    words.add_argument("--write-only", action="store_true", help="only write README.md")
    options = words.parse_args()
    if not options.write_only:
        if options.artifact is None:
            words.error("give the path to the artifact, or --write-only")
        workloads = options.workloads.split(",")
        if options.bounds:
            find_bounds(options.artifact, workloads, BOUNDS)
        else:
            run_all(
                options.artifact, wanted(workloads, options.schedulers.split(",")), options.runs
            )
    options.page.write_text(text(read(options.runs), read(BOUNDS)), encoding="utf-8")


if __name__ == "__main__":
    main()
