"""The file that Slurm's hooks append to when there is news, so that hadard looks at once.

A file and not a pipe or a socket: a hook that writes to it can neither hang nor fail slurmctld when
nobody reads.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

FILE_NAME = "wake"


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
        return mark is not None

    def _mark(self) -> tuple[int, int] | None:
        if self.path is None:
            return None
        try:
            facts = self.path.stat()
        except OSError:
            return None
        return facts.st_size, facts.st_mtime_ns
