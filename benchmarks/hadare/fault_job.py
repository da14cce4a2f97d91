"""A training in copies as processes, and its faults."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any

import fault_copy
from fault_record import Fault, Run, Scale

SCALE = Scale(slots=5, slot_s=fault_copy.SETTINGS.slot_s, most_copies=4, most_faults=3, lasts_s=4.0)


class Kind(StrEnum):
    """What is done to a job."""

    KILL = "copy killed"
    KILL_ENDING = "copy killed while it makes all one"
    KILL_ALL = "all copies killed"
    FULL = "disk full"
    STALL = "copy stands still"


@dataclass
class Running(Run):
    """A job whose copies are processes of this program."""

    context: Any = None
    copies: dict[int, Any] = field(default_factory=dict)

    def begin(self) -> None:
        """Start all copies."""
        for copy in range(len(self.case.speeds)):
            self.start(copy)

    def start(self, copy: int) -> None:
        """Start a copy."""
        process = self.context.Process(target=fault_copy.train, args=(self.job, copy), daemon=True)
        process.start()
        self.copies[copy] = process

    def signal(self, copy: int, number: signal.Signals) -> bool:
        """Send a copy a signal, and return whether it was there."""
        process = self.copies.get(copy)
        if process is None or not process.is_alive():
            return False
        os.kill(process.pid, number)
        return True

    def hit(self, fault: Fault) -> None:
        """Inject a fault."""
        match fault.kind:
            case Kind.KILL:
                self._kill(fault, [fault.copy])
            case Kind.KILL_ALL:
                self._kill(fault, sorted(self.copies))
            case Kind.KILL_ENDING:
                self.hit_ending(fault)
            case Kind.STALL:
                if self.signal(fault.copy, signal.SIGSTOP):
                    fault.victims, fault.came = (fault.copy,), f"copy {fault.copy}"
                    self.soon(fault.lasts_s, partial(self._go_on, fault))
                else:
                    fault.came = f"copy {fault.copy} was not there"
            case Kind.FULL:
                self.hit_full(fault, self.job.directory, sorted(self.copies))

    def _kill(self, fault: Fault, copies: Sequence[int]) -> None:
        there = tuple(copy for copy in copies if self.signal(copy, signal.SIGKILL))
        fault.victims = there
        fault.came = f"copies {', '.join(map(str, there))}" if there else "none was there"
        for copy in there:
            self.copies.pop(copy).join()
            self.soon(fault.lasts_s, partial(self.start, copy))

    def _go_on(self, fault: Fault) -> None:
        self.signal(fault.copy, signal.SIGCONT)
        self.goes_on(fault)

    def watch(self) -> None:
        """Find copies that were killed while they averaged, and those that failed by themselves."""
        for copy, process in list(self.copies.items()):
            if process.exitcode in (None, 0):
                continue
            self.copies.pop(copy)
            died = self.job.notes / f"died-{copy}"
            if process.exitcode != -signal.SIGKILL or not died.exists():
                self.broken.append(f"copy {copy} ended with status {process.exitcode}")
                continue
            died.unlink()
            self.soon(self.died_ending(copy).lasts_s, partial(self.start, copy))

    def is_over(self) -> bool:
        """Return whether no copy runs and none is to be started."""
        alive = any(process.exitcode is None for process in self.copies.values())
        return not alive and (self.is_done or (not self.agenda and not self.copies))
