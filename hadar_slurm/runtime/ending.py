"""Averages what the copies trained in an averaging interval, and deals out the next one."""

from __future__ import annotations

import logging
import operator
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import NamedTuple

from hadar_slurm.runtime.averaging import merging, state
from hadar_slurm.runtime.averaging.consolidation import check_alike
from hadar_slurm.runtime.averaging.costs import Costs, usual
from hadar_slurm.runtime.averaging.finite import MOST_SPOILT, fault_in, nan_in
from hadar_slurm.runtime.averaging.rates import factor
from hadar_slurm.runtime.dealing import Dealer
from hadar_slurm.runtime.files.identity import Identity
from hadar_slurm.runtime.files.ranges import Ranges
from hadar_slurm.runtime.files.records import Contribution, SlotEnd
from hadar_slurm.runtime.files.slots import Slots
from hadar_slurm.runtime.files.tensors import TensorFile, TensorFileError
from hadar_slurm.runtime.settings import Settings

log = logging.getLogger(__name__)


class Then(NamedTuple):
    """What follows a synchronous interval: copies that are to average, or why training is over."""

    costly: Sequence[int] = ()
    stopped: str = ""


@dataclass(frozen=True)
class Ending:
    """Ends averaging intervals: averages contributions and deals out the steps that are left."""

    slots: Slots
    settings: Settings
    dealer: Dealer
    costs: Costs

    def begin(
        self,
        total_steps: int,
        here: Mapping[int, float],
        model: state.Named,
        identity: Identity | None = None,
    ) -> None:
        """Write the end of interval 0, the initial model, unless another copy has."""
        start = SlotEnd(slot=0, total_steps=total_steps, identity=identity)
        is_first = self.slots.end(self.dealer.deal(start, here, 0.0), *model)
        if is_first and (name := nan_in(model[0])):
            log.warning("the model begins with NaN in %s", name)

    def end(self, end: SlotEnd, given: set[int], here: set[int]) -> bool:
        """Average the contributions of the copies `given`, and deal out the next interval.

        `here` are the copies that may take part in it. Returns False where `end` is not the newest
        end: another copy was faster, or it can no longer be read.
        """
        begun_s = time.monotonic()
        try:
            base = self.slots.newest()
            if base is None or base[0].id != end.id:
                return False
            num_parts = self._end(end, base[1], given, here)
        except (TensorFileError, OSError) as error:
            log.warning("slot %d cannot be ended yet: %s", end.slot + 1, error)
            return True
        if num_parts is not None:
            made_s = time.monotonic() - begun_s
            self.costs.make(end.slot + 1, made_s)
            log.info("slot %d ended with %d copies in %.3f s", end.slot + 1, num_parts, made_s)
        return True

    def end_together(
        self,
        end: SlotEnd,
        applied: Ranges,
        named: state.Named,
        base: TensorFile | None,
        here: Mapping[int, float],
        then: Then,
    ) -> SlotEnd | None:
        """Write the end of an interval that copies have trained synchronously, by the state of one.

        `applied` are the steps since `end` that it includes, `base` a file before them. Returns
        None where another copy has ended the interval; raises OSError.
        """
        begun_s = time.monotonic()
        tensors: merging.Streams = dict(named[0])
        facts = named[1]
        after = _after_together(end, applied, then)
        if fault := fault_in(named[0].items(), facts, base):
            log.warning("slot %d is left out: %s", after.slot, fault)
            spoilt = (*end.spoilt, f"slot {after.slot}: {fault}")[-MOST_SPOILT:]
            found = self.slots.newest()
            if found is None or found[0].id != end.id:
                return None
            tensors, facts = merging.unchanged(found[1])
            after = replace(after, done=end.done, spoilt=spoilt, states=end.state_slots)
        cost_s, with_state_s = self.costs.total_s, self.costs.with_state_s
        after = self.dealer.deal(after, here, cost_s, with_state_s, is_averaged=bool(then.costly))
        if not self.slots.end_as(after, tensors, facts):
            return None
        made_s = time.monotonic() - begun_s
        self.costs.make(after.slot, made_s)
        message = "slot %d ended after %d synchronous steps, in %.3f s"
        log.info(message, after.slot, len(applied), made_s)
        return after

    def _end(self, end: SlotEnd, base: TensorFile, given: set[int], here: set[int]) -> int | None:
        """End the interval after `end`; return how many contributed, None if another copy did."""
        parts, faults = self._usable(end, base, sorted(given))
        while True:
            after, has_state = self._after(end, parts, faults), False
            tensors, facts = merging.unchanged(base)
            if parts:
                counted = [(len(part.done), file) for part, file in parts]
                rule, outer = self.settings.optimiser, self.settings.outer
                tensors, facts, has_state = merging.merged(base, counted, rule, outer)
            states = (*end.state_slots[-1:], after.slot) if has_state else end.state_slots
            speeds = {part.copy: len(part.done) / max(part.seconds, 1e-6) for part, _ in parts}
            speeds_here = {copy: speeds.get(copy, 0.0) for copy in here}
            costs, after = self.costs, replace(after, states=states)
            dealt = self.dealer.deal(
                after, speeds_here, costs.total_s, costs.with_state_s, blocked_s=costs.blocked_s
            )
            try:
                is_first = self.slots.end(dealt, tensors, facts)
                return len(parts) if is_first else None
            except merging.SpoiltError as error:
                log.warning("slot %d is left out: averaged, %s", after.slot, error)
                parts, faults = [], [*faults, f"averaged, {error}"]
            except TensorFileError as error:
                if error.path == base.path:
                    self.slots.put_aside(end.slot, error)
                    return None
                log.warning("left out: %s", error)
                parts = [(part, file) for part, file in parts if file.path != error.path]

    def _after(
        self, end: SlotEnd, parts: Sequence[tuple[Contribution, TensorFile]], faults: Sequence[str]
    ) -> SlotEnd:
        """Return the end of the interval after `end`, to which nothing is dealt yet."""
        spoilt = () if parts else end.spoilt
        if faults and not parts:
            spoilt = (*spoilt, f"slot {end.slot + 1}: {'; '.join(faults)}")[-MOST_SPOILT:]
        done = reduce(operator.or_, (part.done for part, _ in parts), end.done)
        return replace(
            end,
            slot=end.slot + 1,
            done=done,
            dealt={},
            # What averaging usually takes: this one is still to be written.
            made_s=usual(list(self.costs.now.made_s.values())),
            averages=end.averages + (len(parts) > 1),
            spoilt=spoilt,
            stopped=self.slots.stop_reason(),
            rate_factor=factor(end, len(done), self.settings.rate_by_copies),
        )

    def _usable(
        self, end: SlotEnd, base: TensorFile, given: Sequence[int]
    ) -> tuple[list[tuple[Contribution, TensorFile]], list[str]]:
        """Return the usable contributions, and why others are not finite; log what is unused."""
        shapes = merging.shapes(base)
        usable: list[tuple[Contribution, TensorFile]] = []
        faults: list[str] = []
        for copy in given:
            try:
                part, file = self.slots.contribution(end, copy)
            except (TensorFileError, OSError) as error:
                log.warning("left out: %s", error)
                continue
            fault = part.fault
            wrong = "" if fault else check_alike(shapes, merging.shapes(file))
            if len(part.done - end.dealt.get(copy, Ranges())):
                wrong = "has steps that were not dealt to it"
            if not (fault or wrong or part.is_checked):
                whole = (name for name in file.names if not name.startswith(state.DIFFERENCE))
                tensors = ((name, file.tensor(name)) for name in whole)
                fault = fault_in(tensors, file.facts["facts"], base)
            if wrong:
                log.warning("left out: %s: %s", file.path, wrong)
            elif fault:
                log.warning("left out: slot %d of copy %d: %s", part.slot, copy, fault)
                faults.append(f"copy {copy}: {fault}")
            elif len(part.done):
                usable.append((part, file))
        return usable, faults


def _after_together(end: SlotEnd, applied: Ranges, then: Then) -> SlotEnd:
    """Return the end of a synchronous interval after `end`, to which nothing is dealt yet."""
    return replace(
        end,
        id=secrets.token_hex(4),
        slot=end.slot + 1,
        done=end.done | applied,
        dealt={},
        spoilt=(),
        states=(*end.state_slots[-1:], end.slot + 1),
        costly=tuple(sorted(then.costly or end.costly)),
        stopped=then.stopped,
        rate_factor=1.0,
    )
