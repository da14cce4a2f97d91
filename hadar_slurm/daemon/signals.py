"""The signals that end hadard or have it reload its configuration."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


@dataclass
class Requests:
    """What signals have requested of the daemon."""

    to_end: bool = False
    to_reload: bool = False


@contextmanager
def signal_requests() -> Iterator[Requests]:
    """Record SIGTERM, SIGINT and SIGHUP; the daemon acts on them after its current step."""
    requests = Requests()

    def record(number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            requests.to_reload = True
        else:
            requests.to_end = True

    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = {number: signal.signal(number, record) for number in numbers}
    try:
        yield requests
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
