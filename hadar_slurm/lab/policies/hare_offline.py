"""Policy `hare-offline`: Hare's order and list scheduling for whole gangs, sizes known.

Source: the offline scheduler of Hare (HPDC'22; IEEE TCC 12(4), 2024), reconstructed in `hare.py`
for tasks. Neither Slurm nor the simulator time-shares a GPU between the workers of one job, so this
is Hare without its relaxed synchronisation, and a round of training is the scheduler's round:

* *Order.* Jobs by the GPU-seconds they still need on the mean GPU of the cluster (at harmonic-mean
  speed), the least first: the order without a program, all weights being 1.
* *List scheduling.* In that order each job takes the GPUs with which it ends first, including the
  wait for the jobs before it and a restart. A running job keeps its GPUs until it would start on
  others (our own rule: without it there were fifteen times as many migrations).
* *Work conservation* (our own). The GPUs that are left go to queued jobs, in the same order, each
  on its fastest type with room; a job can migrate later.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from hadar_slurm.core.cluster import GpuType
from hadar_slurm.core.job import Job, Phase
from hadar_slurm.core.plan import Plan
from hadar_slurm.core.snapshot import Round, Snapshot
from hadar_slurm.placement.allocator import Allocator
from hadar_slurm.placement.node_assignment import assign_nodes
from hadar_slurm.policies.entry_point import without_options


@dataclass(frozen=True, slots=True)
class HareOffline:
    """The policy."""

    name: str = "hare-offline"

    def plan(self, snapshot: Snapshot, round_: Round) -> Plan:
        """Return which jobs run in `round_`, and on which GPUs."""
        allocator = Allocator(snapshot, round_)
        order = sorted(allocator.jobs, key=lambda job: mean_work(job, snapshot))
        # Heaps of when each GPU becomes free.
        free_s = {gpu_type: [0.0] * allocator.room(gpu_type) for gpu_type in allocator.gpu_types}
        for job in order:
            if not allocator.has_room:
                break
            gpu_type = _first_end(allocator, job, free_s)
            if gpu_type is None:
                allocator.keep(job)
                continue
            begins_s = _take(job, free_s[gpu_type], _lasts_s(allocator, job, gpu_type))
            held = allocator.runs_on(job)
            if begins_s <= 0:
                if not allocator.choose(job, gpu_type):
                    allocator.keep(job)
            elif held is not None and allocator.choose(job, held):
                _take(job, free_s[held], begins_s)
        assign_nodes(allocator)
        allocator.fill(order)
        return allocator.plan()


def mean_work(job: Job, snapshot: Snapshot) -> float:
    """Return the GPU-seconds a job still needs at the harmonic mean of the GPUs' speeds."""
    size, seconds, gpus = job.spec.num_gpus, 0.0, 0
    for gpu_type, count in snapshot.cluster.gpus_by_type.items():
        throughput = job.spec.throughputs.on(gpu_type, size)
        if throughput > 0:
            seconds, gpus = seconds + count / throughput, gpus + count
    return size * job.steps_left * seconds / gpus if gpus else math.inf


def _first_end(
    allocator: Allocator, job: Job, free_s: Mapping[GpuType, Sequence[float]]
) -> GpuType | None:
    """Return the type with which a job ends first, ties to the fastest; None without one."""
    size = job.spec.num_gpus
    ends_s = {
        k: sorted(free_s[k])[size - 1] + _lasts_s(allocator, job, k)
        for k in allocator.by_speed(job)
        if len(free_s[k]) >= size and allocator.may_use(job, k)
    }
    return min(ends_s, key=lambda gpu_type: ends_s[gpu_type], default=None)


def _take(job: Job, pool: list[float], lasts_s: float) -> float:
    """Reserve the GPUs of a type that become free first; return the start in seconds."""
    taken = [heappop(pool) for _ in range(job.spec.num_gpus)]
    for _ in taken:
        heappush(pool, taken[-1] + lasts_s)
    return taken[-1]


def _lasts_s(allocator: Allocator, job: Job, gpu_type: GpuType) -> float:
    """Return the seconds from a job's start on a type to its end, restart included."""
    has_run = job.phase is Phase.RUNNING or job.progress.steps_done > 0
    moves = has_run and allocator.runs_on(job) != gpu_type
    restart_s = job.spec.restart_cost_s if moves else 0.0
    return job.steps_left / allocator.throughput(job, gpu_type) + restart_s


make = without_options(HareOffline)
