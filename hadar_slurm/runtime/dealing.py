"""The steps of each copy in the next averaging interval, and how long that lasts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path

from hadar_slurm import handoff
from hadar_slurm.runtime.averaging.modes import IntervalKind
from hadar_slurm.runtime.files.ranges import Ranges, deal
from hadar_slurm.runtime.files.records import SlotEnd
from hadar_slurm.runtime.settings import Settings

log = logging.getLogger(__name__)

# An interval above this length is at most this factor longer than the last, for its cost alone.
_FREE_S, _GROWTH = 60.0, 2.0
# Where nothing else is set, the part of its steps that a copy may train while it averages, if
# averaging would otherwise need longer intervals than `_FREE_S`.
DELAY = 1.0
# The time in which copies may train ahead, as a multiple of what an averaging takes.
ROOM = 1.5
# Of the time that averaging may take, the part for contributing the optimiser's state.
_STATE_PART = 0.2


@dataclass(frozen=True)
class Dealer:
    """Deals out steps; `assignment` is the file in which hadard assigns the copies' steps."""

    settings: Settings
    assignment: Path | None
    # How these copies train the interval after an end.
    kind: Callable[[SlotEnd, Collection[int]], IntervalKind] = lambda end, here: (
        IntervalKind.AVERAGED
    )
    # Whether copies may train the interval after the next synchronously, for which they need
    # equal states of the optimiser.
    needs_state: Callable[[SlotEnd], bool] = lambda end: False

    def deal(
        self,
        end: SlotEnd,
        here: Mapping[int, float],
        cost_s: float,
        with_state_s: float = 0.0,
        *,
        blocked_s: float = 0.0,
        is_averaged: bool = False,
    ) -> SlotEnd:
        """Return the end of a slot with the next one dealt out among the copies that are `here`.

        In proportion to the quotas of the assignment, as far as its copies are present; else by the
        speeds, in steps/s, that `here` gives, unmeasured copies counting as average ones. The
        length follows from `cost_s`, what a consolidation takes, not from hadard's rounds. Copies
        get the steps of `end.ahead`, which they may have trained. Nothing is dealt for an interval
        that copies train synchronously, which is none if it `is_averaged`; one step each for one in
        which copies are watched.
        `with_state_s` is what a consolidation takes with the optimiser's state, and `blocked_s` how
        long one stops copies that train meanwhile.
        """
        if end.is_complete or not here:
            return replace(end, ahead={}, together=False)
        kind = IntervalKind.AVERAGED if is_averaged else self._kind(end, here)
        together = kind is IntervalKind.SYNCHRONOUS
        shortest_s = self.settings.shortest_s(is_together=together)
        if together:
            worth_s = cost_s / self.settings.cost_part
            length_s = self._length_s(shortest_s, worth_s, end.length_s)
            return replace(end, ahead={}, together=True, length_s=length_s)
        worth_s = self._worth_s(cost_s, blocked_s)
        weights, length_s, budget = self._weighed(
            here, lambda step_s: self._length_s(shortest_s, max(worth_s, step_s), end.length_s)
        )
        if kind is IntervalKind.WATCHED:
            weights, budget = dict.fromkeys(weights, 1.0), len(weights)
        quotas = handoff.shares(min(round(budget), len(end.todo)), weights)
        dealt = deal(end.todo, quotas, end.ahead)
        fastest_first = sorted(dealt, key=lambda copy: (-len(dealt[copy]), copy))
        with_state = (
            kind is IntervalKind.WATCHED
            or (not is_averaged and self.needs_state(end))
            or self._is_with_state(end.slot + 1, cost_s, with_state_s, length_s)
        )
        return replace(
            end,
            dealt={copy: dealt[copy] for copy in fastest_first},
            ahead=self._ahead(end.todo, dealt, self._delay(cost_s, with_state=with_state)),
            together=False,
            length_s=length_s,
            with_state=with_state,
        )

    def _kind(self, end: SlotEnd, here: Collection[int]) -> IntervalKind:
        """Return how copies train the interval after an end, by the states that they have."""
        kind = self.kind(end, here)
        # After an interval that counted nothing all take the state of an earlier end.
        is_alike = (end.with_state and end.has_state) or bool(end.spoilt)
        if kind is IntervalKind.SYNCHRONOUS and not is_alike:
            return IntervalKind.WATCHED  # after it all copies have one state of the optimiser
        return kind

    def _weighed(
        self, here: Mapping[int, float], length_s: Callable[[float], float]
    ) -> tuple[Mapping[int, float], float, float]:
        """Return each copy's weight, how long the interval lasts, and the steps of all copies.

        `length_s` returns the length for the time that a step takes on the slowest copy.
        """
        assignment = self._assignment()
        weights: Mapping[int, float] = _assigned(assignment, here.keys())
        if weights and assignment is not None and assignment.slot_s <= 0:
            return weights, 0.0, sum(weights.values())
        known = [speed for speed in here.values() if speed > 0]
        is_measured = bool(weights or known)
        # A copy not yet measured has the mean speed of the measured ones.
        usual = sum(known) / len(known) if known else 1.0
        weights = weights or {copy: speed or usual for copy, speed in here.items()}
        lasts_s = length_s(1.0 / min(weights.values()) if is_measured else 0.0)
        # At first a step each, to see how fast they are.
        return weights, lasts_s, max(len(weights), sum(weights.values()) * lasts_s * is_measured)

    def _is_with_state(
        self, slot: int, cost_s: float, with_state_s: float, length_s: float
    ) -> bool:
        """Return whether copies contribute the optimiser's state to a slot of this length."""
        if length_s <= 0:
            return True
        every = self.settings.optimiser_every
        if self._is_dear(cost_s):
            worth_s = with_state_s / (_STATE_PART * self.settings.cost_part)
            every = max(every, ceil(worth_s / length_s))
        shortest_s = self.settings.shortest_s(is_together=False)
        is_cheap = 0 < with_state_s <= self.settings.cost_part * shortest_s
        return is_cheap or slot % every == 0

    def _is_dear(self, cost_s: float) -> bool:
        """Return whether intervals would last longer than a minute if copies waited."""
        is_chosen = self.settings.delay is None
        return is_chosen and cost_s > self.settings.cost_part * _FREE_S

    def _delay(self, cost_s: float, *, with_state: bool) -> float:
        """Return the part of its steps that a copy may train while the interval is averaged.

        By itself only where averaging is dear, and not while the optimiser's state is contributed,
        which would need the memory for it once more.
        """
        if self.settings.delay is not None:
            return self.settings.delay
        return DELAY if self._is_dear(cost_s) and not with_state else 0.0

    def _worth_s(self, cost_s: float, blocked_s: float) -> float:
        """Return the length of an interval in which averaging takes as much as it may."""
        delay = self._delay(cost_s, with_state=False)
        if not delay:
            return cost_s / self.settings.cost_part
        return max(blocked_s / self.settings.cost_part, cost_s * ROOM / delay)

    def _length_s(self, shortest_s: float, worth_s: float, before_s: float) -> float:
        """Return how long an interval lasts: as short as its cost and the slowest copy allow.

        The last one lasted `before_s`. An interval that is to be longer than a minute is at most
        twice as long as that: a single consolidation may have been delayed. 0 says that the quotas
        alone end an interval.
        """
        if shortest_s <= 0:
            return 0.0
        return max(shortest_s, min(worth_s, max(_GROWTH * before_s, _FREE_S)))

    def takers(self, here: Collection[int]) -> set[int]:
        """Return the copies `here` that would be dealt steps now."""
        return set(_assigned(self._assignment(), here)) or set(here)

    def awaited(self) -> set[int]:
        """Return the copies that the assignment gives steps, present or not."""
        assignment = self._assignment()
        return set(_assigned(assignment, assignment.quotas)) if assignment else set()

    def _ahead(self, todo: Ranges, dealt: Mapping[int, Ranges], delay: float) -> dict[int, Ranges]:
        """Return what each copy may train ahead of the steps that are not dealt."""
        for steps in dealt.values():
            todo -= steps
        most = {copy: int(delay * len(steps)) for copy, steps in dealt.items()}
        quotas = handoff.shares(min(sum(most.values()), len(todo)), most)
        return {copy: steps for copy, steps in deal(todo, quotas).items() if len(steps)}

    def _assignment(self) -> handoff.Assignment | None:
        try:
            return handoff.read_assignment(self.assignment) if self.assignment else None
        except handoff.AssignmentError as error:
            log.warning("the assignment is left out: %s", error)
            return None


def _assigned(assignment: handoff.Assignment | None, here: Collection[int]) -> dict[int, float]:
    """Return the steps/s of each copy that is here and is to have steps; none if none is named.

    A copy that is not named counts as an average one: it may run without hadard, and must not
    leave its GPUs idle. Without a length of the assignment, the quotas are returned, in steps.
    """
    quotas, span_s = (assignment.quotas, assignment.slot_s) if assignment else ({}, 0.0)
    named = {copy: float(steps) for copy, steps in quotas.items() if copy in here and steps > 0}
    if not named or span_s <= 0:
        return named
    usual = sum(named.values()) / len(named)
    named |= {copy: usual for copy in here if copy not in quotas}
    return {copy: steps / span_s for copy, steps in named.items()}
