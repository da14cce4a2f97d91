"""Checks a plan, and names the rules that it breaks and the jobs that may be to blame."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from hadar_slurm.core.cluster import JobId, Slot
from hadar_slurm.core.gang import Allocation
from hadar_slurm.core.job import Job
from hadar_slurm.core.plan import Plan, broken_by_allocation, is_plainly_valid
from hadar_slurm.core.snapshot import Snapshot
from hadar_slurm.errors import InvalidPlan

# The jobs that may be to blame for a broken rule.
Blamed = Sequence[JobId]


def check_plan(snapshot: Snapshot, plan: Plan) -> None:
    """Raise InvalidPlan with every rule that `plan` breaks on `snapshot`."""
    if is_plainly_valid(snapshot, plan):
        return
    broken = [*_broken_by_jobs(snapshot, plan), *_broken_by_capacity(snapshot, plan)]
    if broken:
        raise InvalidPlan([text for _, text in broken], chain(*(jobs for jobs, _ in broken)))


def _broken_by_jobs(snapshot: Snapshot, plan: Plan) -> Iterator[tuple[Blamed, str]]:
    jobs = snapshot.by_id
    waiting = dict(plan.waiting)
    for job_id, allocation in plan.allocations:
        if job_id not in jobs:
            yield (job_id,), f"job {job_id} is not in the snapshot"
            continue
        if job_id in waiting:
            yield (job_id,), f"job {job_id} is both placed and waiting"
        if _is_kept(jobs[job_id], allocation):
            continue
        for fault in broken_by_allocation(snapshot, jobs[job_id], allocation):
            yield (job_id,), f"job {job_id} {fault}"
    placed = plan.by_id
    for job in snapshot.jobs:
        job_id = job.spec.job_id
        waits = job_id in waiting
        # First the usual case: most jobs of a long queue wait and hold nothing.
        if job_id in placed or (waits and not job.allocation.copies) or job.phase.is_final:
            continue
        if not waits:
            yield (job_id,), f"job {job_id} has neither an allocation nor a reason to wait"
        is_pinned = job.is_pinned_in_place and not snapshot.rules.may_requeue
        if is_pinned and job.phase.is_plannable:
            yield (job_id,), f"job {job_id} cannot be moved now and must keep its GPUs"


def _is_kept(job: Job, allocation: Allocation) -> bool:
    """Return whether a job just keeps its only gang: the usual case, which breaks no rule."""
    return (
        allocation is job.allocation
        and allocation.is_rigid
        and job.phase.is_plannable
        and not job.left_out
    )


def _broken_by_capacity(snapshot: Snapshot, plan: Plan) -> Iterator[tuple[Blamed, str]]:
    capacity = snapshot.plannable_capacity
    used: dict[Slot, int] = {}
    for _, allocation in plan.allocations:
        for slot, count in allocation.slots:
            used[slot] = used.get(slot, 0) + count
    over = (item for item in used.items() if item[1] > capacity.get(item[0], 0))
    for slot, count in sorted(over):
        jobs = [job for job, held in plan.allocations if slot in dict(held.slots)]
        has = capacity.get(slot, 0)
        yield jobs, f"{slot.node} is to give {count} {slot.gpu_type} and has {has}"
