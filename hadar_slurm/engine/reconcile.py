"""The difference between what is and what should be, as actions."""

from __future__ import annotations

from hadar_slurm.core.job import Phase
from hadar_slurm.core.plan import Plan
from hadar_slurm.core.snapshot import Snapshot
from hadar_slurm.engine.actions import Action, Renew, Start, Stop


def reconcile(snapshot: Snapshot, plan: Plan) -> tuple[Action, ...]:
    """Return the actions that turn `snapshot` into `plan`: stops, then renewals, then starts.

    A migration is a stop and a start of the same copy. Once all are applied and observed,
    reconciling again gives only renewals.
    """
    stops: list[Action] = []
    renewals: list[Action] = []
    starts: list[Action] = []
    planned, queued = plan.by_id, Phase.QUEUED
    for job in snapshot.plannable:
        job_id = job.spec.job_id
        allocation, is_queued = planned.get(job_id), job.phase is queued
        if is_queued and allocation is None:
            continue
        if allocation is job.allocation and not is_queued:
            renewals += [Renew(job_id, copy, gang) for copy, gang in allocation.copies]
            continue
        # A queued job's old gang is history.
        held = {} if is_queued else dict(job.allocation.copies)
        wanted = dict(allocation.copies) if allocation else {}
        for copy, gang in held.items():
            if wanted.get(copy) == gang:
                renewals.append(Renew(job_id, copy, gang))
            else:
                stops.append(Stop(job_id, copy, gang))
        new = [(copy, gang) for copy, gang in wanted.items() if held.get(copy) != gang]
        starts += [Start(job_id, copy, gang) for copy, gang in new]
    return (*stops, *renewals, *starts)
