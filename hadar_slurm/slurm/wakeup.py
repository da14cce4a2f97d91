"""The file that Slurm's hooks append to when there is news, so that hadard looks at once.

A file and not a pipe or a socket: a hook that writes to it can neither hang nor fail slurmctld when
nobody reads.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

FILE_NAME = "wake"


# Hooks append a byte for each event; a file grown to so many is begun anew.
_MAX_BYTES = 1_000_000


def make_wake_file(path: Path) -> None:
    """Make the file empty; its group may write to it too, as the user of slurmctld's hooks.

    Without the right to, there is none, and hadard looks at its usual times.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    with suppress(OSError):
        os.close(os.open(path, flags, 0o660))


@dataclass
class WakeFile:
    """Tells whether the file at `path` has changed since it was last asked; never with None."""

    path: Path | None
    _seen: tuple[int, int] | None = field(init=False)

    def __post_init__(self) -> None:
        self._seen = self._mark()

    def has_news(self) -> bool:
        """Return whether a hook has written since the last call."""
        mark = self._mark()
        if mark == self._seen:
            return False
        self._seen = mark
        if self.path is not None and mark is not None and mark[0] > _MAX_BYTES:
            make_wake_file(self.path)
            self._seen = self._mark()
        return mark is not None

    def _mark(self) -> tuple[int, int] | None:
        if self.path is None:
            return None
        try:
            facts = self.path.stat()
        except OSError:
            return None
        return facts.st_size, facts.st_mtime_ns
