"""What is asked of a copy: to save, to leave, and to end the whole training."""

from __future__ import annotations

import logging
import signal
import threading
from dataclasses import dataclass, field
from typing import Any

from hadar_slurm.runtime.intervals.member import Member

log = logging.getLogger(__name__)


@dataclass(eq=False)
class CopySignals:
    """The signals that a copy has received, and why it wants the training to end, "" if not."""

    member: Member
    asked: set[int] = field(default_factory=set)
    stop_asked: str = ""
    _has_said_stop: bool = False
    _handlers: dict[int, Any] = field(default_factory=dict)

    def listen(self) -> None:
        """Note SIGUSR1 and SIGTERM from now on, in the main thread."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGUSR1, signal.SIGTERM):
                self._handlers[number] = signal.signal(number, self._note)

    def end(self) -> None:
        """Give the signals back."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: object) -> None:
        self.asked.add(number)

    def stop(self, reason: str) -> None:
        """Ask all copies to end the training; the first reason counts."""
        self.stop_asked = self.stop_asked or reason or "no reason was given"
        log.info("asks all copies to stop: %s", self.stop_asked)
        self.say_stop()

    def say_stop(self) -> None:
        """Ask the other copies and processes to stop; a failed write is to be repeated."""
        if not self.stop_asked or self._has_said_stop:
            return
        try:
            self.member.slots.ask_to_stop(self.stop_asked)
            self._has_said_stop = True
        except OSError as error:
            log.warning("the other copies do not know yet: %s", error)
