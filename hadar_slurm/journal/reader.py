"""Reads the journal's files, forwards and from the end; readers get whole lines only."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import count, takewhile
from pathlib import Path

from hadar_slurm.errors import ConfigError
from hadar_slurm.journal.decoder import Changed, Decoder, head_of, time_of
from hadar_slurm.journal.line import Line

_BLOCK = 1 << 20
_BEGIN_BYTES = 500
# Clocks are set back by less.
_CLOCK_STEP_S = 3600.0


def read_journal(path: Path, on_damage: Callable[[str], None] | None = None) -> Iterator[Line]:
    """Yield the rounds of a journal; a last line cut off by a crash is left out.

    So are differences ahead of the first whole line, in a file without its beginning. A damaged
    line raises ConfigError, or is left out and told to `on_damage`.
    """
    decoder = Decoder()
    with path.open("rb") as file:
        for number, text in enumerate(file, start=1):
            if not text.endswith(b"\n"):
                return
            try:
                line = decoder.line_of(text)
            except ConfigError as error:
                told = f"{path}:{number}: {error}"
                if on_damage is None:
                    raise ConfigError(told) from error
                on_damage(told)
                continue
            if line is not None:
                yield line


def read_period(
    path: Path,
    on_damage: Callable[[str], None],
    *,
    first_s: float = -math.inf,
    last_s: float = math.inf,
) -> Iterator[tuple[Line, Changed]]:
    """Yield the rounds of a period in a journal and its rotated files, the oldest first.

    A line is right until the next one is yielded. With it comes what may have changed since the one
    before of its mode, as in `Decoder.changed`. Damaged lines are left out and told to `on_damage`;
    lines that no line of the period needs are not read, and theirs is not found.
    """
    files: list[Path] = []
    for file in _present_files(path):
        files.append(file)
        begin_s = _begin_s(file)
        if begin_s is not None and begin_s < first_s - _CLOCK_STEP_S:
            break
    for file in reversed(files):
        yield from _period_of(file, on_damage, first_s, last_s)


def _period_of(
    path: Path, on_damage: Callable[[str], None], first_s: float, last_s: float
) -> Iterator[tuple[Line, Changed]]:
    decoder = Decoder()
    # By mode, the lines outside the period since the last whole one or the last one yielded.
    skipped: dict[str, list[bytes]] = {}
    # The modes of lines yielded, and whether these had what the next one's changes are to.
    known: dict[str, bool] = {}
    with path.open("rb") as file:
        for number, text in enumerate(file, start=1):
            if not text.endswith(b"\n"):
                return
            mode, is_whole = head_of(text)
            if is_whole:
                skipped.pop(mode, None)
            time_s = time_of(text)
            if time_s is not None and not first_s <= time_s <= last_s:
                skipped.setdefault(mode, []).append(text)
                continue
            needed = skipped.pop(mode, ())
            for earlier in needed:
                # If this line needs it, its damage is found here.
                with suppress(ConfigError):
                    decoder.line_of(earlier, keeps=mode in known)
            try:
                line = decoder.line_of(text, keeps=False)
            except ConfigError as error:
                on_damage(f"{path}:{number}: {error}")
                continue
            if line is not None and first_s <= line["time_s"] <= last_s:
                changed = None if needed or not known.get(mode) else decoder.changed
                known[mode] = changed is not None or "jobs" in line
                yield line, changed


def _begin_s(path: Path) -> float | None:
    """Return the time of a file's first line, None if it is not found."""
    with path.open("rb") as file:
        return time_of(file.read(_BEGIN_BYTES))


def _present_files(path: Path) -> list[Path]:
    """Return a journal's files, the newest first."""
    newest, *older = files_of(path)
    # Right after a rotation the newest is missing, as without a journal.
    return [newest, *older] if newest.exists() or not older else older


def read_last(path: Path, number: int) -> list[Line]:
    """Return up to `number` of the last rounds, the oldest first, reading only the file's end.

    Right after a rotation they are in the rotated file. Without a file there are none. Raises
    ConfigError if one of them, or a line that it needs, is damaged.
    """
    found: list[Line] = []
    for file in (path, path.with_name(f"{path.name}.1")):
        with suppress(FileNotFoundError):
            for texts in chains_backwards(file) if len(found) < number else ():
                try:
                    found = _last_of(texts, number - len(found)) + found
                except ConfigError as error:
                    raise ConfigError(f"{file}: near its end: {error}") from error
                if len(found) >= number:
                    break
    return found


def _last_of(texts: Sequence[bytes], number: int) -> list[Line]:
    """Return up to `number` of the last lines of chains."""
    decoder = Decoder()
    for text in texts[:-number]:
        # If one of the last lines needs this one, its damage is found there.
        with suppress(ConfigError):
            decoder.line_of(text, keeps=False)
    found = [decoder.line_of(text) for text in texts[-number:]]
    return [line for line in found if line is not None]


def files_of(path: Path) -> Iterator[Path]:
    """Yield a journal's path and its rotated files, the newest first."""
    yield path
    numbered = (path.with_name(f"{path.name}.{number}") for number in count(1))
    yield from takewhile(Path.exists, numbered)


def chains_backwards(path: Path) -> Iterator[list[bytes]]:
    """Yield a file's lines from its end in groups that can be read alone, each in order.

    Each begins with a whole line of every mode that has differences in it.
    """
    return (texts for _, texts in _groups_backwards(path))


def tail_begin(path: Path, most: int, *, least: int = 0) -> int:
    """Return where the groups of `chains_backwards` begin that fit in a file's last `most` bytes.

    At least as many as `least` groups are counted; the file's size if there are none.
    """
    size = found = path.stat().st_size
    for number, (begin, _) in enumerate(_groups_backwards(path)):
        if number >= least and size - begin > most:
            break
        found = begin
    return found


def _groups_backwards(path: Path) -> Iterator[tuple[int, list[bytes]]]:
    """Yield the groups of `chains_backwards`, each with its place in the file."""
    group: list[bytes] = []
    # The modes whose whole line is still to come.
    open_modes: set[str] = set()
    begin = 0
    for begin, text in _texts_backwards(path):
        mode, is_whole = head_of(text)
        group.append(text)
        (open_modes.discard if is_whole else open_modes.add)(mode)
        if not open_modes:
            yield begin, group[::-1]
            group = []
    if group:
        yield begin, group[::-1]


def _texts_backwards(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a file that have a newline, the last one first, with their places."""
    with path.open("rb") as file:
        left = end = file.seek(0, os.SEEK_END)
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
                    begin = end - len(text)
                    if is_whole:
                        yield begin, text
                    is_whole, end = True, begin - 1
            parts.append(first)
        if is_whole:
            yield 0, b"".join(reversed(parts))
