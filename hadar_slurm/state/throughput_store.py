"""What was learned on this cluster, kept in a file across restarts of hadard.

These are measured throughputs, the GPU types on which workloads have run or failed, how far users'
claims were off, and how long jobs have trained. Another process may change it
(`learned_changes.py`): hadard reads the file again when it has changed.

No fault of the file stops hadard. A file that cannot be read, or that a newer hadard has written,
is renamed and replaced by an empty one; a locked file is tried again later.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from hadar_slurm.core.claims import Credits
from hadar_slurm.core.learned_sizes import EndedJobs
from hadar_slurm.core.throughput_model import ThroughputModel
from hadar_slurm.core.type_failures import TypeRecords
from hadar_slurm.state.learned_file import (
    Learned,
    UnusableError,
    read,
    transaction,
    upgrade,
    version_of,
    write,
)

log = logging.getLogger(__name__)

# Other readers of the file, such as a report, hold their locks for less.
_BUSY_S = 0.2


class _Mark(NamedTuple):
    """Which file it is, and SQLite's count of changes in the file's header."""

    inode: int
    changes: int


@dataclass
class Profile:
    """Keeps a throughput model, records of GPU types, users' credits and ended jobs in a file."""

    path: Path
    now_s: Callable[[], float] = time.time
    # What the file held, and what was learned since.
    speeds: ThroughputModel = field(default_factory=ThroughputModel)
    records: TypeRecords = field(default_factory=TypeRecords)
    credits: Credits = field(default_factory=Credits)
    ended: EndedJobs = field(default_factory=EndedJobs)
    # Why the file could not be used the last time; empty: it could.
    fault: str = ""
    # Of the file as it was last read or written; None: it has to be read.
    _mark: _Mark | None = None

    def refresh(self) -> None:
        """Read the file if another process has changed it; `sync` deals with faults."""
        mark = _mark_of(self.path)
        if mark is None or mark == self._mark:
            return
        with (
            suppress(sqlite3.Error, OSError, UnusableError),
            transaction(self.path, _BUSY_S) as connection,
        ):
            self._replace_all_but_news(read(connection, version_of(connection)))
            self._mark = mark

    def sync(self) -> None:
        """Read the file if another process has changed it, and write what is new."""
        mark = _mark_of(self.path)
        parts = self.speeds, self.records, self.credits, self.ended
        if mark is not None and mark == self._mark and not any(part.news for part in parts):
            return
        self.fault = ""
        try:
            try:
                self._exchange(mark)
            except UnusableError as error:
                self._put_aside(str(error))
                self._exchange(None)
        except (sqlite3.Error, OSError, UnusableError, ValueError) as error:
            self.fault = f"{self.path}: measured speeds are not kept: {error}"

    def _exchange(self, mark: _Mark | None) -> None:
        """Read what is not known and write what is new; `mark` was read before."""
        # Mode 0600: job names are private to their users.
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        with transaction(self.path, _BUSY_S) as connection:
            version = upgrade(connection)
            if not version:
                # A new file gets all that is known: the former one is gone.
                self.speeds.news |= {(w, p) for w, ps in self.speeds.measured.items() for p in ps}
                self.records.news |= {(w, k) for w, ks in self.records.of_work.items() for k in ks}
                self.credits.news |= self.credits.by_user.keys()
                self.ended.news |= self.ended.jobs.keys()
            elif mark is None or mark != self._mark:
                self._replace_all_but_news(read(connection, version))
            learned = Learned(self.speeds, self.records, self.credits, self.ended)
            write(connection, learned, self.now_s())
            is_written = connection.total_changes > 0
        for part in learned:
            part.news.clear()
        # Had another process changed the file since, its count would be higher.
        self._mark = None if mark is None else _Mark(mark.inode, mark.changes + is_written)

    def _replace_all_but_news(self, learned: Learned) -> None:
        """Take over what the file holds; what is not yet written is newer."""
        speeds, records, credits, ended = learned
        self.ended.take_over(ended)
        for workload, place in self.speeds.news:
            kept = self.speeds.measured[workload][place]
            speeds.measured.setdefault(workload, {})[place] = kept
        for work, gpu_type in self.records.news:
            records.of_work.setdefault(work, {})[gpu_type] = self.records.of_work[work][gpu_type]
        credits.by_user |= {user: self.credits.by_user[user] for user in self.credits.news}
        self.speeds.measured, self.records.of_work = speeds.measured, records.of_work
        self.credits.by_user = credits.by_user
        self.speeds.has_changed()
        self.records.version += 1

    def _put_aside(self, why: str) -> None:
        aside = self.path.with_name(f"{self.path.name}.{int(self.now_s())}.aside")
        self.path.replace(aside)
        # SQLite's companion files belong to the file put aside.
        for ending in ("-journal", "-wal", "-shm"):
            self.path.with_name(self.path.name + ending).unlink(missing_ok=True)
        log.warning("%s cannot be used (%s) and is now %s", self.path, why, aside.name)


def _mark_of(path: Path) -> _Mark | None:
    """Return the mark of a file; None where it has none.

    Call it without a connection to the file: closing a file ends all locks of this process on it.
    """
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            header = os.pread(descriptor, 28, 0)
            if len(header) == 28:
                return _Mark(os.fstat(descriptor).st_ino, int.from_bytes(header[24:], "big"))
        finally:
            os.close(descriptor)
    return None
