"""The SQLite file of what was learned on a cluster: its tables, read and written."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import astuple
from pathlib import Path
from typing import NamedTuple

from hadar_slurm.core.claims import Credit, Credits
from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.learned_sizes import EndedJob, EndedJobs
from hadar_slurm.core.throughput_model import Measured, Place, ThroughputModel, Workload
from hadar_slurm.core.type_failures import TypeRecord, TypeRecords, Work
from hadar_slurm.jobspec.description import MAX_GPUS, MAX_THROUGHPUT, MIN_THROUGHPUT

FILE_NAME = "profile.sqlite"
VERSION = 5
# Bounds the file: each new job name of a user is a new workload.
MAX_WORKLOADS_OF_USER = 200
MAX_ENDED_JOBS_OF_USER = 1000
_MAX_TIME_S, _MAX_LOG = 1e12, 20.0

# The tables and columns by the version that brought them.
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
    # 0: without a limit, or not known.
    5: "ALTER TABLE ended_jobs ADD COLUMN limit_s REAL NOT NULL DEFAULT 0.0",
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


@contextmanager
def transaction(path: Path, busy_s: float) -> Iterator[sqlite3.Connection]:
    """Open a file for one transaction; raises UnusableError, and OperationalError to try again."""
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
        raise UnusableError(str(error)) from error


def version_of(connection: sqlite3.Connection) -> int:
    """Return the version of a file, 0 for a new one; raises UnusableError."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > VERSION:
        raise UnusableError(f"version {version}, this reads {VERSION}")
    return int(version)


def upgrade(connection: sqlite3.Connection) -> int:
    """Make the tables that a file lacks; return its version before, 0 for a new one."""
    version = version_of(connection)
    for number in range(version + 1, VERSION + 1):
        connection.execute(_TABLES[number])
        connection.execute(f"PRAGMA user_version = {number}")
    return version


def read(connection: sqlite3.Connection, version: int) -> Learned:
    """Return what a file of this version holds; raises UnusableError."""
    faults = [fault for (fault,) in connection.execute("PRAGMA quick_check") if fault != "ok"]
    if faults:
        raise UnusableError(faults[0])
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
    for job, ended_s, user, workload, gpus, service_s, *later in rows:
        limit_s = later[0] if later else 0.0
        if (
            isinstance(job, str)
            and isinstance(user, str)
            and isinstance(workload, str)
            and isinstance(ended_s, int)
            and isinstance(gpus, int)
            and isinstance(service_s, float)
            and isinstance(limit_s, float)
            and 0 <= ended_s <= _MAX_TIME_S
            and 0 < service_s <= _MAX_TIME_S
            and 1 <= gpus <= MAX_GPUS
        ):
            work = Work(Workload(user, workload), gpus)
            asked_s = limit_s if 0 < limit_s <= _MAX_TIME_S else math.inf
            yield EndedJob(JobId(job), float(ended_s), work, service_s, asked_s=asked_s)


def _limit(job: EndedJob) -> float:
    return job.asked_s if job.asked_s < math.inf else 0.0


def _is_within(value: float, most: float) -> bool:
    return -most <= value <= most


def write(connection: sqlite3.Connection, learned: Learned, now_s: float) -> None:
    """Write what is new."""
    speeds, records, credits, ended = learned
    write_ended(connection, ended)
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


def write_ended(connection: sqlite3.Connection, ended: EndedJobs) -> None:
    """Write the jobs that have ended since, and delete the oldest ones of users with many."""
    jobs = [ended.jobs[key] for key in ended.news]
    connection.executemany(
        "INSERT OR REPLACE INTO ended_jobs VALUES (?,?,?,?,?,?,?)",
        [
            (*j.key, *astuple(j.work.workload), j.work.num_gpus, float(j.service_s), _limit(j))
            for j in jobs
        ],
    )
    for user in {job.work.workload.user for job in jobs}:
        connection.execute(_KEEP_LAST, (user, user, MAX_ENDED_JOBS_OF_USER))


class UnusableError(Exception):
    """This hadard cannot ever use the file; the message says why."""
