"""Ranks jobs, and finds for each the GPU types that it should take, the first the best.

Overdue jobs go first, then the critical ones of the makespan program (makespan_lp.py), the one that
needs the first of its planned types for longest first, then the shortest remaining service
(Schrage and Miller, Operations Research 14(4), 1966, one server), over weights of user and wait.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import accumulate, count
from typing import TYPE_CHECKING, NamedTuple

from hadar_slurm.core.cluster import TypeIndex
from hadar_slurm.core.job import Job, Phase
from hadar_slurm.policies.hadar import tuning
from hadar_slurm.policies.hadar.kinds import JobKind, Kinds
from hadar_slurm.policies.hadar.shares import Shares, fair_weight

if TYPE_CHECKING:
    from hadar_slurm.policies.hadar.makespan_lp import Horizon

# Ranks, the first served first: overdue, critical, by remaining work, able to run nowhere.
OVERDUE, FIRST, BY_WORK, NOWHERE = range(4)


class Entry(NamedTuple):
    """A job in the queue; entries sort by rank, then by key, the smallest first."""

    rank: int
    key: float
    # The index in the allocator's jobs.
    tie_break: int
    job: Job
    # The GPU types it may take, the best first.
    types: tuple[TypeIndex, ...]
    left_s: float


@dataclass(frozen=True, slots=True)
class Ranking:
    """Ranks the jobs of one decision."""

    kinds: Kinds
    # With the critical jobs; None: there are none.
    horizon: Horizon | None = None
    shares: Shares | None = None
    # The most GPUs of critical jobs that go before the others.
    most_critical: float = math.inf

    def queue(self) -> list[Entry]:
        """Return the entries of the jobs to decide on, in order, the shares of users heeded."""
        found = sorted(map(self.entry, count(), self.kinds.allocator.jobs))
        gpus = accumulate(e.job.spec.num_gpus for e in found if e.rank == FIRST)
        if num := sum(total > self.most_critical for total in gpus):
            plain, first = replace(self, horizon=None), [e for e in found if e.rank == FIRST][-num:]
            again = {e.tie_break: plain.entry(e.tie_break, e.job) for e in first}
            found = sorted(again.get(e.tie_break, e) for e in found)
        if not self.shares:
            return found
        jobs = [None if entry.rank == OVERDUE else entry.job for entry in found]
        return [found[position] for position in self.shares.order(jobs)]

    def entry(self, tie_break: int, job: Job) -> Entry:
        """Return a job's entry."""
        kind, spec = self.kinds.of(job), job.spec
        if not kind.best:
            return Entry(NOWHERE, 0.0, tie_break, job, (), 0.0)
        allocator, shares = self.kinds.allocator, self.shares
        left_s = shares.left_s(job, kind.best) if shares else job.steps_left / kind.best
        types = self._own_first(job, kind, self.kinds.cheapest(kind))
        had_s = job.progress.service_gpu_s / spec.num_gpus
        waited_s = allocator.snapshot.now_s - spec.submitted_s - had_s
        alone_s = spec.total_steps / kind.best
        if waited_s > tuning.LONGEST_WAIT_S + tuning.LONGEST_WAIT_TIMES * alone_s:
            return Entry(OVERDUE, -waited_s, tie_break, job, types, left_s)
        is_sure = spec.can_checkpoint or not job.is_estimated
        if self.horizon and is_sure and not (shares and shares.goes_by_limit(job)):
            critical = self._if_critical(self.horizon, tie_break, job, left_s)
            if critical:
                return critical
        # Preemption for a shorter job costs a restart.
        stays_s = spec.restart_cost_s if job.phase is Phase.RUNNING else 0.0
        weight = spec.num_gpus / (1.0 if job.fair_share is None else fair_weight(job.fair_share))
        if shares and spec.user and not spec.can_checkpoint:
            weight *= tuning.IMMOVABLE
        key = weight * max(0.0, left_s - stays_s) / kind.wait_weight(job)
        return Entry(BY_WORK, key, tie_break, job, types, left_s)

    def _if_critical(
        self, horizon: Horizon, tie_break: int, job: Job, left_s: float
    ) -> Entry | None:
        """Return the entry of a job that fills the horizon; None for any other."""
        allocator, kind = self.kinds.allocator, self.kinds.of(job)
        if (planned := horizon.planned.get(job.job_id)) is None:
            return None
        horizon_s = max(1.0, horizon.ends_s - allocator.snapshot.now_s)
        needed_s = planned.left_s(job.steps_left)
        # One that runs stays so a little longer, or it would soon lose the GPUs it has got.
        margin = tuning.RENEW_SHARE if job.phase is Phase.RUNNING else 0.0
        if needed_s < (1 - tuning.CRITICAL_SHARE - margin) * horizon_s:
            return None
        # The planned types may have become unusable.
        its = planned.types(kind.by_speed) or self.kinds.cheapest(kind)
        first, other = planned.speeds(its, kind.speeds)
        if 0 < other < first:
            needed_s = min((left_s - horizon_s * other) / (first - other), horizon_s)
        if needed_s > 0 and allocator.runs_on(job) == allocator.gpu_types[its[0]]:
            # Kept until another needs it nearly all the time: by a swap in every round both lose.
            needed_s = max(needed_s, (1 - tuning.RENEW_SHARE) * horizon_s + needed_s / 1000)
        return Entry(FIRST, -needed_s, tie_break, job, self._own_first(job, kind, its), left_s)

    def _own_first(
        self, job: Job, kind: JobKind, types: tuple[TypeIndex, ...]
    ) -> tuple[TypeIndex, ...]:
        """Return the types, a running job's own first unless moving saves more than one restart.

        The saving is in the job's time or in priced time.
        """
        allocator, speeds = self.kinds.allocator, kind.steps_per_s
        held = allocator.runs_on(job)
        own = types[0] if held is None else allocator.gpu_types.index(held)
        if own == types[0] or not speeds[own]:
            return types
        costs = kind.costs(self.kinds.prices)
        longer_s = job.steps_left * (1 / speeds[own] - 1 / speeds[types[0]])
        dearer_s = job.steps_left / kind.best * (costs[own] - costs[types[0]])
        is_moved = max(longer_s, dearer_s) > job.spec.restart_cost_s
        return types if is_moved else (own, *(i for i in types if i != own))
