"""The difference between what is and what should be, as actions."""

from __future__ import annotations

from hadar_slurm.core.cluster import JobId, natural_key
from hadar_slurm.core.gang import Allocation
from hadar_slurm.core.job import Phase
from hadar_slurm.core.plan import Plan
from hadar_slurm.core.snapshot import Snapshot
from hadar_slurm.engine.actions import Action, Renew, Start, Stop

# By job, the renewal of a job that keeps its only copy.
Renewals = dict[JobId, Renew]


def reconcile(
    snapshot: Snapshot, plan: Plan, renewals: Renewals | None = None
) -> tuple[Action, ...]:
    """Return the actions that turn `snapshot` into `plan`: stops, then renewals, then starts.

    A migration is a stop and a start of the same copy. Once all are applied and observed,
    reconciling again gives only renewals. `renewals` are those of the previous rounds, which are
    used again where they are the same, and changed to those of this round.
    """
    stops: list[Stop] = []
    renews: list[Renew] = []
    starts: list[Start] = []
    running, others, queued = snapshot.running, snapshot.others_by_id, Phase.QUEUED
    before, kept = {} if renewals is None else renewals, Renewals()
    for job_id, allocation in plan.allocations:
        held = running.get(job_id)
        if held is allocation and allocation.is_rigid:
            renewal = before.get(job_id)
            if renewal is None or renewal.gang is not allocation.copies[0][1]:
                renewal = Renew(job_id, 0, allocation.copies[0][1])
            kept[job_id] = renewal
            renews.append(renewal)
            continue
        if held is None:
            job = others.get(job_id)
            if job is None or not job.phase.is_plannable:
                continue
            # A queued job's old gang is history.
            held = Allocation() if job.phase is queued else job.allocation
        has, wanted = dict(held.copies), dict(allocation.copies)
        for copy, gang in has.items():
            if wanted.get(copy) == gang:
                renews.append(Renew(job_id, copy, gang))
            else:
                stops.append(Stop(job_id, copy, gang))
        new = [(copy, gang) for copy, gang in wanted.items() if has.get(copy) != gang]
        starts += [Start(job_id, copy, gang) for copy, gang in new]
    stops += _preemptions(snapshot, plan)
    if renewals is not None:
        renewals.clear()
        renewals |= kept
    stops.sort(key=lambda stop: natural_key(stop.job_id))
    return (*stops, *renews, *starts)


def _preemptions(snapshot: Snapshot, plan: Plan) -> list[Stop]:
    """Return the stops of jobs that hold GPUs and have none in the plan."""
    placed, queued = plan.by_id, Phase.QUEUED
    held = {
        job_id: job.allocation
        for job_id, job in snapshot.others_by_id.items()
        if job.phase is not queued and job.phase.is_plannable
    }
    if not (snapshot.running.keys() <= placed.keys()):
        held |= snapshot.running
    return [
        Stop(job_id, copy, gang)
        for job_id, allocation in held.items()
        if job_id not in placed
        for copy, gang in allocation.copies
    ]
