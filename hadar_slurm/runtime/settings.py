"""What a training script may ask of the way its copies work together."""

from __future__ import annotations

from dataclasses import dataclass

from hadar_slurm.runtime.averaging.consolidation import OptimiserRule, Outer
from hadar_slurm.runtime.averaging.slots import KEEP_EVERY, MOST_KEPT


@dataclass(frozen=True, slots=True)
class Settings:
    """How copies work together; times in seconds.

    `slot_s` holds while no assignment says another length; slots are longer if a consolidation
    takes more than `cost_part` of the time. Copies that come within `gather_s` of each other have
    their first part in the same slot. A copy without a sign of life for
    `gone_after_s` is gone; the others wait for one that is late for `patience` of a slot's length.
    Asked to save, a copy waits `move_s` to be moved before it goes on.

    Beside the two newest slot ends, that of every slot is kept whose number is a multiple of
    `keep_every`, 0: of none, and of these the newest `most_kept`. Where the training has begun and
    no slot end can be read, a copy waits `lost_after_s` for one, and then refuses to train.

    With a `delay` above 0 averaging is delayed: a copy does not wait for the average: it
    trains on, at most `delay` times the steps that it had in the interval.
    """

    slot_s: float = 360.0
    cost_part: float = 0.05
    gather_s: float = 2.0
    optimiser: OptimiserRule = OptimiserRule.AVERAGE
    outer: Outer | None = None
    delay: float = 0.0
    gone_after_s: float = 15.0
    sign_every_s: float = 2.0
    patience: float = 0.5
    poll_s: float = 0.2
    report_every_s: float = 1.0
    move_s: float = 60.0
    keep_every: int = KEEP_EVERY
    most_kept: int = MOST_KEPT
    lost_after_s: float = 90.0

    def __post_init__(self) -> None:
        if not 0 < self.cost_part <= 1:
            raise ValueError(f"cost_part must be above 0 and at most 1, not {self.cost_part}")
        if not 0 <= self.delay <= 1:
            raise ValueError(f"delay must be 0 to 1, not {self.delay}")
        if min(self.keep_every, self.most_kept) < 0:
            raise ValueError("keep_every and most_kept must be 0 or more")
