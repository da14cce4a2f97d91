"""The progress of runs where no terminal is: lines with what is done and the time left."""

from __future__ import annotations

import io

from rich.console import Console
from rich.progress import Progress
from studies import a_cell, some_jobs

from hadar_slurm.lab.study.running.progress import RunProgress


class Clock:
    """Seconds that a test sets."""

    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def watched(*, is_terminal: bool = False) -> tuple[RunProgress, Clock, io.StringIO]:
    """Return the watcher of three runs of eight jobs each."""
    clock, text = Clock(), io.StringIO()
    console = Console(file=text, width=200, force_terminal=is_terminal)
    cells = [a_cell(policy, specs=some_jobs(8)) for policy in ("srsf", "las", "slurm")]
    bars = RunProgress(cells, console, Progress(console=console, disable=True), clock)
    return bars, clock, text


def test_a_line_at_intervals_says_what_is_done_and_the_time_left() -> None:
    """A run whose results are known counts for neither; four of sixteen jobs took 30 s."""
    bars, clock, text = watched()
    bars.finished(0, {"status": "done"}, was_known=True)
    bars.started(1)
    clock.now_s += 10
    bars.progressed(1, 1)
    assert text.getvalue() == ""
    clock.now_s += 20
    bars.progressed(1, 4)
    bars.progressed(1, 5)
    assert text.getvalue() == "1 of 3 runs done, 4 of 16 jobs, about 2 min left\n"
    clock.now_s += 10
    bars.finished(1, {"status": "done", "took_s": 40.0}, was_known=False)
    assert text.getvalue().splitlines()[1] == (
        "2/3 las on few, restart 30 s: 40 s, about 40 s left"
    )
    bars.started(2)
    bars.finished(2, {"status": "done", "took_s": 40.0}, was_known=False)
    assert text.getvalue().splitlines()[2].endswith("slurm on few, restart 30 s: 40 s")


def test_tasks_of_slurm_are_counted_at_intervals() -> None:
    bars, clock, text = watched()
    bars.in_slurm(2, 1)
    clock.now_s += 30
    bars.in_slurm(2, 1)
    bars.in_slurm(2, 1)
    assert text.getvalue() == "0 of 3 runs done, in Slurm 1 running, 2 pending\n"


def test_a_terminal_has_bars_and_no_lines() -> None:
    bars, clock, text = watched(is_terminal=True)
    bars.started(1)
    clock.now_s += 100
    bars.progressed(1, 4)
    bars.finished(1, {"status": "done", "took_s": 40.0}, was_known=False)
    assert text.getvalue() == ""
