"""Finds the newest round that names a job, in a journal and its rotated files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path

from hadar_slurm.errors import ConfigError
from hadar_slurm.journal import Line
from hadar_slurm.journal.decoder import Decoder
from hadar_slurm.journal.reader import chains_backwards, files_of


def newest_with(path: Path, names: Sequence[str]) -> tuple[str, Line] | None:
    """Return the newest line with one of these jobs, alive or ended, and the job's name, or None.

    Damaged lines are skipped. Raises OSError if a file cannot be read.
    """
    # A job is named where it is new: in a whole line, or the difference of its first round.
    marks = [json.dumps(name).encode() for name in names]
    files = (file for file in files_of(path) if file.exists())
    for texts in chain.from_iterable(map(chains_backwards, files)):
        if any(mark in text for text in texts for mark in marks) and (
            found := _newest_of(texts, names)
        ):
            return found
    return None


def _newest_of(texts: Sequence[bytes], names: Sequence[str]) -> tuple[str, Line] | None:
    places = [place for place, name, _ in _with_names(texts, names) if name]
    if not places:
        return None
    *_, (_, name, line) = _with_names(texts[: places[-1] + 1], names)
    return name, line


def _with_names(texts: Sequence[bytes], names: Sequence[str]) -> Iterator[tuple[int, str, Line]]:
    """Yield each sound line's place and the first name that it has, "" if none.

    A line is right until the next one is yielded.
    """
    decoder = Decoder()
    for place, text in enumerate(texts):
        with suppress(ConfigError, TypeError):
            line = decoder.line_of(text, keeps=False) or {}
            tables = (line.get("jobs", {}), line.get("ended", {}))
            yield place, next((n for n in names if any(n in t for t in tables)), ""), line
