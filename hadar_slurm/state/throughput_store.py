"""What was learned on this cluster, kept in a SQLite file across restarts of hadard.

These are measured throughputs, the GPU types on which workloads have run or failed, how far users'
claims were off, and how long jobs have trained. Another process may delete some of it (`forget`) or
add to it (`add_ended`): hadard reads the file again when it has changed.

No fault of the file stops hadard. A file that cannot be read, or that a newer hadard has written,
is renamed and replaced by an empty one; a locked file is tried again later.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import NamedTuple

from hadar_slurm.core.claims import Credit, Credits
from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.learned_sizes import EndedJob, EndedJobs
from hadar_slurm.core.throughput_model import Measured, Place, ThroughputModel, Workload
from hadar_slurm.core.type_failures import TypeRecord, TypeRecords, Work
from hadar_slurm.errors import ProfileError
from hadar_slurm.jobspec.description import MAX_GPUS, MAX_THROUGHPUT, MIN_THROUGHPUT

log = logging.getLogger(__name__)

FILE_NAME = "profile.sqlite"
VERSION = 4
# Other readers of the file, such as a report, hold their locks for less.
_BUSY_S = 0.2
# `forget` waits for a hadard that is writing.
_PATIENCE_S = 5.0
# Bounds the file: each new job name of a user is a new workload.
MAX_WORKLOADS_OF_USER = 200
MAX_ENDED_JOBS_OF_USER = 1000
_MAX_TIME_S, _MAX_LOG = 1e12, 20.0

# The tables by the version that brought them.
_TABLES = {
    1: """
CREATE TABLE speeds (
    user TEXT, workload TEXT, gpu_type TEXT, gpus INTEGER, is_spread INTEGER,
    steps_per_s REAL, mean REAL, count INTEGER, seen_s REAL,
    PRIMARY KEY (user, workload, gpu_type, gpus, is_spread)
) WITHOUT ROWID
""",
    2: """
CREATE TABLE type_records (
    user TEXT, workload TEXT, gpus INTEGER, gpu_type TEXT,
    ran_s REAL, fixed_s REAL, failed_s REAL, lasted_s REAL, failing_since_s REAL, seen_s REAL,
    PRIMARY KEY (user, workload, gpus, gpu_type)
) WITHOUT ROWID
""",
    3: """
CREATE TABLE credits (
    user TEXT PRIMARY KEY, log_off REAL, speeds_off REAL, jobs INTEGER, at_s REAL
) WITHOUT ROWID
""",
    4: """
CREATE TABLE ended_jobs (
    job TEXT, ended_s INTEGER, user TEXT, workload TEXT, gpus INTEGER, service_s REAL,
    PRIMARY KEY (job, ended_s)
) WITHOUT ROWID
""",
}
# Keeps the workloads of a user of which there was news last.
_KEEP_NEWEST = """
DELETE FROM {table} WHERE user = ? AND workload NOT IN (
    SELECT workload FROM {table} WHERE user = ? GROUP BY workload
    ORDER BY max(seen_s) DESC, workload LIMIT ?
)
"""


# Keeps the jobs of a user that ended last.
_KEEP_LAST = """
DELETE FROM ended_jobs WHERE user = ? AND (job, ended_s) NOT IN (
    SELECT job, ended_s FROM ended_jobs WHERE user = ? ORDER BY ended_s DESC, job LIMIT ?
)
"""


class Learned(NamedTuple):
    """What a file holds."""

    speeds: ThroughputModel
    records: TypeRecords
    credits: Credits
    ended: EndedJobs


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
            suppress(sqlite3.Error, OSError, _UnusableError),
            _transaction(self.path, _BUSY_S) as connection,
        ):
            self._replace_all_but_news(_read(connection, _version(connection)))
            self._mark = mark

    def sync(self) -> None:
        """Read the file if another process has changed it, and write what is new."""
        mark = _mark_of(self.path)
        if mark is not None and mark == self._mark and not self._has_news:
            return
        self.fault = ""
        try:
            try:
                self._exchange(mark)
            except _UnusableError as error:
                self._put_aside(str(error))
                self._exchange(None)
        except (sqlite3.Error, OSError, _UnusableError) as error:
            self.fault = f"{self.path}: measured speeds are not kept: {error}"

    @property
    def _has_news(self) -> bool:
        return bool(self.speeds.news or self.records.news or self.credits.news or self.ended.news)

    def _exchange(self, mark: _Mark | None) -> None:
        """Read what is not known and write what is new; `mark` was read before."""
        # Mode 0600: job names are private to their users.
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        with _transaction(self.path, _BUSY_S) as connection:
            version = _upgrade(connection)
            if not version:
                # A new file gets all that is known: the former one is gone.
                self.speeds.news |= {(w, p) for w, ps in self.speeds.measured.items() for p in ps}
                self.records.news |= {(w, k) for w, ks in self.records.of_work.items() for k in ks}
                self.credits.news |= self.credits.by_user.keys()
                self.ended.news |= self.ended.jobs.keys()
            elif mark is None or mark != self._mark:
                self._replace_all_but_news(_read(connection, version))
            learned = Learned(self.speeds, self.records, self.credits, self.ended)
            _write(connection, learned, self.now_s())
            is_written = connection.total_changes > 0
        self.speeds.news.clear()
        self.records.news.clear()
        self.credits.news.clear()
        self.ended.news.clear()
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


def read_profile(path: Path) -> Learned:
    """Return what a file holds, nothing if there is none yet; raises ProfileError."""
    if not path.exists():
        return Learned(ThroughputModel(), TypeRecords(), Credits(), EndedJobs())
    with _reported(path), _transaction(path, _PATIENCE_S) as connection:
        return _read(connection, _version(connection))


def add_ended(path: Path, jobs: Iterable[EndedJob]) -> int:
    """Add jobs that have ended to a file, which is made if there is none; return how many are new.

    A running hadard notices it in its next round. Raises ProfileError.
    """
    with _reported(path):
        is_new = not path.exists()
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        if is_new and os.geteuid() == 0:
            # It is for hadard, to which the directory belongs.
            owner = path.parent.stat()
            os.chown(path, owner.st_uid, owner.st_gid)
        with _transaction(path, _PATIENCE_S) as connection:
            version = _upgrade(connection)
            learned = _read(connection, version)
            number = sum(map(learned.ended.add, jobs))
            _write_ended(connection, learned.ended)
    return number


def forget(path: Path, user: str, workload: str | None = None) -> int:
    """Delete what was learned of a user, or of one workload; return the number of rows.

    A running hadard notices it in its next round. Raises ProfileError.
    """
    if not path.exists():
        return 0
    with _reported(path), _transaction(path, _PATIENCE_S) as connection:
        _upgrade(connection)
        before = connection.total_changes
        for table in ("speeds", "type_records", "ended_jobs"):
            text = f"DELETE FROM {table} WHERE user = ? AND ? IN (workload, '')"
            connection.execute(text, (user, workload or ""))
        if workload is None:
            connection.execute("DELETE FROM credits WHERE user = ?", (user,))
        return connection.total_changes - before


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


@contextmanager
def _transaction(path: Path, busy_s: float) -> Iterator[sqlite3.Connection]:
    """Open a file for one transaction; raises _UnusableError, and OperationalError to try again."""
    try:
        with closing(sqlite3.connect(path, timeout=busy_s, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield connection
            connection.execute("COMMIT")
    except sqlite3.DatabaseError as error:
        # Locked, disk full or no permission: the file is sound. SQLITE_ERROR: another schema.
        is_sound = isinstance(error, sqlite3.OperationalError)
        if is_sound and error.sqlite_errorcode != sqlite3.SQLITE_ERROR:
            raise
        raise _UnusableError(str(error)) from error


@contextmanager
def _reported(path: Path) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError, _UnusableError) as error:
        text = "run this as the user that hadard runs as, or as root"
        raise ProfileError(f"{path}: cannot be used: {error}; {text}") from error


def _version(connection: sqlite3.Connection) -> int:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > VERSION:
        raise _UnusableError(f"version {version}, this reads {VERSION}")
    return int(version)


def _upgrade(connection: sqlite3.Connection) -> int:
    """Make the tables that a file lacks; return its version before, 0 for a new one."""
    version = _version(connection)
    for number in range(version + 1, VERSION + 1):
        connection.execute(_TABLES[number])
        connection.execute(f"PRAGMA user_version = {number}")
    return version


def _read(connection: sqlite3.Connection, version: int) -> Learned:
    faults = [fault for (fault,) in connection.execute("PRAGMA quick_check") if fault != "ok"]
    if faults:
        raise _UnusableError(faults[0])
    speeds, records, credits = ThroughputModel(), TypeRecords(), Credits()
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
            known = speeds.measured.setdefault(Workload(user, name), {})
            known[Place(gpu_type, gpus, bool(is_spread))] = Measured(steps_per_s, mean, count)
    for row in connection.execute("SELECT * FROM type_records") if version > 1 else ():
        user, name, gpus, gpu_type, *times, _ = row
        types = [type(value) for value in (user, name, gpu_type, gpus, *times)]
        is_sound = types == [str, str, str, int, *[float] * 5] and 1 <= gpus <= MAX_GPUS
        if is_sound and all(0 <= time_s <= _MAX_TIME_S for time_s in times):
            work = Work(Workload(user, name), gpus)
            records.of_work.setdefault(work, {})[gpu_type] = TypeRecord(*times)
    for user, *values in connection.execute("SELECT * FROM credits") if version > 2 else ():
        is_sound = list(map(type, (user, *values))) == [str, float, float, int, float]
        if is_sound and all(
            map(_is_within, values, (_MAX_LOG, _MAX_LOG, _MAX_TIME_S, _MAX_TIME_S))
        ):
            credits.by_user[user] = Credit(*values)
    ended = connection.execute("SELECT * FROM ended_jobs") if version > 3 else ()
    return Learned(speeds, records, credits, EndedJobs.of(_ended_jobs(ended)))


def _ended_jobs(rows: Iterable[tuple[object, ...]]) -> Iterator[EndedJob]:
    for job, ended_s, user, workload, gpus, service_s in rows:
        if (
            isinstance(job, str)
            and isinstance(user, str)
            and isinstance(workload, str)
            and isinstance(ended_s, int)
            and isinstance(gpus, int)
            and isinstance(service_s, float)
            and 0 <= ended_s <= _MAX_TIME_S
            and 0 < service_s <= _MAX_TIME_S
            and 1 <= gpus <= MAX_GPUS
        ):
            yield EndedJob(
                JobId(job), float(ended_s), Work(Workload(user, workload), gpus), service_s
            )


def _is_within(value: float, most: float) -> bool:
    return -most <= value <= most


def _write(connection: sqlite3.Connection, learned: Learned, now_s: float) -> None:
    """Write what is new."""
    speeds, records, credits, ended = learned
    _write_ended(connection, ended)
    rows = [
        (job.user, job.name, *place, found.steps_per_s, found.mean, found.count, now_s)
        for job, place in speeds.news
        for found in [speeds.measured[job][place]]
    ]
    connection.executemany("INSERT OR REPLACE INTO speeds VALUES (?,?,?,?,?,?,?,?,?)", rows)
    known = [
        (*astuple(work.workload), work.num_gpus, gpu_type, *astuple(record), now_s)
        for work, gpu_type in records.news
        for record in [records.of_work[work][gpu_type]]
    ]
    text = "INSERT OR REPLACE INTO type_records VALUES (?,?,?,?,?,?,?,?,?,?)"
    connection.executemany(text, known)
    connection.executemany(
        "INSERT OR REPLACE INTO credits VALUES (?,?,?,?,?)",
        [(user, *astuple(credits.of(user))) for user in credits.news],
    )
    for table, users in (
        ("speeds", {workload.user for workload, _ in speeds.news}),
        ("type_records", {work.workload.user for work, _ in records.news}),
    ):
        for user in users:
            keep = _KEEP_NEWEST.format(table=table)
            connection.execute(keep, (user, user, MAX_WORKLOADS_OF_USER))


def _write_ended(connection: sqlite3.Connection, ended: EndedJobs) -> None:
    """Write the jobs that have ended since, and delete the oldest ones of users with many."""
    jobs = [ended.jobs[key] for key in ended.news]
    connection.executemany(
        "INSERT OR IGNORE INTO ended_jobs VALUES (?,?,?,?,?,?)",
        [(*j.key, *astuple(j.work.workload), j.work.num_gpus, float(j.service_s)) for j in jobs],
    )
    for user in {job.work.workload.user for job in jobs}:
        connection.execute(_KEEP_LAST, (user, user, MAX_ENDED_JOBS_OF_USER))


class _UnusableError(Exception):
    """This hadard cannot ever use the file; the message says why."""
