"""What synchronous training needs of the copy that it runs in."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping

from hadar_slurm.runtime.averaging import state
from hadar_slurm.runtime.ending import Then
from hadar_slurm.runtime.files.ranges import Ranges
from hadar_slurm.runtime.files.records import SlotEnd
from hadar_slurm.runtime.files.tensors import TensorFile
from hadar_slurm.runtime.intervals.evaluations import Evaluations
from hadar_slurm.runtime.intervals.member import Member
from hadar_slurm.runtime.intervals.requests import CopySignals


class Hosting:
    """The copy as `synchronous` sees it; made once the copy has joined its job."""

    def __init__(self, member: Member, requests: CopySignals, evaluations: Evaluations) -> None:
        learner, self._evaluations = member.learner, evaluations
        self._member, self._learner, self._requests = member, learner, requests
        self.where, self.settings, self.mode = member.where, member.settings, member.mode
        self.slots, self.presence, self.peers = member.slots, member.presence, member.peers
        self.model, self.optimiser, self.extra = learner.model, learner.optimiser, learner.extra
        self.seed, self.asked = learner.seed, requests.asked
        self._told_s = 0.0

    @property
    def stop_asked(self) -> str:
        """Why the whole training is to end, "" if it is not."""
        return self._requests.stop_asked

    def load(self, end: SlotEnd, file: TensorFile) -> None:
        """Take over the parameters at the end of an interval."""
        self._learner.load(end, file)

    def evaluate(self, end: SlotEnd) -> None:
        """Call what is to be called with the parameters at the end of an interval."""
        self._evaluations.run(end)

    def newest(self) -> tuple[SlotEnd, TensorFile]:
        """Return the newest end."""
        return self._member.newest()

    def named(self) -> state.Named:
        """Return the state of the training."""
        return self._learner.named()

    def take_over(self, named: state.Named) -> None:
        """Load a state."""
        self._learner.take_over(named)

    def set_rates(self, parent_step: int) -> None:
        """Set the learning rates at a step of the whole job."""
        self._learner.set_rates(parent_step)

    def check_claim(self) -> None:
        """Raise HeldError where a later run has taken over."""
        self._member.check_claim()

    def tell_steps(self, end: SlotEnd, own_steps: int, steps_per_s: float) -> None:
        """Report synchronous steps that are not in a file yet, now and then."""
        now_s = time.monotonic()
        if now_s >= self._told_s + self.settings.report_every_s:
            self._told_s, self._member.reports.steps_per_s = now_s, steps_per_s
            self._member.reports.tell("running", end, own_steps)

    def end_together(
        self,
        end: SlotEnd,
        applied: Ranges,
        speeds: Mapping[int, float],
        costly: Collection[int],
        *,
        stops: bool = False,
    ) -> SlotEnd | None:
        """Write the end of a synchronous interval; None where another copy has. Raises OSError.

        It is the last if it `stops`. The file with the reason may not be seen here yet.
        """
        here = {copy: speeds.get(copy, 0.0) for copy in self.peers.here()}
        named, base = self.named(), self._learner.known
        stopped = self.stop_asked or self.slots.stop_reason() or "asked by a copy" if stops else ""
        ending = self._member.ending
        return ending.end_together(end, applied, named, base, here, Then(tuple(costly), stopped))
