"""Writes the journal's file."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from contextlib import suppress
from io import FileIO
from itertools import pairwise
from pathlib import Path

from hadar_slurm.engine.loop import RoundRecord
from hadar_slurm.journal.chain import PLAIN_BYTES, Encoder
from hadar_slurm.journal.line import as_line


class Journal:
    """An append-only file of rounds; each line is written before the next round begins.

    A file that reaches `max_bytes` is rotated to `NAME.1`, older files move up, and at most `keep`
    are kept. Each line goes to the file that has the name at that time: after the file was moved
    or a write failed, the next line opens it again. The first line of every file is whole; later
    ones are differences where a plain line would have `plain_bytes` or more.
    """

    def __init__(
        self,
        path: Path,
        *,
        max_bytes: float = math.inf,
        keep: int = 5,
        plain_bytes: int = PLAIN_BYTES,
    ) -> None:
        self._path, self._max_bytes, self._keep = path, max_bytes, keep
        self._file: FileIO | None = None
        # The file's size after the last line.
        self._size = 0
        self._encoder = Encoder(plain_bytes)

    def open(self) -> FileIO:
        """Return the file, reopened if another file has its name; raises OSError."""
        if self._file is not None:
            with suppress(FileNotFoundError):
                if os.path.samestat(self._path.stat(), os.fstat(self._file.fileno())):
                    return self._file
        self.close()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if self._path.exists():
            _remove_partial_line(self._path)
        # Unbuffered: closing a buffer after a failed write would write it again.
        self._file = self._path.open("ab", buffering=0)
        return self._file

    def write(
        self, record: RoundRecord, *, mode: str = "", more: Mapping[str, object] | None = None
    ) -> None:
        """Append one round; only hadard gives `mode` and `more` fields.

        Raises OSError if the write fails; a part that was written is removed.
        """
        tree = as_line(record) | ({"mode": mode} if mode else {}) | dict(more or {})
        file = self.open()
        before = os.fstat(file.fileno()).st_size
        if before != self._size:
            # Emptied, as by logrotate's copytruncate, or another program writes to it too.
            self._encoder.begin()
        left = memoryview(self._encoder.text_of(tree))
        self._size = before + len(left)
        try:
            while left:
                left = left[file.write(left) :]
        except OSError:
            with suppress(OSError):
                os.truncate(file.fileno(), before)
            self.close()
            raise
        if self._size >= self._max_bytes:
            self._rotate()

    def close(self) -> None:
        """Close the file."""
        self._encoder.begin()
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):
                file.close()

    def _rotate(self) -> None:
        self.close()
        files = [self._path.with_name(f"{self._path.name}.{n + 1}") for n in range(self._keep)]
        for older, newer in pairwise(reversed(files)):
            if newer.exists():
                newer.replace(older)
        self._path.replace(files[0])


def _remove_partial_line(path: Path) -> None:
    """Remove a last line without newline, left by a crash: the next line stays whole."""
    with path.open("rb+") as file:
        content = file.read()
        if content and not content.endswith(b"\n"):
            file.truncate(content.rfind(b"\n") + 1)
