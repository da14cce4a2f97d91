"""The form of hadard's log: one line a message, whatever text of a user is in it."""

from __future__ import annotations

import logging
import sys
from typing import Any


class _Line(logging.Formatter):
    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        """Return the line, as `_legible`."""
        return _legible(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802
        """Return a traceback, indented, so that no line looks like a message."""
        return "\n".join(f"  {_legible(s)}" for s in super().formatException(ei).split("\n"))


def _legible(line: str, most: int = 4000) -> str:
    line = line[:most] + "..." * (len(line) > most)
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)


def log_to_stderr(level: str) -> None:
    """Log messages from this level on, such as `info`."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Line("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler])
