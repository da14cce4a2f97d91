"""What one copy contributes to an interval, and what it takes over at the end of it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn
from torch.optim import Optimizer

from hadar_slurm.runtime.averaging import state
from hadar_slurm.runtime.averaging.ahead import Ahead
from hadar_slurm.runtime.averaging.consolidation import OptimiserRule
from hadar_slurm.runtime.averaging.differences import Differences
from hadar_slurm.runtime.averaging.finite import fault_in
from hadar_slurm.runtime.files.ranges import Ranges
from hadar_slurm.runtime.files.records import Contribution, SlotEnd
from hadar_slurm.runtime.files.slots import Slots
from hadar_slurm.runtime.files.tensors import TensorFile, TensorFileError
from hadar_slurm.runtime.files.threads import on_one_thread

log = logging.getLogger(__name__)


@dataclass
class Exchange:
    """One copy's side of averaging.

    The optimiser's state is its own between the intervals to which it is contributed. A copy that
    starts, or whose contribution did not count, takes that of the newest end that has one.
    """

    copy: int
    slots: Slots
    rule: OptimiserRule
    differences: Differences = field(default_factory=Differences)
    has_state: bool = False  # the optimiser has the state of this training
    _has_contributed: bool = False  # to the running interval
    _begun: tuple[SlotEnd, TensorFile] | None = None

    @on_one_thread
    def contribution(
        self, part: Contribution, named: state.Named, *, is_leaving: bool
    ) -> tuple[Contribution, state.Named]:
        """Return what to contribute: only the reason, where it is not finite.

        A copy that is leaving contributes its optimiser's state, for its next run.
        """
        assert self._begun is not None
        self._has_contributed = True
        end, base = self._begun
        tensors, facts = named
        parameters = set(facts["parameters"])
        part = replace(part, with_state=is_leaving or self.gives_state())
        if not part.with_state:
            tensors = {k: v for k, v in tensors.items() if not k.startswith(state.OPTIMISER)}
            facts = {**facts, "state": {}}
        try:
            found = self.differences.of(tensors, parameters, base, is_exact=end.is_exact)
        except (TensorFileError, OSError) as error:
            log.warning("contributes whole parameters: %s", error)
            self.differences.left.clear()
            found = dict(tensors)
        rest = {k: v for k, v in found.items() if not k.startswith(state.DIFFERENCE)}
        if fault := fault_in(rest.items(), facts, base):
            return replace(part, done=Ranges(), fault=fault), ({}, facts)
        return part, (found, facts)

    def take_over(
        self,
        model: nn.Module,
        optimiser: Optimizer,
        extra: Sequence[state.Stateful],
        end: SlotEnd,
        file: TensorFile,
        ahead: Ahead | None,
    ) -> None:
        """Load the end of an interval, and add what was trained ahead.

        Raises TensorFileError and OSError; then the model is no longer whole.
        """
        before = self._begun[0] if self._begun else None
        is_lost = before is not None and self._has_lost(before, end)
        if is_lost:
            self.differences.left.clear()
        if ahead:
            ahead.take_over(model, end, file)
        else:
            state.load_model(model, file)
            keeps_own = self._keeps_own(before, end) and not is_lost
            kept = None if keeps_own else self._state(end, file)
            state.load_rest(optimiser, file.facts["facts"], extra, kept)
            self.has_state = True
        self._begun, self._has_contributed = (end, file), False

    def _keeps_own(self, before: SlotEnd | None, end: SlotEnd) -> bool:
        """Return whether the optimiser goes on with its own state after an interval."""
        if not self.has_state or before is None or end.spoilt:
            return False
        if not end.has_state:
            return True
        # An end may have the state of a copy that is leaving alone.
        is_shared = before.with_state and self.rule is not OptimiserRule.LOCAL
        return self._has_contributed and not is_shared

    def gives_state(self) -> bool:
        """Return whether this copy contributes the optimiser's state to the running interval."""
        assert self._begun is not None
        end, _ = self._begun
        if not end.with_state or self.rule is OptimiserRule.RESET:
            return False
        return self.rule is OptimiserRule.AVERAGE or self.copy == next(iter(end.dealt), None)

    def _has_lost(self, before: SlotEnd, end: SlotEnd) -> bool:
        """Return whether nothing counts of what this copy was dealt by the end before."""
        mine = before.dealt.get(self.copy, Ranges())
        return end.id != before.id and len(mine) > 0 and not len(mine & end.done)

    def _state(self, end: SlotEnd, file: TensorFile) -> dict[int, dict[str, Any]] | None:
        """Return the optimiser's state in the newest end that has one; None: none can be read."""
        for slot in reversed(end.state_slots):
            try:
                source = file if slot == end.slot else self.slots.read(slot)[1]
                names = [name for name in source.names if name.startswith(state.OPTIMISER)]
                tensors = {name: source.tensor(name) for name in names}
                return state.state_of(tensors, source.facts["facts"])
            except (TensorFileError, OSError) as error:
                log.warning("no optimiser's state from slot %d: %s", slot, error)
        return None
