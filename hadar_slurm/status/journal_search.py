"""Finds the newest round that names a job, in a journal and its rotated files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path

from hadar_slurm.journal import VERSION, Line, texts_backwards


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
            for name in names if line["version"] == VERSION else ():
                if name in line.get("jobs", {}) or name in line.get("ended", {}):
                    return name, line
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
    return None


def _lines_backwards(path: Path) -> Iterator[bytes]:
    """Yield the whole lines of a journal and of its rotated files, the newest first."""
    if path.exists():
        yield from texts_backwards(path)
    for number in count(1):
        older = path.with_name(f"{path.name}.{number}")
        if not older.exists():
            return
        yield from texts_backwards(older)
