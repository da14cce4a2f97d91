"""The text of lines: whole ones and differences, each with a checksum of its chain.

The lines of a mode are a chain: a whole line, and differences, each to the line before. A long
whole line is written as the difference to nothing, which is shorter. `crc` is the CRC-32 of the
line's text before it, continued from that of the line before (a whole line's begins at 0). So a
line that is damaged, or whose predecessor is damaged or missing, is noticed, and the next whole
line begins another chain.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from zlib import crc32

from hadar_slurm.journal.difference import difference
from hadar_slurm.journal.line import Line
from hadar_slurm.journal.tables import WrittenTables, follow

# A line shorter than this is written as it is: journals of small sites and simulations are plain.
PLAIN_BYTES = 16_000
# Differences after a whole line: at most this multiple of its length, and this number of them.
_MOST_LENGTHS = 6.0
_MOST_STEPS = 1_000
# A longer difference, as a share of the whole line, is not worth it.
_MOST_SHARE = 0.5


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
            self._chains[mode] = _Chain(state, crc_of(text), len(text))
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
        chain.crc, chain.step, chain.bytes = crc_of(text), chain.step + 1, length
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


def _head(line: Line, step: int | None = None) -> Line:
    """Return the fields that come first in a line's text."""
    mode = {"mode": line["mode"]} if "mode" in line else {}
    return {"version": line["version"], **({} if step is None else {"step": step}), **mode}


def _sealed(tree: Line, before: int = 0) -> bytes:
    text = json.dumps(tree, separators=(",", ":")).encode()[:-1]
    return text + b',"crc":"%08x"}' % crc32(text, before)


def crc_of(text: bytes) -> int:
    """Return the checksum at the end of a line's text."""
    return int(text[-10:-2], 16)
