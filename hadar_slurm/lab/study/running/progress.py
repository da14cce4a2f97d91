"""The progress of a comparison's runs and the time left: bars on a terminal, lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from hadar_slurm.errors import ConfigError
from hadar_slurm.lab.study.compare import Cell, Record
from hadar_slurm.lab.study.running.cells import CellRunner, Watcher, run_cells

# Seconds between two lines where there is no terminal.
_EVERY_S = 20.0
# Exit status after Ctrl-C, as in shells.
_STOPPED = 130


class RunProgress(Watcher):
    """Shows the progress of the runs.

    The time left is that until now over the jobs that have ended, times those that have not: rough,
    since jobs of a long queue cost more, and policies differ.
    """

    def __init__(
        self,
        cells: Sequence[Cell],
        console: Console,
        progress: Progress,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cells, self._console, self._progress = cells, console, progress
        self._all = progress.add_task("all runs", total=len(cells), unit="runs")
        self._tasks: dict[int, TaskID] = {}
        self._clock = clock
        self._began_s = self._said_s = clock()
        # Jobs by cell: of those that had no results, and of these the ones that have ended.
        self._jobs = {number: len(cell.workload.specs) for number, cell in enumerate(cells)}
        self._ended = dict.fromkeys(self._jobs, 0)
        self.num_done = self.num_known = 0

    def started(self, index: int) -> None:
        """Add the bar of a run."""
        cell, num_jobs = self._cells[index], self._jobs[index]
        self._tasks[index] = self._progress.add_task(f"  {cell}", total=num_jobs, unit="jobs")

    def progressed(self, index: int, jobs_done: int) -> None:
        """Show how far a run is."""
        self._ended[index] = jobs_done
        self._progress.update(self._tasks[index], completed=jobs_done)
        self._progress.update(self._all, description=f"all runs{self._left()}")
        if not self._console.is_terminal and self._clock() - self._said_s >= _EVERY_S:
            self._say(
                f"{self.num_done} of {len(self._cells)} runs done, {sum(self._ended.values()):,} "
                f"of {sum(self._jobs.values()):,} jobs{self._left()}"
            )

    def in_slurm(self, pending: int, running: int) -> None:
        """Show how many runs are jobs of Slurm."""
        text = f"all runs: in Slurm {running} running, {pending} pending"
        self._progress.update(self._all, description=text)
        if not self._console.is_terminal and self._clock() - self._said_s >= _EVERY_S:
            self._say(f"{self.num_done} of {len(self._cells)} runs done, {text.partition(': ')[2]}")

    def finished(self, index: int, record: Record, *, was_known: bool) -> None:
        """Show the end of a run, or its error."""
        self.num_done += 1
        self.num_known += was_known
        if was_known:
            del self._jobs[index], self._ended[index]
        else:
            self._ended[index] = self._jobs[index]
        if index in self._tasks:
            self._progress.remove_task(self._tasks.pop(index))
        self._progress.advance(self._all)
        if record["status"] != "done":
            self._console.print(f"{self._cells[index]}: {record['error']}", style="red")
        elif not self._console.is_terminal and not was_known:
            text = f"{self.num_done}/{len(self._cells)} {self._cells[index]}"
            self._say(f"{text}: {record['took_s']:.0f} s{self._left()}")

    def _left(self) -> str:
        """Return the time left in words; "" before the first job has ended, and at the end."""
        ended, jobs = sum(self._ended.values()), sum(self._jobs.values())
        if not 0 < ended < jobs:
            return ""
        left_s = (self._clock() - self._began_s) * (jobs - ended) / ended
        return (
            f", about {left_s / 60:.0f} min left"
            if left_s >= 90
            else f", about {left_s:.0f} s left"
        )

    def _say(self, text: str) -> None:
        self._said_s = self._clock()
        self._console.print(text, highlight=False, soft_wrap=True, markup=False)


def run_with_bars(
    cells: Sequence[Cell], output: Path, way: CellRunner, console: Console
) -> list[Record]:
    """Run the cells and show their progress; Ctrl-C prints how to resume and exits with 130."""
    try:
        (output / "cells").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--output {output}: {error.strerror}") from error
    with Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[unit]}"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as progress:
        bars = RunProgress(cells, console, progress)
        try:
            records = run_cells(cells, output, way=way, watcher=bars)
        except KeyboardInterrupt:
            text = f"stopped: {bars.num_done} of {len(cells)} runs are in {output}; repeat the "
            console.print(text + "command to resume", soft_wrap=True, highlight=False)
            raise typer.Exit(_STOPPED) from None
        if bars.num_known:
            text = f"{bars.num_known} of {len(cells)} runs needed no run of their own"
            console.print(text, highlight=False)
    return records
