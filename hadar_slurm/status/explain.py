"""hadar explain: why a job waits, when it will start and where, and what would change that. Pure.

Reasons and prices are those of the journal's line. The start is a forecast: a simulation of the
line's jobs under the same policy (sim/onward.py).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from hadar_slurm.core.cluster import GpuType, JobId
from hadar_slurm.core.job import Job, Phase
from hadar_slurm.core.snapshot import Snapshot
from hadar_slurm.journal import Line, gang_tree
from hadar_slurm.journal.values import credits_of, snapshot_of
from hadar_slurm.policies.policy import Policy
from hadar_slurm.sim.onward import Begin, after, begins
from hadar_slurm.status.claims import BelievedLess
from hadar_slurm.status.jobs import Forked, forked_of, state_of

# The number of jobs ahead that are named.
NAMED = 5


@dataclass(frozen=True, slots=True)
class TypeForecast:
    """A job on one GPU type: its throughput, seconds to its end, GPUs free now, and price."""

    gpu_type: GpuType
    steps_per_s: float
    lasts_s: float
    free: int
    price: float | None
    # The GPUs of a copy, where they depend on the type.
    gpus: int | None = None


@dataclass(frozen=True, slots=True)
class Expected:
    """When a job will start and end, in seconds from the round, and on which GPUs."""

    begins_in_s: float
    ends_in_s: float
    gang: Mapping[str, Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class Explanation:
    """What one round shows of one job; times in seconds."""

    job: JobId
    phase: Phase
    # The phase, or `pinned`.
    state: str
    round: int
    time_s: float
    policy: str
    # Why the policy gave the job no GPUs; empty for a job with GPUs.
    reason: str
    # GPUs of one gang, and of all gangs held now.
    gpus: int
    gpus_held: int
    steps_done: float
    steps_total: int
    steps_left: float
    choices: tuple[TypeForecast, ...]
    # Gangs by copy.
    held: Mapping[str, Mapping[str, Mapping[str, int]]]
    remarks: tuple[str, ...] = ()
    # Policy hadar ranks it by its time limit beside other users' jobs: no claim of its owner is
    # proven.
    goes_by_limit: bool = False
    # The steps that its user claims, where `steps_total` are others; else 0.
    claimed_steps: int = 0
    # Why its user is believed less, and until when; None: as any other.
    believed_less: BelievedLess | None = None
    # The copies of a forked job.
    forked: Forked | None = None
    # Time to the end of a job with GPUs if it is not migrated.
    ends_in_s: float | None = None
    # Waiting jobs that start earlier in the forecast; all that start if this one does not.
    ahead: tuple[JobId, ...] = ()
    expected: Expected | None = None
    # The start if the job could checkpoint; None if it already can.
    if_moved: Expected | None = None


def _is_shared(policy: Policy, snapshot: Snapshot) -> bool:
    """Return whether two users or more have jobs, and share by the policy."""
    users = {job.spec.user for job in snapshot.jobs if job.spec.user}
    return getattr(policy, "user_shares", 0.0) > 0 and len(users) > 1


def explain(
    line: Line,
    job_id: JobId,
    policy: Policy,
    clock: Callable[[], float],
    limit_s: float,
    *,
    forecasts: bool = True,
) -> Explanation | None:
    """Return a job's data in a round's line and a forecast; None if the job is not in the line.

    The forecast takes at most `limit_s` seconds by `clock` and is incomplete if they run out; it is
    omitted without `forecasts`. Raises HadarError if it fails.
    """
    snapshot = snapshot_of(line)
    job = snapshot.by_id.get(job_id)
    if job is None:
        return None
    found = _explained(line, snapshot, job, policy)
    left_out = frozenset(map(JobId, line.get("left_out", ())))
    is_placed = job.phase is not Phase.QUEUED
    planned = (line["plan"] or {}).get(job_id)
    if is_placed or planned or job_id in left_out or not forecasts:
        return found

    def forecast(seen: Snapshot) -> Mapping[JobId, Begin]:
        return begins(
            seen.without(left_out),
            policy,
            is_enough=lambda begun: job_id in begun,
            round_s=float(line["length_s"]),
            is_late=after(clock, limit_s),
        )

    return _with_forecast(found, snapshot, job, forecast)


def _explained(line: Line, snapshot: Snapshot, job: Job, policy: Policy) -> Explanation:
    """Return what a line says of a job."""
    throughput = sum(gang.throughput(job.spec.throughputs) for gang in job.allocation.gangs)
    is_placed = job.phase is not Phase.QUEUED
    return Explanation(
        job=job.job_id,
        phase=job.phase,
        state=state_of(line["jobs"][job.job_id]),
        round=int(line["round"]),
        time_s=snapshot.now_s,
        policy=str(line["policy"]),
        reason=str(line["waiting"].get(job.job_id, "")),
        gpus=job.spec.num_gpus,
        gpus_held=sum(gang.num_gpus for gang in job.allocation.gangs),
        steps_done=job.progress.steps_done,
        steps_total=job.spec.total_steps,
        steps_left=job.steps_left,
        choices=_choices(line, snapshot, job),
        held={str(number): gang_tree(gang) for number, gang in job.allocation.copies},
        remarks=job.remarks,
        goes_by_limit=job.limit_left_s is not None and _is_shared(policy, snapshot),
        claimed_steps=job.spec.claimed_steps,
        believed_less=_believed_less(line, snapshot.now_s, job.spec.user),
        forked=forked_of(line, job.job_id),
        ends_in_s=job.steps_left / throughput if is_placed and throughput > 0 else None,
    )


def _with_forecast(
    found: Explanation,
    snapshot: Snapshot,
    job: Job,
    forecast: Callable[[Snapshot], Mapping[JobId, Begin]],
) -> Explanation:
    """Return what is found with the start of a waiting job, also if it could be moved."""
    begun = forecast(snapshot)
    begins_s = begun[job.job_id].in_s if job.job_id in begun else math.inf
    ahead = tuple(name for name, begin in begun.items() if begin.in_s < begins_s)
    found = replace(found, expected=_expected(job, begun), ahead=ahead)
    if job.spec.can_checkpoint:
        return found
    movable = replace(job, spec=replace(job.spec, can_checkpoint=True))
    jobs = tuple(movable if other is job else other for other in snapshot.jobs)
    begun = forecast(replace(snapshot, jobs=jobs))
    return replace(found, if_moved=_expected(movable, begun))


def _believed_less(line: Line, now_s: float, user: str) -> BelievedLess | None:
    credit = credits_of(line).get(user)
    found = BelievedLess.of(user, credit, now_s) if credit else None
    return found if found and found.words(str) else None


def _expected(job: Job, begun: Mapping[JobId, Begin]) -> Expected | None:
    begin = begun.get(job.job_id)
    if begin is None:
        return None
    throughput = begin.gang.throughput(job.spec.throughputs)
    return Expected(begin.in_s, begin.in_s + job.steps_left / throughput, gang_tree(begin.gang))


def _choices(line: Line, snapshot: Snapshot, job: Job) -> tuple[TypeForecast, ...]:
    """Return a job's forecast on each GPU type of the cluster, the fastest first."""
    free: Counter[GpuType] = Counter()
    left = Counter(snapshot.plannable_capacity)
    for other in snapshot.plannable:
        for gang in other.allocation.gangs if other.phase is not Phase.QUEUED else ():
            left.subtract(dict(gang.slots))
    for slot, count in left.items():
        if snapshot.cluster.by_name[slot.node].is_schedulable and job.may_use(slot.node):
            free[slot.gpu_type] += count
    choices = []
    for gpu_type in snapshot.cluster.gpus_by_type:
        throughput = job.spec.throughput_on(gpu_type)
        if throughput > 0 and job.bound_type in (None, gpu_type):
            price, lasts_s = line["figures"].get(f"price.{gpu_type}"), job.steps_left / throughput
            size = job.spec.gpus_on(gpu_type) if job.spec.gangs else None
            choices.append(
                TypeForecast(
                    gpu_type,
                    steps_per_s=throughput,
                    lasts_s=lasts_s,
                    free=free[gpu_type],
                    price=price,
                    gpus=size,
                )
            )
    return tuple(sorted(choices, key=lambda choice: choice.lasts_s))
