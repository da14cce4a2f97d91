"""What a training script may set of the way its copies work together."""

from __future__ import annotations

from dataclasses import dataclass

from hadar_slurm.runtime.averaging.consolidation import OptimiserRule, Outer
from hadar_slurm.runtime.files.slots import KEEP_EVERY, MOST_KEPT

# The shortest slot, in seconds. The end of a synchronous one is for restarts alone.
SHORTEST_S, SHORTEST_TOGETHER_S = 3.0, 60.0


@dataclass(frozen=True)
class Settings:
    """How copies work together; times in seconds."""

    # The shortest slot; None: `SHORTEST_S`. Slots are longer if a consolidation takes more than the
    # part `cost_part` of the time.
    slot_s: float | None = None
    cost_part: float = 0.05
    gather_s: float = 2.0  # copies that come within this time of each other begin in the same slot
    optimiser: OptimiserRule = OptimiserRule.AVERAGE
    # The optimiser's state is contributed in each slot if that takes at most `cost_part` of the
    # shortest one, else in slots with multiples of this number, and by copies that are to leave.
    optimiser_every: int = 10
    outer: Outer | None = None
    # Copies that average train with a higher rate: True, by their number; or by this factor.
    rate_by_copies: bool | float = True
    # Above 0 a copy trains on while it waits for the average: this part of its steps in the slot.
    # None: where averaging takes longer than `cost_part` of a minute.
    delay: float | None = None
    gone_after_s: float = 15.0  # a copy without a sign of life for this time is gone
    sign_every_s: float = 2.0
    patience: float = 0.5  # how long copies wait for a late one, in lengths of a slot
    poll_s: float = 0.2
    report_every_s: float = 1.0
    move_s: float = 60.0  # how long a copy that was asked to save waits to be requeued
    # Beside the two newest ends, those of slots with multiples of this number are kept, 0: none.
    keep_every: int = KEEP_EVERY
    most_kept: int = MOST_KEPT  # of these at most, the newest
    # How long a copy of a begun training waits for a readable slot end, before it refuses to train.
    lost_after_s: float = 90.0

    def __post_init__(self) -> None:
        if not 0 < self.cost_part <= 1:
            raise ValueError(f"cost_part must be above 0 and at most 1, not {self.cost_part}")
        if self.delay is not None and not 0 <= self.delay <= 1:
            raise ValueError(f"delay must be 0 to 1, not {self.delay}")
        if not isinstance(self.rate_by_copies, bool) and self.rate_by_copies <= 0:
            raise ValueError(f"rate_by_copies must be above 0, not {self.rate_by_copies}")
        if self.optimiser_every < 1:
            raise ValueError(f"optimiser_every must be 1 or more, not {self.optimiser_every}")
        if min(self.keep_every, self.most_kept) < 0:
            raise ValueError("keep_every and most_kept must be 0 or more")

    def shortest_s(self, *, is_together: bool) -> float:
        """Return the shortest slot in seconds; `is_together`: of synchronous training."""
        if self.slot_s is not None:
            return self.slot_s
        return SHORTEST_TOGETHER_S if is_together else SHORTEST_S
