"""The lines of a growing journal: its tail at first, then the added lines.

hadard rotates a full journal to `NAME.1`, and removes an incomplete last line after a crash. The
file stays open, so no line at its end is missed when it is rotated; a line without newline is read
again each time, so it is never joined with another.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO

from hadar_slurm.journal.reader import tail_begin

# A line has some 300 bytes a job; this is one of 100,000 jobs.
MAX_LINE = 32_000_000
MAX_BYTES = 32_000_000


class Tail:
    """Follows the journal at `path`, of which about `max_bytes` are read at first.

    `fault` says why it cannot be read now, "" if it can; `too_long` counts skipped lines of more
    than `max_line` bytes.
    """

    def __init__(self, path: Path, *, max_bytes: int = MAX_BYTES, max_line: int = MAX_LINE) -> None:
        self.path = path
        self.fault = ""
        self.too_long = 0
        self._max_bytes = max_bytes
        self._max_line = max_line
        self._file: IO[bytes] | None = None
        self._has_begun = False

    def lines(self) -> Iterator[bytes]:
        """Yield the whole lines added since the last call, with their newlines."""
        try:
            found, self.fault = self.path.stat(), ""
        except OSError as error:
            self.fault = error.strerror or str(error)
        else:
            if not self._has_begun:
                yield from self._first()
            elif self._file is None:
                self._open()
            elif not os.path.samestat(found, os.fstat(self._file.fileno())):
                yield from self._whole(self._file)
                self.close()
                self._open()
            elif found.st_size < self._file.tell():
                self._file.seek(0)
        yield from self._whole(self._file)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _first(self) -> Iterator[bytes]:
        """Yield the tail of the journal, and of rotated files up to `max_bytes`."""
        self._open()
        if self._file is None:
            return
        # Not from the middle of what can only be read together; the newest such group always.
        begin = tail_begin(self.path, self._max_bytes, least=1)
        left = self._max_bytes - os.fstat(self._file.fileno()).st_size
        aside: list[tuple[Path, int]] = []
        with suppress(OSError):
            while left > 0:
                older = self.path.with_name(f"{self.path.name}.{len(aside) + 1}")
                size = older.stat().st_size
                aside.append((older, tail_begin(older, left)))
                left -= size
        for older, first in reversed(aside):
            with older.open("rb") as file:
                file.seek(first)
                yield from self._whole(file)
        self._file.seek(begin)

    def _open(self) -> None:
        try:
            self._file = self.path.open("rb")
            self._has_begun = True
        except OSError as error:
            self.fault = error.strerror or str(error)

    def _whole(self, file: IO[bytes] | None) -> Iterator[bytes]:
        """Yield the whole lines from a file's position, and leave it after the last one."""
        while file is not None:
            begin = file.tell()
            line = file.readline(self._max_line)
            if line.endswith(b"\n"):
                yield line
            elif len(line) < self._max_line:
                file.seek(begin)
                return
            else:
                self.too_long += 1
                while line and not line.endswith(b"\n"):
                    line = file.readline(self._max_line)
