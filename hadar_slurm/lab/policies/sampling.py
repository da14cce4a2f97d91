"""Policy `sampling`: numbers of copies and GPU types of each job that minimise the mean JCT.

Source: "Sampling-based multi-job placement" (IEEE TPDS 35(6), 2024). `sharing.py` computes the
numbers of workers by job and type, at least one a job, and states what is reconstructed. Here:

* A *worker* is a copy of the job as HadarE forks it, so the plan also runs on Slurm: a whole gang
  on one node; copies share the steps in proportion to their throughputs.
* *More jobs than GPUs.* Jobs are admitted by the least service needed on their fastest type, as
  long as every admitted job has a type; the others wait.
* *Restarts.* A job's present types count as 5 % faster, and the present numbers of copies are one
  of the categories examined, since a migration costs a restart.

Shares are recomputed at the start of a round when jobs have changed or half an hour has passed; the
GPUs that are left, and those freed during a round, go to queued jobs. The job ids seed the sample.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from hadar_slurm.core.cluster import GpuType, JobId
from hadar_slurm.core.job import Job
from hadar_slurm.core.plan import Plan
from hadar_slurm.core.snapshot import Round, Snapshot
from hadar_slurm.lab.policies.greedy import remaining_service
from hadar_slurm.lab.policies.sharing import CATEGORIES, Counts, Market, share
from hadar_slurm.placement.allocator import Allocator
from hadar_slurm.placement.copies import Copies, held_by, may_fork, with_one_copy
from hadar_slurm.placement.node_assignment import assign_nodes
from hadar_slurm.policies.hadare.policy import held_types, keep_or_start
from hadar_slurm.policies.policy import PolicyOptions, SolverLimits

_STAYS = 1.05
# Shares are recomputed when a job came or ended, and after this many seconds.
_HOLDS_S = 1800.0


@dataclass(frozen=True, slots=True)
class Sampling:
    """The policy; `categories` is the number of markets that it solves."""

    limits: SolverLimits | None = None
    categories: int = CATEGORIES
    name: str = "sampling"

    def plan(self, snapshot: Snapshot, round_: Round) -> Plan:
        """Return which jobs run in `round_`, in how many copies, and on which GPUs."""
        allocator = Allocator(snapshot, round_)
        order = sorted(allocator.jobs, key=lambda job: remaining_service(job, allocator.gpu_types))
        solved, figures = round_.memory, {"categories": 0.0}
        if isinstance(solved, _Solved) and solved.holds_for(snapshot):
            for job in order:
                allocator.stay(job)
        else:
            figures["categories"] = float(self._share_out(allocator, order))
            if round_.may_move:
                solved = _Solved(snapshot.now_s, frozenset(j.job_id for j in snapshot.plannable))
        for job in order:
            keep_or_start(allocator, job, allocator.by_speed(job))
        copies = sum(len(allocation.copies) for allocation in allocator.placed.values())
        return allocator.plan(figures={**figures, "copies": float(copies)}, memory=solved)

    def _share_out(self, allocator: Allocator, order: Sequence[Job]) -> int:
        """Place jobs by new shares; return the number of categories examined."""
        jobs = list(_admitted(allocator, order))
        names = "\n".join(sorted(job.job_id for job in jobs))
        found = jobs and share(
            _market(allocator, jobs),
            seed=int.from_bytes(hashlib.sha256(names.encode()).digest()[:8], "big"),
            categories=self.categories,
            held=np.array([len(held_by(job).copies) for job in jobs]),
            limits=self.limits,
        )
        if not found:
            return 0
        _place(allocator, jobs, found.counts)
        return found.categories


@dataclass(frozen=True, slots=True)
class _Solved:
    """When shares were last computed, in seconds, and for which jobs."""

    at_s: float
    jobs: frozenset[JobId]

    def holds_for(self, snapshot: Snapshot) -> bool:
        """Return whether the shares are still valid: recent, and for the same jobs."""
        is_recent = 0.0 <= snapshot.now_s - self.at_s < _HOLDS_S
        return is_recent and self.jobs == {job.job_id for job in snapshot.plannable}


def _admitted(allocator: Allocator, order: Sequence[Job]) -> Iterator[Job]:
    """Yield the jobs for which there is a type each, all at the same time.

    A gang that needs several types has no single one: at the head of the queue it is placed first,
    behind other jobs it gets the GPUs that they leave.
    """
    queue = list(order)
    while queue and not _types_of(allocator, queue[0]):
        job = queue.pop(0)
        if not allocator.keep(job):
            allocator.start(job, allocator.by_speed(job))
    left = {gpu_type: allocator.room(gpu_type) for gpu_type in allocator.gpu_types}
    for job in queue:
        size = job.spec.num_gpus
        fitting = (gpu_type for gpu_type in _types_of(allocator, job) if left[gpu_type] >= size)
        if gpu_type := next(fitting, None):
            left[gpu_type] -= size
            yield job


def _types_of(allocator: Allocator, job: Job) -> Sequence[GpuType]:
    return [gpu_type for gpu_type in allocator.by_speed(job) if allocator.may_use(job, gpu_type)]


def _market(allocator: Allocator, jobs: Sequence[Job]) -> Market:
    """Return the jobs and the free GPUs as a market."""
    speeds = np.zeros((len(jobs), len(allocator.gpu_types)))
    most_on = np.zeros(speeds.shape, dtype=np.int64)
    sync_s, work = np.zeros(len(jobs)), np.array([max(job.steps_left, 1.0) for job in jobs])
    capacity = allocator.snapshot.cluster.capacity
    for row, job in enumerate(jobs):
        held = held_types(job)
        for column, gpu_type in enumerate(allocator.gpu_types):
            if not allocator.may_use(job, gpu_type):
                continue
            stays = _STAYS if gpu_type in held else 1.0
            speeds[row, column] = stays * allocator.throughput(job, gpu_type)
            slots = allocator.slots_for(job, gpu_type) if may_fork(job) else ()
            nodes = sum(capacity[slot] >= job.spec.num_gpus for slot in slots)
            most_on[row, column] = max(1, nodes)
        # Copies are averaged at the end of every round; `rounds` is how many one copy would need.
        rounds = work[row] / float(speeds[row].max()) / allocator.round.length_s
        sync_s[row] = job.spec.aggregation_cost_s * max(1.0, rounds)
    most = [job.spec.max_copies if may_fork(job) else 1 for job in jobs]
    return Market(
        work=work,
        speeds=speeds,
        units=np.array([job.spec.num_gpus for job in jobs]),
        most=np.minimum(most, most_on.sum(axis=1)),
        most_on=most_on,
        sync_s=sync_s,
        room=np.array([allocator.room(gpu_type) for gpu_type in allocator.gpu_types]),
    )


def _place(allocator: Allocator, jobs: Sequence[Job], counts: Counts) -> None:
    """Place the shares on free nodes: first one copy of each job, then the others."""
    copies = Copies(allocator)
    wanted: list[tuple[Job, dict[GpuType, int]]] = []
    for job, row in zip(jobs, counts, strict=True):
        held = held_types(job)
        gpu_types = {k: int(n) for k, n in zip(allocator.gpu_types, row, strict=True) if n > 0}
        by_speed = (gpu_type for gpu_type in allocator.by_speed(job) if gpu_type in gpu_types)
        first = sorted(by_speed, key=lambda gpu_type: gpu_type not in held)
        if any(allocator.choose(with_one_copy(job, gpu_type), gpu_type) for gpu_type in first):
            wanted.append((job, gpu_types))
    assign_nodes(allocator)
    placed = [(job, gpu_types) for job, gpu_types in wanted if job.job_id in allocator.placed]
    for job, _ in placed:
        copies.give(job, allocator.placed[job.job_id].gangs)
    for job, gpu_types in placed:
        gangs = allocator.placed[job.job_id].gangs
        if not may_fork(job) or gangs[0].is_spread:
            continue
        for gpu_type, number in gpu_types.items():
            missing = number - sum(gpu_type in gang.gpus_by_type for gang in gangs)
            gangs += tuple(islice(copies.places(job, [gpu_type], gangs), max(0, missing)))
        copies.give(job, gangs[: job.spec.max_copies])


def make(options: PolicyOptions) -> Sampling:
    """Return the policy (entry point)."""
    return Sampling(limits=options.limits)
