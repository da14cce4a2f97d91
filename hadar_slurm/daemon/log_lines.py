"""The form of hadard's log: one line a message, whatever text of a user is in it."""

from __future__ import annotations

import logging
import sys

# Of a longer message the rest is left out.
_MOST_CHARACTERS = 4000


class _Line(logging.Formatter):
    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        """Return the line, with control characters escaped and at most _MOST_CHARACTERS long."""
        text = super().formatMessage(record)
        if len(text) > _MOST_CHARACTERS:
            text = f"{text[:_MOST_CHARACTERS]}..."
        return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def log_to_stderr(level: str) -> None:
    """Log messages from this level on, such as `info`."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Line("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler])
