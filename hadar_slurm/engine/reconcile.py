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
    actions: list[Action] = []
    planned = plan.by_id
    for job in snapshot.plannable:
        if job.phase is Phase.QUEUED and job.spec.job_id not in planned:
            continue
        # A queued job's old gang is history.
        held = {} if job.phase is Phase.QUEUED else dict(job.allocation.copies)
        wanted = dict(planned[job.job_id].copies) if job.job_id in planned else {}
        for copy, gang in held.items():
            action = Renew if wanted.get(copy) == gang else Stop
            actions.append(action(job.job_id, copy, gang))
        new = [(copy, gang) for copy, gang in wanted.items() if held.get(copy) != gang]
        actions += [Start(job.job_id, copy, gang) for copy, gang in new]
    return tuple(sorted(actions, key=lambda action: (Stop, Renew, Start).index(type(action))))
