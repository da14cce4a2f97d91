"""Runs of a comparison in processes of this machine."""

from __future__ import annotations

import logging
import math
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from hadar_slurm.lab.study.compare import Cell, Record, is_plain_slurm, run_cell
from hadar_slurm.lab.study.running.cells import Watcher, failed_record, interrupts
from hadar_slurm.lab.study.running.record_files import cell_path, read_record, write_record

_SEND_EVERY_S = 0.2
# Longest delay after Ctrl-C.
_POLL_EVERY_S = 0.2
_JOIN_S = 5.0

# The index of a cell and its process, by the pipe from it.
_Workers = dict[Connection, tuple[int, BaseProcess]]


@dataclass(frozen=True, slots=True)
class Processes:
    """Every cell has a process, at most `number` at a time."""

    number: int

    def __call__(
        self, cells: Sequence[Cell], todo: Sequence[int], folder: Path, watcher: Watcher
    ) -> Iterator[tuple[int, Record]]:
        """Run the cells `todo`, and yield the index and the record of each."""
        # Forking this process would copy its threads' locks; a server without threads is safe.
        context = multiprocessing.get_context("forkserver")
        # Import the main module's imports once, in the server.
        context.set_forkserver_preload(
            sorted(n for n in sys.modules if n.startswith("hadar_slurm."))
        )
        # Taken from the end. Plain Slurm's runs are short, and a long one may not come last.
        waiting = sorted(reversed(todo), key=lambda n: not is_plain_slurm(cells[n].policy))
        workers: _Workers = {}
        with interrupts() as check:
            try:
                while waiting or workers:
                    while waiting and len(workers) < self.number:
                        check()
                        index = waiting.pop()
                        reader, writer = context.Pipe(duplex=False)
                        work = cells[index], cell_path(folder, cells[index]), writer
                        name = str(cells[index])
                        process = context.Process(target=_work, args=work, name=name, daemon=True)
                        process.start()
                        workers[reader] = index, process
                        writer.close()
                        watcher.started(index)
                    ready = wait(workers, _POLL_EVERY_S)
                    check()
                    for reader in [reader for reader in workers if reader in ready]:
                        index, child = workers[reader]
                        try:
                            watcher.progressed(index, reader.recv())
                        except EOFError:
                            # The process has ended or was killed.
                            child.join()
                            del workers[reader]
                            reader.close()
                            yield index, _collect(cells[index], folder, child)
            finally:
                _end(workers)


def _end(workers: _Workers) -> None:
    for _, process in workers.values():
        process.terminate()
    for reader, (_, process) in workers.items():
        process.join(_JOIN_S)
        if process.is_alive():
            process.kill()
            process.join()
        reader.close()


def _collect(cell: Cell, folder: Path, process: BaseProcess) -> Record:
    code = process.exitcode
    process.close()
    record = read_record(cell_path(folder, cell)) if code == 0 else None
    if record is None:
        how = f"was ended by signal {-code}" if code and code < 0 else f"ended with status {code}"
        record = failed_record(cell, f"the process {how}; it may have run out of memory")
        write_record(cell_path(folder, cell), record)
    return record


def _work(cell: Cell, path: Path, writer: Connection) -> None:
    """Run one cell (main function of its process)."""
    # Ctrl-C reaches every process of the terminal; the parent handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # The traceback of a failed round would be printed over the parent's progress bar.
    logging.disable(logging.CRITICAL)
    sent_s = -math.inf

    def send(jobs_done: int) -> None:
        nonlocal sent_s
        if time.monotonic() - sent_s >= _SEND_EVERY_S:
            sent_s = time.monotonic()
            writer.send(jobs_done)

    write_record(path, run_cell(cell, on_progress=send))
    writer.close()


def _end_with_parent() -> None:
    """End this process when its parent has ended for any reason."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
