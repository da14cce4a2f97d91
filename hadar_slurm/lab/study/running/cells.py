"""All runs of a comparison: those that have a result are not run again."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from hadar_slurm.lab.study.compare import OPTIONAL_LABELS, VERSION, Cell, Record
from hadar_slurm.lab.study.running.record_files import cell_path, read_record


class Watcher(Protocol):
    """Receives the progress of the cells; `index` is that in the list of cells."""

    def started(self, index: int) -> None:
        """A cell's process has started."""

    def progressed(self, index: int, jobs_done: int) -> None:
        """`jobs_done` jobs of a cell have ended."""

    def in_slurm(self, pending: int, running: int) -> None:
        """How many cells are jobs of Slurm."""

    def finished(self, index: int, record: Record, *, was_known: bool) -> None:
        """A cell has ended now, or (`was_known`) its result is an earlier or another one's."""


class CellRunner(Protocol):
    """Runs cells, and yields the index and the record of each as it ends."""

    def __call__(
        self, cells: Sequence[Cell], todo: Sequence[int], folder: Path, watcher: Watcher
    ) -> Iterator[tuple[int, Record]]:
        """Run the cells `todo`, each of its own key, and write the file of each in `folder`."""


def run_cells(
    cells: Sequence[Cell], folder: Path, *, way: CellRunner, watcher: Watcher
) -> list[Record]:
    """Run all cells that have no result in `folder`, and return the records of all, in order.

    Of cells that are the same run, with other labels, one is run. The next run retries failed
    cells. After an exception, such as Ctrl-C, no process and no job of `way` is left, and every
    finished cell has its file.
    """
    records: dict[int, Record] = {}
    todo: dict[str, list[int]] = {}
    for index, cell in enumerate(cells):
        known = read_record(cell_path(folder, cell))
        if known and known["status"] == "done":
            # The same run under another name, such as a trace that was renamed.
            records[index] = _labelled(known, cell)
            watcher.finished(index, records[index], was_known=True)
        else:
            todo.setdefault(cell.key, []).append(index)
    for first, record in way(cells, [indices[0] for indices in todo.values()], folder, watcher):
        for index in todo[cells[first].key]:
            records[index] = _labelled(record, cells[index])
            watcher.finished(index, records[index], was_known=index != first)
    return [records[index] for index in range(len(cells))]


def _labelled(record: Record, cell: Cell) -> Record:
    """Return a record with the labels of a cell in place of those with which it was run."""
    return {key: value for key, value in record.items() if key not in OPTIONAL_LABELS} | cell.labels


def failed_record(cell: Cell, error: str) -> Record:
    """Return the record of a cell that ended without one."""
    return {
        "version": VERSION,
        "key": cell.key,
        **cell.labels,
        "status": "failed",
        "error": error,
        "is_forked": cell.is_forked,
    }


@contextmanager
def interrupts() -> Iterator[Callable[[], None]]:
    """Record Ctrl-C, and yield a function that raises KeyboardInterrupt if it was pressed.

    Raised at an arbitrary place, the exception could be lost in a finaliser or leave a process that
    is started but not yet registered.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    came: list[int] = []

    def check() -> None:
        if came:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, before)
    check()
