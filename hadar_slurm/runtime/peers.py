"""When an averaging interval ends, and which copy ends it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from hadar_slurm.runtime.averaging import state
from hadar_slurm.runtime.averaging.costs import Costs
from hadar_slurm.runtime.averaging.identity import Identity
from hadar_slurm.runtime.averaging.slots import SlotEnd, Slots
from hadar_slurm.runtime.averaging.tensors import TensorFile
from hadar_slurm.runtime.ending import Ending
from hadar_slurm.runtime.membership.lost import Begun
from hadar_slurm.runtime.membership.presence import Doing, Presence
from hadar_slurm.runtime.settings import Settings

log = logging.getLogger(__name__)

# Errors that waiting does not resolve.
_LASTING = (PermissionError, NotADirectoryError)


@dataclass
class Peers:
    """The copies of a job as one of them sees them."""

    slots: Slots
    ending: Ending
    presence: Presence
    settings: Settings
    costs: Costs
    begun: Begun | None = None
    _since: dict[int, float] = field(default_factory=dict)
    _first_given: tuple[int, float] = (-1, 0.0)

    def here(self) -> set[int]:
        """Return the copies that may have a part in a slot that begins now."""
        now_s = time.monotonic()
        self.presence.look(now_s)
        found = self.presence.present(now_s)
        return {copy for copy, doing in found.items() if doing is not Doing.LEAVES}

    def newest(
        self, what: Identity, named: Callable[[], state.Named]
    ) -> tuple[SlotEnd, TensorFile]:
        """Return the end of the newest slot; the first copy makes that of slot 0 as `named`.

        What cannot be read or written is tried again. Raises OtherTrainingError for the end of
        another training, and LostTrainingError where this one has begun and no end can be read.
        """
        looked_s, lost = time.monotonic(), ""
        while True:
            found, why = None, ""
            try:
                with self.costs.measure(self.costs.read_s):
                    found = self.slots.newest()
                if found is not None:
                    self._note_begun()
                else:
                    why = self.begun.evidence() if self.begun else ""
                    if not why and not self._are_gathering():
                        here = dict.fromkeys(self.here(), 0.0)
                        self.ending.begin(what.total_steps, here, named(), what)
                        continue
            except OSError as error:
                log.warning("tried again: %s", error)
                # Others may pass: a full disk, one that stands still.
                why = str(error) if isinstance(error, _LASTING) else ""
            if found is not None:
                return found
            if why and self.begun:
                if why != lost:
                    wait_s = self.settings.lost_after_s
                    log.warning("waits %.0f s for what was trained: %s", wait_s, why)
                lost = why
                if time.monotonic() - looked_s >= self.settings.lost_after_s:
                    raise self.begun.error(why)
            time.sleep(self.settings.poll_s)

    def _note_begun(self) -> None:
        """Note that the training has begun; a failed write is repeated the next time."""
        if self.begun is not None:
            with suppress(OSError):
                self.begun.note()

    def _are_gathering(self) -> bool:
        """Return whether to wait, before the first interval, for copies that are assigned steps."""
        is_early = time.monotonic() < self.presence.joined_s + self.settings.gather_s
        return is_early and bool(self.ending.dealer.awaited() - self.here())

    def is_cut_short(self, end: SlotEnd, age_s: float, left_s: float) -> bool:
        """Return whether the interval after `end` is to end early, in favour of waiting copies.

        These are newcomers, and copies that have trained their share long before the others. The
        interval is `age_s` old, and this copy needs `left_s` for the rest of its share. It ends if
        the waiting time is more than an average costs the training copies; the first copy that
        finds so decides for all. No interval ends so young that averaging would take more than
        `cost_part` of the time.
        """
        if self.slots.is_cut_short(end):
            return True
        here, now_s = self.here(), time.monotonic()
        present = self.presence.present(now_s)
        training = (_dealt(end) & present.keys()) - self.slots.contributors(end)
        idle = {copy for copy, doing in present.items() if doing is Doing.WAITS} - training
        waiting = idle & self.ending.dealer.takers(here)
        self._since = {copy: self._since.get(copy, now_s) for copy in waiting}
        cost_s, gather_s = self.costs.total_s, self.settings.gather_s
        if (
            not waiting
            or now_s - min(self._since.values()) < gather_s
            or age_s < max(gather_s, cost_s / self.settings.cost_part)
            or len(waiting) * left_s <= len(training) * cost_s
        ):
            return False
        names = ", ".join(map(str, sorted(waiting)))
        log.info("slot %d ends early for those who wait: %s", end.slot + 1, names)
        try:
            self.slots.cut_short(end)
        except OSError as error:
            log.warning("the others are not told: %s", error)
        return True

    def end_if_ours(self, end: SlotEnd, begun_s: float) -> bool:
        """End the interval after `end` if all have contributed, are gone or late.

        The first copy in order does, after waiting since `begun_s`. Returns False if `end` is no
        longer the newest end: what was trained from it is then discarded.
        """
        slot = end.slot + 1
        here, now_s = self.here(), time.monotonic()
        given = self.slots.contributors(end)
        present = self.presence.present(now_s).keys()
        waits_for = _dealt(end) & present - given
        if (waits_for and self._is_patient(end, begun_s, now_s, has_any=bool(given))) or (
            self.slots.has_ended(slot)
        ):
            return True
        order = [copy for copy in end.dealt if copy in given] + sorted(here)
        if next((copy for copy in order if copy in here), None) == self.presence.copy:
            return self.ending.end(end, given, here)
        return True

    def wait_for_us_alone(self, end: SlotEnd) -> bool:
        """Return whether the slot after `end` could end, were it not for our contribution."""
        self.here()
        given = self.slots.contributors(end)
        present = self.presence.present(time.monotonic()).keys()
        return bool(given) and _dealt(end) & present - given == {self.presence.copy}

    def _is_patient(self, end: SlotEnd, begun_s: float, now_s: float, *, has_any: bool) -> bool:
        """Return whether to wait for present copies that have not contributed to the interval.

        For `patience` of its length after the first contribution; one length more without any.
        """
        if has_any and self._first_given[0] != end.slot:
            self._first_given = (end.slot, now_s)
        since_s = self._first_given[1] if has_any else begun_s
        longest_s = self.settings.patience * end.length_s + (0.0 if has_any else end.length_s)
        return now_s - since_s < max(self.settings.gone_after_s, longest_s)


def _dealt(end: SlotEnd) -> set[int]:
    """Return the copies that have steps to train in the slot after `end`."""
    return {copy for copy, steps in end.dealt.items() if len(steps)}
