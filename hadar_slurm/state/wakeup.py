"""The file that Slurm's hooks append to, so that hadard reads the queue at once.

Not a pipe or a socket: without a reader, a hook that writes to a file cannot block slurmctld.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

FILE_NAME = "wake"
# Hooks append a byte for each event; a larger file is emptied.
_MAX_BYTES = 1_000_000


def make_wake_file(path: Path) -> None:
    """Create or empty the file, writable for its group: the user of slurmctld's hooks.

    Without permission there is no file, and hadard reads the queue at its usual interval.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    with suppress(OSError):
        os.close(os.open(path, flags, 0o660))


@dataclass
class WakeFile:
    """Detects changes of the file at `path`; with None there are none."""

    path: Path | None
    _last_mark: tuple[int, int] | None = field(init=False)

    def __post_init__(self) -> None:
        self._last_mark = self._mark()

    def has_news(self) -> bool:
        """Return whether a hook has written since the last call."""
        mark = self._mark()
        if mark == self._last_mark:
            return False
        self._last_mark = mark
        if self.path is not None and mark is not None and mark[0] > _MAX_BYTES:
            make_wake_file(self.path)
            self._last_mark = self._mark()
        return mark is not None

    def _mark(self) -> tuple[int, int] | None:
        with suppress(OSError):
            if self.path is not None:
                facts = self.path.stat()
                return facts.st_size, facts.st_mtime_ns
        return None
