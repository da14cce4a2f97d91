"""The quality of what HadarE trains: every run of a matrix, replayed in one process.

    python benchmarks/hadare/quality.py                     # all runs that are not in the file yet
    python benchmarks/hadare/quality.py --only rules,outer  # those of some questions
    python benchmarks/hadare/quality.py --write-only        # the page alone, from what is there

Each run is a line of JSON in `--runs`; a run that is there is not repeated. From these lines
`README.md` and its curves are made. Time is reckoned, not spent: a node of speed 1 trains one step
a second, and agreeing at the end of a slot takes none.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import page
import torch
from figures import compared
from replay import replay
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from tasks import OPTIMISERS, SCHEDULES, TASKS, task

from hadar_slurm.handoff import shares
from hadar_slurm.runtime.averaging.consolidation import OptimiserRule, Outer, mean
from hadar_slurm.runtime.ending import Settings

HERE = Path(__file__).resolve().parent
# Steps a second of the nodes, the first `copies` of which a run has.
SPEEDS = (1.0, 1.0, 0.5, 0.5, 0.2, 1.0, 0.5, 0.2)
COPIES = 5
TOTAL_STEPS = 1024
BASE_SLOT_S = 10.0
_POINTS = 8  # of a learning curve
_AVERAGED = 5  # ends of slots
_LINE_EVERY_S = 30.0


@dataclass(frozen=True, slots=True)
class Run:
    """One training; `rate` is a factor of the task's own learning rate."""

    task: str
    optimiser: str
    seed: int
    total_steps: int = TOTAL_STEPS
    copies: int = COPIES
    slot_s: float = 2 * BASE_SLOT_S
    rule: str = OptimiserRule.AVERAGE
    outer: bool = False
    schedule: str = "cosine"
    rate: float = 1.0
    by_copies: bool = False  # the rate follows the number of copies, as by default

    @property
    def speeds(self) -> dict[int, float]:
        """Return the steps a second of each copy."""
        return dict(enumerate(SPEEDS[: self.copies]))


def same_time(steps: int) -> int:
    """Return the steps of the fastest node alone in the time in which all train `steps`."""
    return round(steps * max(SPEEDS[:COPIES]) / sum(SPEEDS[:COPIES]))


# As many steps in a slot as all copies have together.
SINGLE: dict[str, Any] = {"copies": 1, "slot_s": 2 * BASE_SLOT_S * sum(SPEEDS[:COPIES])}
LONGER: dict[str, Any] = {"total_steps": 4 * TOTAL_STEPS}
# How many seeds a question has, and what its runs differ in from HadarE's.
QUESTIONS: Mapping[str, tuple[int, Mapping[str, Mapping[str, Any]]]] = {
    "main": (
        5,
        {
            "HadarE": {},
            "single": SINGLE,
            "single, same time": {**SINGLE, "total_steps": same_time(TOTAL_STEPS)},
        },
    ),
    "budget": (
        5,
        {
            "single, half the steps": {**SINGLE, "total_steps": TOTAL_STEPS // 2},
            "single, steps / copies": {**SINGLE, "total_steps": TOTAL_STEPS // COPIES},
        },
    ),
    "rules": (5, {rule: {"rule": rule} for rule in ("keep", "reset")}),
    "constant": (
        3,
        {
            "HadarE, constant rate": {"schedule": "constant"},
            "single, constant rate": {**SINGLE, "schedule": "constant"},
        },
    ),
    "outer": (3, {"outer momentum": {"outer": True}}),
    "slots": (3, {f"{x}x": {"slot_s": x * BASE_SLOT_S} for x in (1, 4, 8, 16)}),
    "copies": (3, {f"{n} copies": {"copies": n} for n in (2, 8)}),
    "rate": (3, {"HadarE, rate x 2": {"rate": 2.0}, "single, rate x 2": {**SINGLE, "rate": 2.0}}),
    "by copies": (3, {"HadarE, rate by copies": {"by_copies": True}}),
    "longer": (
        3,
        {
            "HadarE, 4 x the steps": LONGER,
            "single, 4 x the steps": SINGLE | LONGER,
            "single, same time, 4 x the steps": SINGLE
            | {"total_steps": same_time(4 * TOTAL_STEPS)},
        },
    ),
}


def matrix(questions: Sequence[str]) -> list[tuple[str, Run]]:
    """Return the runs of some questions with their names, in an order in which each adds most."""
    return [
        (name, replace(Run(of, optimiser, seed), **differs))
        for question in questions
        for seed in range(QUESTIONS[question][0])
        for of in TASKS
        for optimiser in OPTIMISERS
        for name, differs in QUESTIONS[question][1].items()
    ]


def train(run: Run) -> dict[str, Any]:
    """Return what a run came to: losses in nats on held-out data, reckoned times in seconds.

    `curve` has steps, time, loss and accuracy. For a single node, `averaged` are loss and accuracy
    with the mean of the parameters at the last ends of slots.
    """
    begun_s = time.process_time()
    problem = task(run.task)
    model, optimiser = problem.make(run.optimiser, run.seed, run.rate)
    slots = replay(
        model,
        optimiser,
        problem.step,
        total_steps=run.total_steps,
        quotas=[shares(round(run.slot_s * sum(run.speeds.values())), run.speeds)],
        speeds=run.speeds,
        seed=run.seed,
        lr=SCHEDULES[run.schedule](run.total_steps),
        settings=Settings(
            optimiser=OptimiserRule(run.rule),
            outer=Outer() if run.outer else None,
            rate_by_copies=run.by_copies,
        ),
    )
    curve: list[list[float]] = []
    last: deque[dict[str, torch.Tensor]] = deque(maxlen=_AVERAGED)
    took_s = 0.0
    for slot in slots:
        took_s += slot.seconds
        last.append({name: value.clone() for name, value in model.state_dict().items()})
        if slot.steps_done * _POINTS >= (len(curve) + 1) * run.total_steps:
            loss, accuracy = problem.held_out_quality(model)
            curve.append([slot.steps_done, round(took_s, 1), round(loss, 5), round(accuracy, 5)])
    found: dict[str, Any] = {"loss": curve[-1][2], "accuracy": curve[-1][3], "time_s": took_s}
    if run.copies == 1:
        names = last[0]
        model.load_state_dict({name: mean([(1, each[name]) for each in last]) for name in names})
        found["averaged"] = [round(figure, 5) for figure in problem.held_out_quality(model)]
    return {**found, "curve": curve, "cpu_s": round(time.process_time() - begun_s, 2)}


def records(path: Path) -> list[dict[str, Any]]:
    """Return the runs that a file has; a line that was cut off is none."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            found.append(json.loads(line))
        except ValueError:
            print(f"left out of {path}: {line[:40]!r}", file=sys.stderr)
    return found


def make(runs: Sequence[tuple[str, Run]], path: Path) -> None:
    """Train what is not in the file yet, and add a line for each."""
    done = [Run(**record["run"]) for record in records(path)]
    todo = [(name, run) for name, run in runs if run not in done]
    with _progress(len(todo)) as show:
        for number, (name, run) in enumerate(todo):
            show(number, f"{run.task}, {run.optimiser}, seed {run.seed}, {name}")
            line = json.dumps({"name": name, "run": asdict(run), **train(run)})
            with path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")


@contextmanager
def _progress(total: int) -> Iterator[Any]:
    """Show how far the matrix is: a bar on a terminal, a line now and then elsewhere."""
    console = Console(stderr=True)
    done = TextColumn("{task.completed}/{task.total} runs")
    columns = (BarColumn(), done, TimeElapsedColumn(), TimeRemainingColumn())
    text = TextColumn("{task.description}")
    with Progress(*columns, text, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("", total=total)
        begun_s = told_s = time.monotonic()

        def show(done: int, words: str) -> None:
            nonlocal told_s
            progress.update(bar, completed=done, description=words)
            if not console.is_terminal and time.monotonic() - told_s >= _LINE_EVERY_S:
                told_s = time.monotonic()
                console.print(f"{done}/{total} runs, {told_s - begun_s:.0f} s: {words}")

        yield show


def main(words: Sequence[str] | None = None) -> None:
    """Train what is missing, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", metavar="LIST", help=f"some of {','.join(QUESTIONS)}")
    parser.add_argument("--runs", type=Path, default=HERE / "quality.jsonl")
    parser.add_argument("--page", type=Path, default=HERE / "README.md")
    parser.add_argument("--write-only", action="store_true", help="train nothing")
    parser.add_argument("--json", action="store_true", help="print the page's figures as JSON")
    options = parser.parse_args(words)
    questions = options.only.split(",") if options.only else list(QUESTIONS)
    if unknown := sorted(set(questions) - set(QUESTIONS)):
        parser.error(f"{', '.join(unknown)}: expected some of {', '.join(QUESTIONS)}")
    torch.set_num_threads(1)
    if not options.write_only:
        make(matrix(questions), options.runs)
    figures = compared(records(options.runs))
    page.write(figures, records(options.runs), options.page)
    if options.json:
        print(json.dumps(figures, indent=1))
    print(f"wrote {options.page}", file=sys.stderr)


if __name__ == "__main__":
    main()
