"""Whole lines from the texts of a journal, in order; damage is noticed (`chain.py`)."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from zlib import crc32

from hadar_slurm.errors import ConfigError
from hadar_slurm.journal.chain import crc_of
from hadar_slurm.journal.line import VERSION, VERSIONS, Line
from hadar_slurm.journal.tables import DAMAGE, WrittenTables, follow

# `hadard` and `hadar simulate` write these fields first, in this form.
_HEAD = re.compile(rb'\{"version":%d,(?:"step":(\d+),)?(?:"mode":"([^"\\]*)",)?' % VERSION)
_TIME = re.compile(rb'"round":\d+,"time_s":([^,]+),')
_SEAL = re.compile(rb',"crc":"([0-9a-f]{8})"\}')
_SEAL_BYTES = len(b',"crc":"00000000"}')
Changed = Mapping[str, Collection[str]] | None


@dataclass(slots=True)
class _Read:
    """The chain of a mode as read so far; `state` is None after a plain line."""

    state: WrittenTables | None
    crc: int


class Decoder:
    """The whole lines for the texts of one file, or of a journal's files, given in order."""

    def __init__(self) -> None:
        # By table, the rows of the last line that are not as in the line before of its mode
        # (`WrittenTables.changed`); None: any.
        self.changed: Changed = None
        # None after damage.
        self._chains: dict[str, _Read | None] = {}

    def line_of(self, text: bytes, *, keeps: bool = True) -> Line | None:
        """Return the whole line for a text; None for a difference to a line before the first text.

        Without `keeps` this is faster, and the line is right until the next call only. Raises
        ConfigError if the text is damaged, or is a difference to such a line.
        """
        text, self.changed = text.rstrip(b"\n"), None
        try:
            tree: Line = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"not a journal line: {error}") from error
        version = tree.get("version") if type(tree) is dict else None
        # True == 1
        if version not in VERSIONS or isinstance(version, bool):
            raise ConfigError(f"journal version {version!r}, this reads {VERSION} and older")
        step, crc, mode = tree.pop("step", None), tree.pop("crc", None), str(tree.get("mode", ""))
        chain = self._chains.get(mode) if step else _Read(WrittenTables(), 0)
        if step and mode not in self._chains:
            return None
        # Until this line is found to be sound.
        self._chains[mode] = None
        if step is None and crc is None:
            # By another program, or an earlier version.
            return tree
        if chain is None or chain.state is None or not _is_sealed(text, chain.crc):
            raise ConfigError("it, or a line before it, is damaged or missing (by its checksum)")
        if step is None:
            self._chains[mode] = _Read(None, crc_of(text))
            return tree
        try:
            line = follow(chain.state, tree, keeps=keeps)
        except DAMAGE as error:
            raise ConfigError(f"not a journal line: {error!r}") from error
        self._chains[mode] = _Read(chain.state, crc_of(text))
        self.changed = chain.state.changed if step else None
        return line


def time_of(text: bytes) -> float | None:
    """Return a line's time, by its beginning; None if it is not found there."""
    head = _HEAD.match(text)
    found = _TIME.match(text, head.end()) if head else None
    try:
        return float(found[1]) if found else None
    except ValueError:
        return None


def head_of(text: bytes) -> tuple[str, bool]:
    """Return a line's mode, by its beginning, and whether it is whole."""
    found = _HEAD.match(text)
    if not found:
        return "", True
    return (found[2] or b"").decode(errors="replace"), found[1] in {None, b"0"}


def _is_sealed(text: bytes, before: int) -> bool:
    """Return whether a text's checksum is right; `before` is that of the line before."""
    if not _SEAL.fullmatch(text, max(0, len(text) - _SEAL_BYTES)):
        return False
    return crc_of(text) == crc32(memoryview(text)[:-_SEAL_BYTES], before)
