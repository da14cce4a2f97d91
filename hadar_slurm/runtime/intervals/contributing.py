"""What a copy contributes to an averaging interval: checked, and written as soon as it can be."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from hadar_slurm.runtime.averaging import state
from hadar_slurm.runtime.averaging.ahead import Ahead
from hadar_slurm.runtime.files.records import Contribution
from hadar_slurm.runtime.intervals.member import Member
from hadar_slurm.runtime.intervals.requests import CopySignals

log = logging.getLogger(__name__)

# How often a failed contribution is tried again, in seconds.
_SAVE_EVERY_S = 1.0


@dataclass(eq=False)
class Contributing:
    """The contribution of one copy to the running interval."""

    member: Member
    requests: CopySignals
    # Returns what is trained of the running interval, None between intervals.
    trained: Callable[[], Contribution] | None = None
    is_usable: bool = True  # the newest contribution is finite
    _kept: tuple[Contribution, state.Named] | None = None  # still to be checked and rounded
    _unsaved: tuple[Contribution, state.Named] | None = None  # still to be written
    _save_again_s: float = 0.0

    @property
    def is_saved(self) -> bool:
        """Whether nothing is left to be written."""
        return self._kept is None and self._unsaved is None

    def finish(
        self, part: Contribution, ahead: Ahead | None = None, *, is_leaving: bool = False
    ) -> None:
        """Have a contribution written by the next `save`: only the reason, if it is not finite.

        Where training goes on `ahead`, that also does the rest of the work.
        """
        learner = self.member.learner
        if ahead is None:
            self._pack(part, learner.named(), is_leaving=bool(self.requests.asked) or is_leaving)
        else:
            with_state = learner.exchange.gives_state()
            self._kept = part, ahead.contributed(learner.named(), with_state=with_state)

    def _pack(self, part: Contribution, named: state.Named, *, is_leaving: bool) -> None:
        costs = self.member.costs
        with costs.measure(costs.now.pack_s):
            found, packed = self.member.learner.exchange.contribution(
                part, named, is_leaving=is_leaving
            )
        self.is_usable = not found.fault
        if found.fault:
            message = "slot %d of copy %d counts nothing: %s; its steps are dealt out again"
            log.warning(message, part.slot, part.copy, found.fault)
        self._kept, self._unsaved = None, (found, packed)

    def save(self) -> None:
        """Write the pending contribution; a failed write is tried again."""
        self.requests.say_stop()
        if self._kept is not None:
            self._pack(*self._kept, is_leaving=False)
        if self._unsaved is None or time.monotonic() < self._save_again_s:
            return
        part, named = self._unsaved
        costs = self.member.costs
        try:
            with costs.measure(costs.now.save_s):
                self.member.slots.contribute(part, *named)
            self._unsaved = None
        except OSError as error:
            self._save_again_s = time.monotonic() + _SAVE_EVERY_S
            log.warning("nothing of slot %d is contributed yet: %s", part.slot, error)

    def drop(self) -> None:
        """Forget what is not written: the interval has ended without it."""
        self._kept = self._unsaved = None

    def leave_early(self) -> None:
        """Contribute what was trained of the interval, as the program ends before the job."""
        if self.trained is None:
            return
        part = self.trained()
        if len(part.done) and not self.member.slots.has_ended(part.slot):
            self.finish(part, is_leaving=True)
            self._save_again_s = 0.0
            self.save()
        log.info("ends early, with %d steps of slot %d", len(part.done), part.slot)
