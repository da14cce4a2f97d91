"""Reads and changes what hadard has learned, for commands, also while hadard runs."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hadar_slurm.core.claims import Credits
from hadar_slurm.core.learned_sizes import EndedJob, EndedJobs
from hadar_slurm.core.throughput_model import ThroughputModel
from hadar_slurm.core.type_failures import TypeRecords
from hadar_slurm.errors import HadarError
from hadar_slurm.state.learned_file import (
    Learned,
    UnusableError,
    read,
    transaction,
    upgrade,
    version_of,
    write_ended,
)

# `forget` waits for a hadard that is writing.
_PATIENCE_S = 5.0


class ProfileError(HadarError):
    """The file of what was learned cannot be read or changed."""


def read_profile(path: Path) -> Learned:
    """Return what a file holds, nothing if there is none yet; raises ProfileError."""
    if not path.exists():
        return Learned(ThroughputModel(), TypeRecords(), Credits(), EndedJobs())
    with _reported(path), transaction(path, _PATIENCE_S) as connection:
        return read(connection, version_of(connection))


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
        with transaction(path, _PATIENCE_S) as connection:
            version = upgrade(connection)
            learned = read(connection, version)
            number = sum(map(learned.ended.add, jobs))
            write_ended(connection, learned.ended)
    return number


def forget(path: Path, user: str, workload: str | None = None) -> int:
    """Delete what was learned of a user, or of one workload; return the number of rows.

    A running hadard notices it in its next round. Raises ProfileError.
    """
    if not path.exists():
        return 0
    with _reported(path), transaction(path, _PATIENCE_S) as connection:
        upgrade(connection)
        before = connection.total_changes
        for table in ("speeds", "type_records", "ended_jobs"):
            text = f"DELETE FROM {table} WHERE user = ? AND ? IN (workload, '')"
            connection.execute(text, (user, workload or ""))
        if workload is None:
            connection.execute("DELETE FROM credits WHERE user = ?", (user,))
        return connection.total_changes - before


@contextmanager
def _reported(path: Path) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError, UnusableError) as error:
        text = "run this as the user that hadard runs as, or as root"
        raise ProfileError(f"{path}: cannot be used: {error}; {text}") from error
