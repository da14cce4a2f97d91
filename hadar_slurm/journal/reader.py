"""Reads the journal's files, forwards and from the end; readers get whole lines only."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import count, takewhile
from pathlib import Path

from hadar_slurm.errors import ConfigError
from hadar_slurm.journal.chain import Decoder, head_of
from hadar_slurm.journal.line import Line

_BLOCK = 1 << 20


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


def read_with_older(path: Path, on_damage: Callable[[str], None] | None = None) -> Iterator[Line]:
    """Yield the rounds of a journal's rotated files and of the journal, the oldest first."""
    newest, *older = files_of(path)
    # Right after a rotation the newest is missing, as without a journal.
    files = [newest, *older] if newest.exists() or not older else older
    for file in reversed(files):
        yield from read_journal(file, on_damage)


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
