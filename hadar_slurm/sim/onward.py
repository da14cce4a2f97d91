"""What becomes of the jobs of a snapshot if nobody else comes, played through in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.gang import Gang
from hadar_slurm.core.job import Job, Phase
from hadar_slurm.core.snapshot import Snapshot
from hadar_slurm.engine.actions import Action, Outcome, Start, Status
from hadar_slurm.engine.backend import Wake
from hadar_slurm.engine.loop import RoundRecord, run_rounds
from hadar_slurm.errors import HadarError
from hadar_slurm.policies.policy import Policy
from hadar_slurm.sim.backend import SimBackend


class Begin(NamedTuple):
    """When a waiting job begins, in seconds from the snapshot, and on what."""

    in_s: float
    gang: Gang


def begins(
    snapshot: Snapshot,
    policy: Policy,
    *,
    awaited: JobId,
    round_s: float,
    clock: Callable[[], float],
    limit_s: float,
) -> dict[JobId, Begin]:
    """Return where the jobs that wait begin, up to the moment at which `awaited` does.

    Everybody runs at the speeds that the snapshot has; nobody comes, no node fails, and what others
    hold they keep. Where the `awaited` is missing it does not begin within `limit_s` of the real
    seconds that `clock` tells, or never. Raises HadarError when a round fails.
    """
    deadline_s = clock() + limit_s
    world = _Onward(
        SimBackend.going_on(snapshot), snapshot.by_id, awaited, lambda: clock() >= deadline_s
    )

    def record(line: RoundRecord) -> None:
        if line.errors:
            raise HadarError(f"the forecast fails: {'; '.join(line.errors)}")

    run_rounds(
        world, policy, record, length_s=round_s, now_s=lambda: world.world.now_s, clock=clock
    )
    return world.begun


@dataclass
class _Onward:
    """The simulated world, with what it does not know of jobs, until one of them begins."""

    world: SimBackend
    jobs: Mapping[JobId, Job]
    awaited: JobId
    is_late: Callable[[], bool]
    begun: dict[JobId, Begin] = field(default_factory=dict)

    def observe(self) -> Snapshot:
        """Return what is, with the nodes and the type that each job is bound to."""
        snapshot = self.world.observe()
        return replace(snapshot, jobs=tuple(self._as_bound(job) for job in snapshot.jobs))

    def apply(self, actions: Sequence[Action]) -> Sequence[Outcome]:
        """Carry the actions out, and note who begins."""
        outcomes = self.world.apply(actions)
        for outcome in outcomes:
            action = outcome.action
            if isinstance(action, Start) and outcome.status is Status.DONE:
                waited = self.jobs[action.job_id].phase is Phase.QUEUED
                if waited and action.job_id not in self.begun:
                    self.begun[action.job_id] = Begin(self.world.now_s, action.gang)
        return outcomes

    def wait(self, until_s: float) -> Wake:
        """Pass the time, unless the job has begun, or never will."""
        if self.awaited in self.begun or self.is_late() or not self.world.is_busy:
            return Wake.STOP
        return self.world.wait(until_s)

    def _as_bound(self, job: Job) -> Job:
        known = self.jobs[job.job_id]
        return replace(
            job,
            allowed_nodes=known.allowed_nodes,
            bound_type=known.bound_type if job.phase is Phase.QUEUED else None,
            fair_share=known.fair_share,
        )
