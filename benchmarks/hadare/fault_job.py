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
from fault_copy import Spoil
from fault_record import Fault, Run, Scale

from hadar_slurm.runtime.averaging.modes import TrainingMode

SCALE = Scale(slots=5, slot_s=fault_copy.SETTINGS.slot_s, most_copies=4, most_faults=3, lasts_s=4.0)


class Kind(StrEnum):
    """What is done to a job."""

    KILL = "copy killed"
    KILL_ENDING = "copy killed at the end of a slot"
    KILL_EXCHANGE = "copy killed while gradients are exchanged"
    KILL_ALL = "all copies killed"
    FULL = "disk full"
    STALL = "copy stands still"
    LATE = "copy comes late"
    ASKED = "copy asked to save, then requeued"
    ENDED = "copy cancelled"
    GRADIENTS = "gradients not finite"
    PARAMETERS = "parameters not finite"
    FLIP = "bit of a parameter flipped"
    CUT = "connections cut"


_CANCELLED = 128 + signal.SIGTERM
_SPOILS = {
    Kind.GRADIENTS: Spoil.GRADIENTS,
    Kind.PARAMETERS: Spoil.PARAMETERS,
    Kind.FLIP: Spoil.FLIP,
    Kind.CUT: Spoil.CUT,
}


def kinds_of(mode: str) -> list[Kind]:
    """Return the kinds of faults in a mode: where copies average they have no connections."""
    connected = {Kind.KILL_EXCHANGE, Kind.CUT}
    return [kind for kind in Kind if mode != TrainingMode.AVERAGED or kind not in connected]


@dataclass
class Running(Run):
    """A job whose copies are processes of this program."""

    context: Any = None
    copies: dict[int, Any] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)  # cancelled: these are not started again

    def begin(self) -> None:
        """Start all copies but those that come late."""
        late = {fault.copy for fault in self.case.faults if fault.kind is Kind.LATE and fault.copy}
        for copy in range(len(self.case.speeds)):
            if copy not in late:
                self.start(copy)

    def start(self, copy: int) -> None:
        """Start a copy."""
        process = self.context.Process(target=fault_copy.train, args=(self.job, copy), daemon=True)
        process.start()
        self.copies[copy] = process

    def alive(self) -> set[int]:
        """Return the copies whose processes run."""
        return {copy for copy, process in self.copies.items() if process.is_alive()}

    def signal(self, copy: int, number: signal.Signals) -> bool:
        """Send a copy a signal, and return whether it was there."""
        process = self.copies.get(copy)
        if process is None or not process.is_alive():
            return False
        os.kill(process.pid, number)
        return True

    def hit(self, fault: Fault) -> None:
        """Inject a fault."""
        fault.came, copy = f"copy {fault.copy}", fault.copy
        match fault.kind:
            case Kind.KILL:
                self._kill(fault, [copy])
            case Kind.KILL_ALL:
                self._kill(fault, sorted(self.copies))
            case Kind.KILL_ENDING:
                self.hit_within(fault, "ending")
            case Kind.KILL_EXCHANGE:
                self.hit_within(fault, "exchange")
            case Kind.FULL:
                self.hit_full(fault, self.job.directory, sorted(self.copies))
            case Kind.LATE if copy and copy not in self.copies:
                fault.is_free = True
                self.start(copy)
            case _ if copy not in self.alive():
                fault.came = f"copy {copy} was not there"
            case Kind.STALL:
                self._stall(fault)
            case Kind.ASKED:
                self.signal(copy, signal.SIGUSR1)
                fault.victims = (copy,)
                self.soon(fault.lasts_s, partial(self._requeue, fault))
            case Kind.ENDED if len(self.gone) + 1 < len(self.case.speeds):
                self.gone.add(copy)
                fault.is_free = self.signal(copy, signal.SIGTERM)
            case Kind.ENDED:
                fault.came = "left alone: the last copy"
            case Kind.LATE:
                fault.came = f"copy {copy} was there"
            case _:
                self.hit_step(fault, copy, _SPOILS[Kind(fault.kind)])

    def _kill(self, fault: Fault, copies: Sequence[int]) -> None:
        there = tuple(copy for copy in copies if self.signal(copy, signal.SIGKILL))
        fault.victims = there
        fault.came = f"copies {', '.join(map(str, there))}" if there else "none was there"
        for copy in there:
            self._start_again(copy, fault.lasts_s)

    def _start_again(self, copy: int, after_s: float) -> None:
        self.copies.pop(copy).join()
        self.is_frozen.discard(copy)
        if copy not in self.gone:
            self.soon(after_s, partial(self.start, copy))

    def _stall(self, fault: Fault) -> None:
        """Have a copy stand still, half of the times for longer than until it counts as gone."""
        self.signal(fault.copy, signal.SIGSTOP)
        self.is_frozen.add(fault.copy)
        fault.victims = (fault.copy,)
        lasts_s = 2 * self.job.settings.gone_after_s * fault.lasts_s / SCALE.lasts_s
        fault.came += f", {lasts_s:.1f} s"
        self.soon(lasts_s, partial(self._go_on, fault))

    def _go_on(self, fault: Fault) -> None:
        self.signal(fault.copy, signal.SIGCONT)
        self.is_frozen.discard(fault.copy)
        self.goes_on(fault)

    def _requeue(self, fault: Fault) -> None:
        """Kill a copy that was asked to save, and start it again, as Slurm does."""
        if self.signal(fault.copy, signal.SIGKILL):
            self.goes_on(fault)
            self._start_again(fault.copy, 0.1)
            self.note_loss(fault)

    def watch(self) -> None:
        """Find copies that have ended, and were not to, and those killed within something."""
        for copy, process in list(self.copies.items()):
            if process.exitcode in (None, 0):
                continue
            if process.exitcode == -signal.SIGKILL and (self.job.notes / f"died-{copy}").exists():
                self._start_again(copy, self.died_within(copy).lasts_s)
                continue
            self.copies.pop(copy)
            # It may have been cancelled before it could handle that.
            if copy not in self.gone or process.exitcode not in (_CANCELLED, -signal.SIGTERM):
                self.broken.append(f"copy {copy} ended with status {process.exitcode}")

    def is_over(self) -> bool:
        """Return whether no copy runs and none is to be started."""
        alive = any(process.exitcode is None for process in self.copies.values())
        return not alive and (self.is_done or (not self.agenda and not self.copies))
