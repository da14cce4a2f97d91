"""The difference between what is and what should be, as actions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from hadar_slurm.core.cluster import JobId, natural_key
from hadar_slurm.core.gang import Allocation
from hadar_slurm.core.job import Phase
from hadar_slurm.core.plan import Plan
from hadar_slurm.core.snapshot import Snapshot
from hadar_slurm.engine.actions import Action, Renew, Start, Stop


@dataclass(slots=True)
class Renewals:
    """The renewals of running jobs with one gang, made once for as long as a job keeps it."""

    _allocations: dict[JobId, Allocation] = field(default_factory=dict)
    _actions: dict[JobId, Renew] = field(default_factory=dict)

    def of(self, plan: Plan, kept: Iterable[JobId]) -> list[Renew]:
        """Return the renewals of the jobs `kept`, which have their gangs in `plan`."""
        for job_id, allocation in plan.changes(self._allocations):
            if allocation.is_rigid:
                self._allocations[job_id] = allocation
                self._actions[job_id] = Renew(job_id, 0, allocation.copies[0][1])
        found = list(map(self._actions.__getitem__, kept))
        if len(self._actions) > 2 * len(found) + _MOST_UNUSED:
            self._allocations.clear()
            self._actions.clear()
        return found


# Renewals of jobs that have ended: beyond these and as many as are in use, all are made again.
_MOST_UNUSED = 1000


def reconcile(
    snapshot: Snapshot, plan: Plan, renewals: Renewals | None = None
) -> tuple[Action, ...]:
    """Return the actions that turn `snapshot` into `plan`: stops, then renewals, then starts.

    A migration is a stop and a start of the same copy. Once all are applied and observed,
    reconciling again gives only renewals. `renewals` are those of the previous rounds.
    """
    stops: list[Stop] = []
    starts: list[Start] = []
    more: list[Renew] = []
    running, others, queued = snapshot.running, snapshot.others_by_id, Phase.QUEUED
    changes = dict(plan.changes(running))
    for job_id, allocation in changes.items():
        held = running.get(job_id)
        if held is None:
            job = others.get(job_id)
            if job is None or not job.phase.is_plannable:
                continue
            # A queued job's old gang is history.
            held = Allocation() if job.phase is queued else job.allocation
        has, wanted = dict(held.copies), dict(allocation.copies)
        for copy, gang in has.items():
            if wanted.get(copy) == gang:
                more.append(Renew(job_id, copy, gang))
            else:
                stops.append(Stop(job_id, copy, gang))
        new = [(copy, gang) for copy, gang in wanted.items() if has.get(copy) != gang]
        starts += [Start(job_id, copy, gang) for copy, gang in new]
    stops += _preemptions(snapshot, plan)
    stops.sort(key=_by_job)
    kept = [job_id for job_id, _ in plan.allocations if job_id not in changes]
    renews = (renewals or Renewals()).of(plan, kept)
    if more:
        renews = sorted(renews + more, key=_by_job)
    return (*stops, *renews, *starts)


def _by_job(action: Action) -> tuple[int, str]:
    return natural_key(action.job_id)


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
