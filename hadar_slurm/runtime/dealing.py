"""The steps of each copy in the next averaging interval, and how long that lasts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from hadar_slurm import handoff
from hadar_slurm.runtime.averaging.ranges import Ranges, deal
from hadar_slurm.runtime.averaging.slots import SlotEnd
from hadar_slurm.runtime.settings import Settings

log = logging.getLogger(__name__)

# An interval is at most this factor longer than the last, unless more is asked for.
_GROWTH = 2.0


@dataclass(frozen=True)
class Dealer:
    """Deals out steps; `assignment` is the file in which hadard assigns the copies' steps."""

    settings: Settings
    assignment: Path | None
    # Whether these copies train the interval after an end synchronously.
    is_together: Callable[[SlotEnd, Collection[int]], bool] = lambda end, here: False

    def deal(
        self, end: SlotEnd, here: Mapping[int, float], cost_s: float, *, is_averaged: bool = False
    ) -> SlotEnd:
        """Return the end of a slot with the next one dealt out among the copies that are `here`.

        By the assignment, as far as its copies are present; else by the speeds, in steps/s, that
        `here` gives, unmeasured copies counting as average ones. Where a consolidation takes
        `cost_s`, more than its part of the time, the slot is longer and quotas are larger, at most
        twice as long as the one before: a slow disk may have delayed a single one. Copies get the
        steps of `end.ahead`, which they may have trained. Nothing is dealt for an interval that
        copies train synchronously, which is none if it `is_averaged`.
        """
        if end.is_complete or not here:
            return replace(end, ahead={}, together=False)
        assignment = self._assignment()
        asked_s = assignment.slot_s if assignment else self.settings.slot_s
        # A length of 0 says that the quotas alone end a slot.
        longest_s = _GROWTH * end.length_s
        worth_s = min(cost_s / self.settings.cost_part, longest_s)
        length_s = max(asked_s, worth_s) if asked_s > 0 else 0.0
        if not is_averaged and self.is_together(end, here):
            return replace(end, ahead={}, together=True, length_s=length_s)
        weights: Mapping[int, float] = _assigned(assignment, here.keys())
        if weights:
            budget = sum(weights.values()) * (length_s / asked_s if length_s else 1.0)
        else:
            # A copy not yet measured has the mean speed of the measured ones.
            known = [speed for speed in here.values() if speed > 0]
            usual = sum(known) / len(known) if known else 1.0
            weights = {copy: speed or usual for copy, speed in here.items()}
            # At first a step each, to see how fast they are.
            budget = max(len(here), sum(weights.values()) * length_s if known else 0.0)
        quotas = handoff.shares(min(round(budget), len(end.todo)), weights)
        dealt = deal(end.todo, quotas, end.ahead)
        fastest_first = sorted(dealt, key=lambda copy: (-len(dealt[copy]), copy))
        return replace(
            end,
            dealt={copy: dealt[copy] for copy in fastest_first},
            ahead=self._ahead(end.todo, dealt),
            together=False,
            length_s=length_s,
        )

    def takers(self, here: Collection[int]) -> set[int]:
        """Return the copies `here` that would be dealt steps now."""
        return set(_assigned(self._assignment(), here)) or set(here)

    def awaited(self) -> set[int]:
        """Return the copies that the assignment gives steps, present or not."""
        assignment = self._assignment()
        return set(_assigned(assignment, assignment.quotas)) if assignment else set()

    def _ahead(self, todo: Ranges, dealt: Mapping[int, Ranges]) -> dict[int, Ranges]:
        """Return what each copy may train ahead of the steps that are not dealt."""
        for steps in dealt.values():
            todo -= steps
        most = {copy: int(self.settings.delay * len(steps)) for copy, steps in dealt.items()}
        quotas = handoff.shares(min(sum(most.values()), len(todo)), most)
        return {copy: steps for copy, steps in deal(todo, quotas).items() if len(steps)}

    def _assignment(self) -> handoff.Assignment | None:
        try:
            return handoff.read_assignment(self.assignment) if self.assignment else None
        except handoff.AssignmentError as error:
            log.warning("the assignment is left out: %s", error)
            return None


def _assigned(assignment: handoff.Assignment | None, here: Collection[int]) -> dict[int, float]:
    """Return the steps of each copy that is here and is to have any; none if none is named.

    A copy that is not named counts as an average one: it may run without hadard, and must not
    leave its GPUs idle. Not so where the quotas alone end a slot.
    """
    quotas = assignment.quotas if assignment else {}
    named = {copy: float(steps) for copy, steps in quotas.items() if copy in here and steps > 0}
    if assignment is None or not named or assignment.slot_s <= 0:
        return named
    usual = sum(named.values()) / len(named)
    return named | {copy: usual for copy in here if copy not in quotas}
