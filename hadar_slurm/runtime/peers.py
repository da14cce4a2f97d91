"""When an averaging interval ends, and which copy ends it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from hadar_slurm.runtime.averaging import state
from hadar_slurm.runtime.averaging.costs import Costs
from hadar_slurm.runtime.ending import Ending
from hadar_slurm.runtime.files.identity import Identity
from hadar_slurm.runtime.files.records import SlotEnd
from hadar_slurm.runtime.files.slots import Slots
from hadar_slurm.runtime.files.tensors import TensorFile
from hadar_slurm.runtime.membership.lost import Begun
from hadar_slurm.runtime.membership.presence import Doing, Presence
from hadar_slurm.runtime.settings import Settings

log = logging.getLogger(__name__)

# Errors that waiting does not resolve.
_LASTING = (PermissionError, NotADirectoryError)


@dataclass
class Peers:
    """What one copy of a job knows of the other copies."""

    slots: Slots
    ending: Ending
    presence: Presence
    settings: Settings
    costs: Costs
    begun: Begun | None = None
    _since: dict[int, float] = field(default_factory=dict)
    _first_given: tuple[int, float] = (-1, 0.0)
    _first_seen: tuple[int, float] = (-1, 0.0)  # the newest end, by its slot, and when it was read

    def here(self) -> set[int]:
        """Return the copies that may take part in a slot that begins now."""
        now_s = time.monotonic()
        self.presence.look(now_s)
        found = self.presence.present(now_s)
        return {copy for copy, doing in found.items() if doing is not Doing.LEAVES}

    def newest(
        self, what: Identity, named: Callable[[], state.Named]
    ) -> tuple[SlotEnd, TensorFile]:
        """Return the end of the newest slot; the first copy writes that of slot 0 from `named`.

        Failed reads and writes are repeated. Raises LostTrainingError where this training has
        begun and no end can be read.
        """
        begun_s, lost, lost_after_s = time.monotonic(), "", self.settings.lost_after_s
        while True:
            try:
                with self.costs.measure(self.costs.now.read_s):
                    found = self.slots.newest()
                if found is not None:
                    if found[0].slot != self._first_seen[0]:
                        self._first_seen = (found[0].slot, time.monotonic())
                    if self.begun is not None:
                        with suppress(OSError):  # repeated the next time
                            self.begun.note()
                    return found
                why = self.begun.evidence() if self.begun else ""
                if not why and not self._are_gathering():
                    here = dict.fromkeys(self.here(), 0.0)
                    self.ending.begin(what.total_steps, here, named(), what)
                    continue
            except OSError as error:
                log.warning("tried again: %s", error)
                # Other errors may pass: a full disk, a file system that does not answer.
                why = str(error) if isinstance(error, _LASTING) else ""
            if why and self.begun:
                if why != lost:
                    log.warning("waits %.0f s for what was trained: %s", lost_after_s, why)
                lost = why
                if time.monotonic() - begun_s >= lost_after_s:
                    raise self.begun.error(why)
            time.sleep(self.settings.poll_s)

    def _are_gathering(self) -> bool:
        """Return whether to wait, before the first interval, for copies that are assigned steps."""
        is_early = time.monotonic() < self.presence.joined_s + self.settings.gather_s
        return is_early and bool(self.ending.dealer.awaited() - self.here())

    def is_cut_short(self, end: SlotEnd, age_s: float, left_s: float) -> bool:
        """Return whether the interval after `end` is to end early, in favour of waiting copies.

        These are new copies, and copies that have trained their share early. The interval is
        `age_s` old, and this copy needs `left_s` for the rest of its share. The interval ends if
        the waiting time is more than an average costs the training copies; the first copy that
        finds so decides for all. No interval ends so early that averaging would take more than
        `cost_part` of the time, or with a delay longer than the interval.
        """
        if self.slots.is_cut_short(end):
            return True
        here, now_s = self.here(), time.monotonic()
        present = self.presence.present(now_s)
        training = (_dealt(end) & present.keys()) - self.slots.contributors(end)
        idle = {copy for copy, doing in present.items() if doing is Doing.WAITS} - training
        waiting = idle & self.ending.dealer.takers(here)
        self._since = {copy: self._since.get(copy, now_s) for copy in waiting}
        costs, gather_s = self.costs, self.settings.gather_s
        cost_s = costs.blocked_s if end.ahead else costs.total_s
        shortest_s = costs.total_s if end.ahead else costs.total_s / self.settings.cost_part
        if (
            not waiting
            or now_s - min(self._since.values()) < gather_s
            or age_s < max(gather_s, shortest_s)
            or len(waiting) * left_s <= len(training) * cost_s
        ):
            return False
        names = ", ".join(map(str, sorted(waiting)))
        log.info("slot %d ends early for waiting copies: %s", end.slot + 1, names)
        try:
            self.slots.cut_short(end)
        except OSError as error:
            log.warning("the other copies do not know yet: %s", error)
        return True

    def end_if_ours(self, end: SlotEnd, begun_s: float) -> bool:
        """End the interval after `end` if all copies have contributed, are gone or late.

        The first copy in order does, after waiting since `begun_s`. Returns False if `end` is no
        longer the newest end: what was trained from it is then discarded.
        """
        here, given = self.here(), self.slots.contributors(end)
        if end.together and Doing.TRAINS in self.presence.present(time.monotonic()).values():
            return True  # those that train synchronously end it
        is_patient = self._missing(end, given) and self._is_patient(end, begun_s, bool(given))
        if is_patient or self.slots.has_ended(end.slot + 1):
            return True
        order = [copy for copy in end.dealt if copy in given] + sorted(here)
        if next((copy for copy in order if copy in here), None) == self.presence.copy:
            return self.ending.end(end, given, here)
        return True

    def have_all_but_this(self, end: SlotEnd) -> bool:
        """Return whether the slot after `end` could end but for this copy's contribution."""
        self.here()
        given = self.slots.contributors(end)
        return bool(given) and self._missing(end, given) == {self.presence.copy}

    def _missing(self, end: SlotEnd, given: set[int]) -> set[int]:
        """Return the present copies that have steps to contribute and are not in `given`."""
        return (_dealt(end) & self.presence.present(time.monotonic()).keys()) - given

    def _is_patient(self, end: SlotEnd, begun_s: float, has_any: bool) -> bool:
        """Return whether to wait for present copies that have not contributed to the interval.

        For `patience` of its length after the first contribution, and not before it has lasted for
        its length: a copy with few steps contributes early. One length more without any.
        """
        now_s = time.monotonic()
        if has_any and self._first_given[0] != end.slot:
            self._first_given = (end.slot, now_s)
        since_s = self._first_given[1] if has_any else begun_s
        if has_any and self._first_seen[0] == end.slot:
            since_s = max(since_s, self._first_seen[1] + end.length_s)
        longest_s = self.settings.patience * end.length_s + (0.0 if has_any else end.length_s)
        return now_s - since_s < max(self.settings.gone_after_s, longest_s)


def _dealt(end: SlotEnd) -> set[int]:
    """Return the copies that have steps to train in the slot after `end`."""
    return {copy for copy, steps in end.dealt.items() if len(steps)}
