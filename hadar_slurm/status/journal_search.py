"""Finds the newest round that names a job, in a journal and its rotated files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from hadar_slurm.journal import VERSION, Line, files_of, texts_backwards


def newest_with(path: Path, names: Sequence[str]) -> tuple[str, Line] | None:
    """Return the newest line with one of these jobs, alive or ended, and the job's name, or None.

    Damaged lines are skipped. Raises OSError if a file cannot be read.
    """
    marks = [f"{json.dumps(name)}:".encode() for name in names]
    files = (file for file in files_of(path) if file.exists())
    for text in chain.from_iterable(map(texts_backwards, files)):
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
