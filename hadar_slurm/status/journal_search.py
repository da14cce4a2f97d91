"""Finds the newest round that names a job, in a journal and its rotated files."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from hadar_slurm.journal import VERSION, Line

_BLOCK = 1 << 20


def newest_with(path: Path, names: Sequence[str]) -> tuple[str, Line] | None:
    """Return the newest line with one of these jobs, alive or ended, and the job's name, or None.

    Damaged lines are skipped. Raises OSError if a file cannot be read.
    """
    marks = [f"{json.dumps(name)}:".encode() for name in names]
    for text in _lines_backwards(path):
        if not any(mark in text for mark in marks):
            continue
        try:
            line = json.loads(text)
            if line["version"] != VERSION:
                continue
            for name in names:
                if name in line.get("jobs", {}) or name in line.get("ended", {}):
                    return name, line
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
    return None


def _lines_backwards(path: Path) -> Iterator[bytes]:
    """Yield the whole lines of a journal and of its rotated files, the newest first."""
    number, file = 0, path
    while number == 0 or file.exists():
        if file.exists():
            yield from _of_file(file)
        number += 1
        file = path.with_name(f"{path.name}.{number}")


def _of_file(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        left = file.seek(0, os.SEEK_END)
        # Text after the last newline is still being written, or was cut off.
        is_whole = False
        parts: list[bytes] = []
        while left > 0:
            start = max(0, left - _BLOCK)
            file.seek(start)
            first, *others = file.read(left - start).split(b"\n")
            left = start
            if others:
                others[-1] += b"".join(reversed(parts))
                parts = []
                for text in reversed(others):
                    if is_whole:
                        yield text
                    is_whole = True
            parts.append(first)
        if is_whole:
            yield b"".join(reversed(parts))
