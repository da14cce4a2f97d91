"""Ways to rank and type jobs: complete rules, of which the policy uses one at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.job import Job

# A job is critical when its planned time is this share of what is left of the horizon. One that
# runs stays so a little longer: otherwise it would lose its GPUs as soon as it has got them.
_CRITICAL, _STAYS_CRITICAL = 0.95, 0.93
# A promoted job that runs goes before another that is later by less than this.
_RESTARTS_TO_MOVE = 10
# A critical job on the first of its types keeps it until the time that another still needs on that
# type is the whole horizon, less this share and these rounds: jobs that are to share a type one
# after the other would otherwise swap it in every round.
_SHARE_TO_SWAP, _ROUNDS_TO_SWAP = 0.01, 2.0
# Any other running job goes before another that is shorter by less than this.
_RESTARTS_TO_STOP = 2
# Orders those that keep a type; too small to change their order beside others.
_TIE = 1e-3
# Ranks, the first served first: overdue, critical or promoted, by remaining work, able to run
# nowhere.
OVERDUE, FIRST, BY_WORK, NOWHERE = range(4)


class Typing(StrEnum):
    """How a way gives GPU types to jobs."""

    # The fastest type with room.
    FASTEST = "fastest"
    # To the jobs that the order lets run, by what each would lose without its best type
    # (type_sharing.py).
    REGRET = "regret"
    # The fastest with room of the types that do the work at the least cost, at the prices of the
    # makespan program.
    PRICED = "priced"


def fair_weight(fair_share: float) -> float:
    """Return the weight of a user by Slurm's fair-share factor: the root, of a twentieth at least.

    A factor of 0.5 means usage equal to the share, and has the weight 1.
    """
    return math.sqrt(max(0.05, 2.0 * fair_share))


class AsPlanned(NamedTuple):
    """A job on the types that the makespan program plans for it.

    Its time left there, and its speeds, relative to its fastest type, on the first of them and on
    the others (0: none).
    """

    left_s: float
    on_first: float
    on_others: float


@dataclass(frozen=True, slots=True)
class Way:
    """A rule for the order and the types of all jobs."""

    # Jobs go by rising (number of GPUs) ** exponent * (time left on the fastest type): 1 is the
    # shortest remaining service first, 0 the shortest remaining time.
    exponent: float = 1.0
    typing: Typing = Typing.PRICED
    # The exponent on the time left in the worth of a type, where types go by regret.
    urgency: float = 0.5
    # Jobs that go before all others, the longest first.
    promoted: frozenset[JobId] = frozenset()
    # Whether the critical jobs of the makespan program go first, on the types planned for them.
    critical_first: bool = False

    def weight(self, job: Job) -> float:
        """Return the factor on a job's time left, by its gang and its user's fair share."""
        weight = float(job.spec.num_gpus**self.exponent)
        if job.fair_share is not None:
            weight /= fair_weight(job.fair_share)
        return weight

    def rank(
        self, left_s: float, weight: float, stays_s: float, *, is_promoted: bool = False
    ) -> tuple[int, float]:
        """Return the rank and the key of a job, the smallest first.

        `left_s` is the time left on the fastest type; `stays_s` the restart time of a job with
        GPUs, else 0: preemption for a shorter job costs a restart, and so may the way back.
        """
        if is_promoted:
            return FIRST, -left_s - _RESTARTS_TO_MOVE * stays_s
        return BY_WORK, weight * max(0.0, left_s - _RESTARTS_TO_STOP * stays_s)

    def rank_if_critical(
        self,
        left_s: float,
        planned: AsPlanned,
        horizon_s: float,
        round_s: float,
        *,
        is_running: bool,
        is_on_first: bool,
    ) -> tuple[int, float] | None:
        """Return the rank and the key of a job that fills the horizon; None for any other.

        For ways under which critical jobs go first: of these, the one that needs the first of its
        planned types for most of the horizon.
        `left_s` is the time left on the fastest type; `is_on_first` is whether the job runs on the
        first of its planned types.
        """
        least = _STAYS_CRITICAL if is_running else _CRITICAL
        planned_s, first, other = planned
        if planned_s < least * max(1.0, horizon_s):
            return None
        needed_s = planned_s
        if 0 < other < first:
            needed_s = min((left_s - horizon_s * other) / (first - other), horizon_s)
        if is_on_first and needed_s > 0:
            margin_s = _SHARE_TO_SWAP * horizon_s + _ROUNDS_TO_SWAP * round_s
            # Of those that keep the type, the one that needs it least is the first to leave.
            needed_s = max(needed_s, horizon_s - margin_s + _TIE * needed_s)
        return FIRST, -needed_s
