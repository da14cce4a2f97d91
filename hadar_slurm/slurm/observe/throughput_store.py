"""Throughputs measured on this cluster, kept in a SQLite file across restarts of hadard.

No fault of the file stops hadard. A file that cannot be read, or that a newer hadard has written,
is renamed and replaced by an empty one; a locked file is tried again later.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from hadar_slurm.core.throughput_model import Measured, Place, ThroughputModel, Workload
from hadar_slurm.jobspec.description import MAX_GPUS, MAX_THROUGHPUT, MIN_THROUGHPUT

log = logging.getLogger(__name__)

FILE_NAME = "profile.sqlite"
VERSION = 1
# Other readers of the file, such as a report, hold their locks for less.
_BUSY_S = 0.2
# Bounds the file: each new job name of a user is a new workload.
MAX_WORKLOADS_OF_USER = 200

_TABLE = """
CREATE TABLE speeds (
    user TEXT, workload TEXT, gpu_type TEXT, gpus INTEGER, is_spread INTEGER,
    steps_per_s REAL, mean REAL, count INTEGER, seen_s REAL,
    PRIMARY KEY (user, workload, gpu_type, gpus, is_spread)
) WITHOUT ROWID
"""


@dataclass
class Profile:
    """Keeps a throughput model in a file."""

    path: Path
    now_s: Callable[[], float] = time.time
    # What the file held, and what was measured since.
    speeds: ThroughputModel = field(default_factory=ThroughputModel)
    # Why the file could not be used the last time; empty: it could.
    fault: str = ""
    _is_read: bool = False

    def sync(self) -> None:
        """Read the file once, and write what is new."""
        if not self.speeds.news and self._is_read:
            return
        self.fault = ""
        try:
            try:
                self._exchange()
            except _UnusableError as error:
                self._put_aside(str(error))
                self._exchange()
        except (sqlite3.Error, OSError, _UnusableError) as error:
            self.fault = f"{self.path}: measured speeds are not kept: {error}"

    def _exchange(self) -> None:
        # Mode 0600: job names are private to their users.
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        try:
            with closing(sqlite3.connect(self.path, timeout=_BUSY_S)) as connection, connection:
                (version,) = connection.execute("PRAGMA user_version").fetchone()
                if version > VERSION:
                    raise _UnusableError(f"version {version}, this reads {VERSION}")
                if version and not self._is_read:
                    self._read(connection)
                elif not version:
                    connection.execute(_TABLE)
                    connection.execute(f"PRAGMA user_version = {VERSION}")
                if self.speeds.news:
                    self._write(connection)
        except sqlite3.DatabaseError as error:
            # Locked, disk full or no permission: the file is sound. SQLITE_ERROR: another schema.
            is_sound = isinstance(error, sqlite3.OperationalError)
            if is_sound and error.sqlite_errorcode != sqlite3.SQLITE_ERROR:
                raise
            raise _UnusableError(str(error)) from error
        self._is_read = True

    def _read(self, connection: sqlite3.Connection) -> None:
        faults = [fault for (fault,) in connection.execute("PRAGMA quick_check") if fault != "ok"]
        if faults:
            raise _UnusableError(faults[0])
        for row in connection.execute(
            "SELECT user, workload, gpu_type, gpus, is_spread, steps_per_s, mean, count FROM speeds"
        ):
            user, name, gpu_type, gpus, is_spread, steps_per_s, mean, count = row
            types = [type(value) for value in (*row[:4], *row[5:])]
            is_sound = types == [str, str, str, int, float, float, int] and count >= 1
            is_sound = is_sound and 1 <= gpus <= MAX_GPUS
            if is_sound and all(
                MIN_THROUGHPUT <= number <= MAX_THROUGHPUT for number in (steps_per_s, mean)
            ):
                known = self.speeds.measured.setdefault(Workload(user, name), {})
                # Values measured while the file could not be read are newer.
                place = Place(gpu_type, gpus, bool(is_spread))
                known.setdefault(place, Measured(steps_per_s, mean, count))
        self.speeds.has_changed()

    def _write(self, connection: sqlite3.Connection) -> None:
        now_s = self.now_s()
        rows = [
            (job.user, job.name, *place, found.steps_per_s, found.mean, found.count, now_s)
            for job, place in self.speeds.news
            for found in [self.speeds.measured[job][place]]
        ]
        connection.executemany("INSERT OR REPLACE INTO speeds VALUES (?,?,?,?,?,?,?,?,?)", rows)
        for user in {workload.user for workload, _ in self.speeds.news}:
            connection.execute(_FORGET, (user, user, MAX_WORKLOADS_OF_USER))
        connection.commit()
        self.speeds.news.clear()

    def _put_aside(self, why: str) -> None:
        aside = self.path.with_name(f"{self.path.name}.{int(self.now_s())}.aside")
        self.path.replace(aside)
        # SQLite's companion files belong to the file put aside.
        for ending in ("-journal", "-wal", "-shm"):
            self.path.with_name(self.path.name + ending).unlink(missing_ok=True)
        log.warning("%s cannot be used (%s) and is now %s", self.path, why, aside.name)


# Keeps the most recently measured workloads of a user.
_FORGET = """
DELETE FROM speeds WHERE user = ? AND workload NOT IN (
    SELECT workload FROM speeds WHERE user = ? GROUP BY workload
    ORDER BY max(seen_s) DESC, workload LIMIT ?
)
"""


class _UnusableError(Exception):
    """This hadard cannot ever use the file; the message says why."""
