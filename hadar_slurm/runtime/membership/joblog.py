"""The log that all copies of a job write together: `job.log` in the job's directory.

One line an event, `2026-01-31T12:00:00.123Z copy 2: joined`, from the logger `hadar_slurm.runtime`.
Lines are appended whole; where copies on different nodes write in the same moment, NFS may lose
one of them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path

NAME = "job.log"
LOGGER = "hadar_slurm.runtime"


class _Appender(logging.Handler):
    """Appends each record in one write. A log that cannot be written must not stop training."""

    def __init__(self, path: Path, copy: int) -> None:
        super().__init__(logging.INFO)
        self.path, self.copy = path, copy

    def emit(self, record: logging.LogRecord) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        with suppress(Exception):
            when = datetime.fromtimestamp(record.created, timezone.utc).replace(tzinfo=None)
            words = self.format(record).replace("\n", " ")
            line = f"{when.isoformat(timespec='milliseconds')}Z copy {self.copy}: {words}\n"
            # Opened for each line: a stale handle recovers, and a rotated log stays rotated.
            with os.fdopen(os.open(self.path, flags, 0o644), "wb", buffering=0) as file:
                file.write(line.encode())


@contextmanager
def job_log(directory: Path, copy: int) -> Iterator[None]:
    """Write what the runtime logs into the log of the job, too, while the body runs.

    Events are of level INFO, which is set unless the program has chosen another.
    """
    logger = logging.getLogger(LOGGER)
    level = logger.level
    handlers: list[logging.Handler] = [_Appender(directory / NAME, copy)]
    if not logger.hasHandlers() and logging.lastResort is not None:
        # Python prints warnings without a handler; now they have one.
        handlers.append(logging.lastResort)
    if level == logging.NOTSET:
        logger.setLevel(logging.INFO)
    for handler in handlers:
        logger.addHandler(handler)
    try:
        yield
    finally:
        logger.setLevel(level)
        for handler in handlers:
            logger.removeHandler(handler)
