"""Some users under a policy, the others under plain Slurm, on the same GPUs.

Slurm keeps the queue: it decides by priority and with backfill (`lab/policies/slurm`) which GPUs
the jobs of either side get. The policy decides which jobs of its users run on the GPUs that its
users got, and may stop and migrate them. So in each round

1. plain Slurm plans the whole queue. What it starts of other users' jobs is started;
2. the policy plans its users' jobs on all GPUs but those of other users' jobs, and but the free
   ones of types that other users' waiting jobs allow;
3. other users' waiting jobs may start on what the policy has left free, again by priority and
   with backfill.

A job of another user is never stopped or migrated. With no such job the policy decides alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import chain

from hadar_slurm.core.cluster import JobId, Slot, summed
from hadar_slurm.core.gang import Allocation
from hadar_slurm.core.job import Job, JobSpec, Phase
from hadar_slurm.core.plan import Plan
from hadar_slurm.core.snapshot import Round, Snapshot
from hadar_slurm.lab.policies.slurm.policy import PlainSlurm, SlurmMemory
from hadar_slurm.policies.policy import Policy


@dataclass(frozen=True, slots=True)
class _Memory:
    """What either policy keeps from one plan to the next."""

    plain: object = None
    adopted: object = None


@dataclass(frozen=True, slots=True)
class Adoption:
    """The policy: `adopted` for the jobs of `users`, `plain` for all others."""

    adopted: Policy
    users: frozenset[str]
    plain: PlainSlurm = field(default_factory=PlainSlurm)

    @property
    def name(self) -> str:
        """Return the names of both policies."""
        return f"{self.adopted.name} beside {self.plain.name}"

    def is_plain(self, spec: JobSpec) -> bool:
        """Return whether plain Slurm places a job: its user has not adopted the policy."""
        return spec.user not in self.users

    def plan(self, snapshot: Snapshot, round_: Round) -> Plan:
        """Return which jobs run in `round_`, and on which GPUs."""
        jobs, memory = snapshot.jobs, round_.memory
        if not isinstance(memory, _Memory):
            memory = _Memory()
        round_ = replace(round_, memory=memory.adopted)
        others = [job for job in jobs if self.is_plain(job.spec)]
        if not others:
            plan = self.adopted.plan(snapshot, round_)
            return replace(plan, memory=replace(memory, adopted=plan.memory))
        queue = self.plain.plan(snapshot, replace(round_, memory=memory.plain))
        memory = replace(memory, plain=queue.memory)
        if len(others) == len(jobs):
            return replace(queue, memory=memory)
        granted = queue.by_id
        placed = {job.job_id: granted[job.job_id] for job in others if job.job_id in granted}
        waiting = [job for job in others if job.job_id not in placed]
        withheld = _withheld(snapshot, granted, waiting, queue.memory)
        mine = [job for job in jobs if not self.is_plain(job.spec)]
        plan = self.adopted.plan(_without(snapshot, mine, placed, withheld), round_)
        placed |= plan.by_id
        if waiting:
            left = [_as_running(job, placed[job.job_id]) for job in jobs if job.job_id in placed]
            rest = Snapshot.of(
                now_s=snapshot.now_s,
                cluster=snapshot.cluster,
                jobs=[*left, *waiting],
                occupied=dict(snapshot.occupied),
                rules=snapshot.rules,
            )
            again = replace(round_, may_move=False, memory=memory.plain)
            later = self.plain.plan(rest, again)
            memory = replace(memory, plain=later.memory)
            placed |= later.by_id
            reasons = dict(later.waiting) | dict(plan.waiting)
        else:
            reasons = dict(plan.waiting)
        both = Plan.of(placed, reasons, dict(plan.figures), replace(memory, adopted=plan.memory))
        return replace(both, next_round_s=plan.next_round_s)


def _withheld(
    snapshot: Snapshot, granted: Mapping[JobId, Allocation], waiting: list[Job], slurm: object
) -> dict[Slot, int]:
    """Return the GPUs that plain Slurm leaves free of types that waiting jobs allow."""
    used = summed(chain.from_iterable(each.slots for each in granted.values()))
    requests = slurm.requests if isinstance(slurm, SlurmMemory) else {}
    wanted = {k for job in waiting for group in requests[job.job_id].groups for k in group}
    return {
        slot: left
        for slot, count in snapshot.plannable_capacity.items()
        if slot.gpu_type in wanted and (left := count - used.get(slot, 0)) > 0
    }


def _without(
    snapshot: Snapshot,
    jobs: list[Job],
    placed: Mapping[JobId, Allocation],
    withheld: Mapping[Slot, int],
) -> Snapshot:
    """Return the snapshot with these jobs only; what others hold, and `withheld`, is occupied."""
    held = [allocation.slots for allocation in placed.values()]
    taken = chain(snapshot.occupied, *held, withheld.items())
    return Snapshot.of(
        now_s=snapshot.now_s,
        cluster=snapshot.cluster,
        jobs=jobs,
        occupied=summed(taken),
        rules=snapshot.rules,
        ended=snapshot.ended,
    )


def _as_running(job: Job, allocation: Allocation) -> Job:
    return replace(job, phase=Phase.RUNNING, allocation=allocation)
