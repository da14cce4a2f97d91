"""What synchronous training asks of the copy that trains."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from hadar_slurm.runtime.averaging import state
from hadar_slurm.runtime.files.ranges import Ranges
from hadar_slurm.runtime.files.records import SlotEnd
from hadar_slurm.runtime.files.tensors import TensorFile


class Host(Protocol):
    """The copy that trains."""

    asked: set[int]

    @property
    def stop_asked(self) -> str:
        """Why the whole training is to end, "" if it is not."""

    def load(self, end: SlotEnd, file: TensorFile) -> None:
        """Take over the parameters at the end of an interval."""

    def evaluate(self, end: SlotEnd) -> None:
        """Call what is to be called with the parameters at the end of an interval."""

    def newest(self) -> tuple[SlotEnd, TensorFile]:
        """Return the newest end."""

    def named(self) -> state.Named:
        """Return the state of the training."""

    def take_over(self, named: state.Named) -> None:
        """Load a state."""

    def set_rates(self, parent_step: int) -> None:
        """Set the learning rates at a step of the whole job."""

    def tell_steps(self, end: SlotEnd, own_steps: int, steps_per_s: float) -> None:
        """Report progress."""

    def check_claim(self) -> None:
        """Raise HeldError where a later run has taken over."""

    def end_together(
        self,
        end: SlotEnd,
        applied: Ranges,
        speeds: Mapping[int, float],
        costly: Collection[int],
        *,
        stops: bool = False,
    ) -> SlotEnd | None:
        """Write the next end, the last if it `stops`; None where another copy has.

        Raises OSError.
        """
