"""The terminal output of `hadar compare`: progress of the runs, and tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer
from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

from hadar_slurm.errors import ConfigError
from hadar_slurm.lab.study.compare import Cell, Record
from hadar_slurm.lab.study.running.cells import CellRunner, Watcher, run_cells
from hadar_slurm.lab.study.summary import KILLED_WORDS, ComparableRuns, Note

# Least width of terminals for the whole table; narrower ones get fewer columns. Files and pipes
# have room for all columns, whatever the GPU types.
_WIDE, _FILES = 200, 400
_FEW = (
    "off", "ttd_h", "ttd_over_bound", "mean_jct_h", "mean_jct_over_bound", "p95_jct_h",
    "queueing_h", "mean_ftf", "utilization", "killed", "killed_share", "moves", "decision_ms_p50",
)  # fmt: skip
_READABLE = 100
# Of a folded table, in a terminal.
_MOST_ROWS = 12
# Exit status after Ctrl-C, as in shells.
_STOPPED = 130


class _Bars(Watcher):
    """Shows the progress of the runs: bars on a terminal, otherwise a line per run."""

    def __init__(self, cells: Sequence[Cell], console: Console, progress: Progress) -> None:
        self._cells, self._console, self._progress = cells, console, progress
        self._all = progress.add_task("all runs", total=len(cells), unit="runs")
        self._tasks: dict[int, TaskID] = {}
        self.num_done = self.num_known = 0

    def started(self, index: int) -> None:
        cell = self._cells[index]
        num_jobs = len(cell.workload.specs)
        self._tasks[index] = self._progress.add_task(f"  {cell}", total=num_jobs, unit="jobs")

    def progressed(self, index: int, jobs_done: int) -> None:
        self._progress.update(self._tasks[index], completed=jobs_done)

    def in_slurm(self, pending: int, running: int) -> None:
        text = f"all runs: in Slurm {running} running, {pending} pending"
        self._progress.update(self._all, description=text)

    def finished(self, index: int, record: Record, *, was_known: bool) -> None:
        self.num_done += 1
        self.num_known += was_known
        if index in self._tasks:
            self._progress.remove_task(self._tasks.pop(index))
        self._progress.advance(self._all)
        if record["status"] != "done":
            self._console.print(f"{self._cells[index]}: {record['error']}", style="red")
        elif not self._console.is_terminal and not was_known:
            text = f"{self.num_done}/{len(self._cells)} {self._cells[index]}"
            took = f"{record['took_s']:.0f} s"
            self._console.print(f"{text}: {took}", highlight=False, soft_wrap=True)


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
        bars = _Bars(cells, console, progress)
        try:
            records = run_cells(cells, output, way=way, watcher=bars)
        except KeyboardInterrupt:
            text = f"stopped: {bars.num_done} of {len(cells)} runs are in {output}; repeat the "
            console.print(text + "command to resume", soft_wrap=True, highlight=False)
            raise typer.Exit(_STOPPED) from None
        if bars.num_known:
            text = f"{bars.num_known} of {len(cells)} runs had results already"
            console.print(text, highlight=False)
    return records


def show(
    found: Sequence[ComparableRuns], notes: Sequence[Note], verdict: Sequence[str] = ()
) -> None:
    """Print the sentences for people who decide, a table for each group, and the notes."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=_FILES)
    for number, words in enumerate(verdict):
        style = "" if number else "bold"
        console.print(Text(words, style=style), width=min(console.width, _READABLE))
    for group in found:
        console.print(_group_table(group, has_room=console.width >= _WIDE))
    show_notes(notes, console)


def show_notes(notes: Sequence[Note], console: Console) -> None:
    """Print notes with their tables."""
    for note in notes:
        console.print(Text(note.heading, style="bold"))
        for words in note.paragraphs:
            console.print(Text(words), width=min(console.width, _READABLE))
        if note.table:
            head, *rows = note.table
            table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
            for number, text in enumerate(head):
                table.add_column(text, justify="right" if number else "left")
            shown = rows[:_MOST_ROWS] if note.is_folded else rows
            for row in shown:
                table.add_row(*row)
            console.print(table)
            if len(rows) > len(shown):
                console.print(f"and {len(rows) - len(shown)} more rows, which the report has")


def _group_table(group: ComparableRuns, *, has_room: bool) -> Table:
    seeds = f", mean of {group.num_seeds} seeds" if group.num_seeds > 1 else ""
    captions = [] if has_room else ["files and wider terminals show more columns"]
    captions += [KILLED_WORDS] if group.has_killed else []
    columns = [column for column in group.columns if has_room or column.name in _FEW]
    table = Table(
        title=Text(group.title + seeds, style="bold"),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        caption=Text("\n".join(captions)) if captions else None,
        caption_justify="left",
    )
    table.add_column("policy", no_wrap=True, vertical="bottom")
    best = {}
    for column in columns:
        first, _, rest = column.heading.rpartition(" ")
        table.add_column(f"{first}\n{rest}".strip(), justify="right", vertical="bottom")
        best[column.name] = group.best(column)
    for entry in group.rows:
        if not entry.records:
            table.add_row(entry.policy, Text("failed", style="red"))
            continue
        styles = ["bold green" if entry.policy in best[c.name] else "" for c in columns]
        texts = [column.text(entry.mean(column)) for column in columns]
        name = f"{entry.policy} ({entry.status})" if entry.status else entry.policy
        table.add_row(name, *map(Text, texts, styles))
    return table
