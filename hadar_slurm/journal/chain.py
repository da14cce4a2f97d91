"""The text of lines: whole ones and differences, each with a checksum of its chain.

The lines of a mode are a chain: a whole line, and differences, each to the line before. A long
whole line is written as the difference to nothing, which is shorter. `crc` is the CRC-32 of the
line's text before it, continued from that of the line before (a whole line's begins at 0). So a
line that is damaged, or whose predecessor is damaged or missing, is noticed, and the next whole
line begins another chain.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from zlib import crc32

from hadar_slurm.errors import ConfigError
from hadar_slurm.journal.difference import DAMAGE, WrittenTables, difference, follow
from hadar_slurm.journal.line import VERSION, VERSIONS, Line

# A line shorter than this is written as it is: journals of small sites and simulations are plain.
PLAIN_BYTES = 16_000
# Differences after a whole line: at most this multiple of its length, and this number of them.
_MOST_LENGTHS = 6.0
_MOST_STEPS = 1_000
# A longer difference, as a share of the whole line, is not worth it.
_MOST_SHARE = 0.5

# `hadard` and `hadar simulate` write these fields first, in this form.
_HEAD = re.compile(rb'\{"version":%d,(?:"step":(\d+),)?(?:"mode":"([^"\\]*)",)?' % VERSION)
_TIME = re.compile(rb'"round":\d+,"time_s":([^,]+),')
_SEAL = re.compile(rb',"crc":"([0-9a-f]{8})"\}')
_SEAL_BYTES = len(b',"crc":"00000000"}')

Changed = Mapping[str, Collection[str]] | None


@dataclass(slots=True)
class _Chain:
    """The chain of a mode as written so far; `state` is None after a plain line."""

    state: WrittenTables | None
    crc: int
    whole_bytes: int
    # Lines and bytes since the whole line.
    step: int = 0
    bytes: int = 0
    is_due: bool = False


@dataclass(slots=True)
class Encoder:
    """The texts of successive lines: differences where whole lines would have `plain_bytes`."""

    plain_bytes: int = PLAIN_BYTES
    _chains: dict[str, _Chain] = field(default_factory=dict)

    def begin(self) -> None:
        """Let the next line of every mode be whole: another file begins."""
        self._chains.clear()

    def text_of(self, line: Line) -> bytes:
        """Return a line's text with its newline."""
        mode = str(line.get("mode", ""))
        chain = self._chains.get(mode)
        text = self._difference(chain, line) if chain else None
        if text is None:
            if chain is None or not chain.is_due:
                # Whole lines of all modes are close together, for those who read backwards.
                for other in self._chains.values():
                    other.is_due = other.step > 0
            text, state = self._whole(line)
            self._chains[mode] = _Chain(state, _crc_of(text), len(text))
        return text + b"\n"

    def _difference(self, chain: _Chain, line: Line) -> bytes | None:
        """Return a line's text as a difference, None if it is to be whole."""
        if chain.state is None or chain.is_due or chain.step >= _MOST_STEPS:
            return None
        tree = difference(chain.state, line)
        text = _sealed(_head(line, chain.step + 1) | tree, chain.crc)
        length = chain.bytes + len(text)
        if len(text) > _MOST_SHARE * chain.whole_bytes:
            return None
        # A difference that does not give the line again is never written.
        if length > _MOST_LENGTHS * chain.whole_bytes or follow(chain.state, tree) != line:
            return None
        chain.crc, chain.step, chain.bytes = _crc_of(text), chain.step + 1, length
        return text

    def _whole(self, line: Line) -> tuple[bytes, WrittenTables | None]:
        """Return a line's text as a whole, and the state after it if differences may follow."""
        state, tree = WrittenTables(), difference(WrittenTables(), line)
        text = _sealed(_head(line, 0) | tree)
        is_short = len(text) < self.plain_bytes
        plain = _sealed(_head(line) | line) if is_short else b""
        if (is_short and len(plain) < self.plain_bytes) or follow(state, tree) != line:
            return plain or _sealed(_head(line) | line), None
        return text, state


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
            self._chains[mode] = _Read(None, _crc_of(text))
            return tree
        try:
            line = follow(chain.state, tree, keeps=keeps)
        except DAMAGE as error:
            raise ConfigError(f"not a journal line: {error!r}") from error
        self._chains[mode] = _Read(chain.state, _crc_of(text))
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


def _head(line: Line, step: int | None = None) -> Line:
    """Return the fields that come first in a line's text."""
    mode = {"mode": line["mode"]} if "mode" in line else {}
    return {"version": line["version"], **({} if step is None else {"step": step}), **mode}


def _sealed(tree: Line, before: int = 0) -> bytes:
    text = json.dumps(tree, separators=(",", ":")).encode()[:-1]
    return text + b',"crc":"%08x"}' % crc32(text, before)


def _is_sealed(text: bytes, before: int) -> bool:
    """Return whether a text's checksum is right; `before` is that of the line before."""
    if not _SEAL.fullmatch(text, max(0, len(text) - _SEAL_BYTES)):
        return False
    return _crc_of(text) == crc32(memoryview(text)[:-_SEAL_BYTES], before)


def _crc_of(text: bytes) -> int:
    return int(text[-10:-2], 16)
