"""Policies `srsf` and `las`: two greedy references that may preempt any job at the end of a round.

Both sort the jobs, and each job takes the fastest GPU type with room for its gang. Neither looks
ahead or counts the cost of a migration; a job that keeps its type keeps its nodes (`assign_nodes`).

* `srsf`, shortest remaining service first: GPUs of the gang x seconds it still needs on its fastest
  type. Tiresias (NSDI'19, section 3) takes this order as the best when sizes are known; the
  fastest-type rule is our own.
* `las`, least attained service first (Tiresias, NSDI'19, without its queues): GPU-seconds received
  so far, all types counting alike.

Ties go to the lower job id. Jobs without fitting nodes take the remaining GPUs in the same order:
those they run on, their fastest type with room, or mixed types.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from hadar_slurm.core.cluster import GpuType
from hadar_slurm.core.job import Job
from hadar_slurm.core.plan import Plan
from hadar_slurm.core.snapshot import Round, Snapshot
from hadar_slurm.core.throughput import Throughputs
from hadar_slurm.lab.policies.lengths import unknown_lengths
from hadar_slurm.placement.allocator import Allocator
from hadar_slurm.placement.node_assignment import assign_nodes
from hadar_slurm.policies.policy import PolicyOptions


def remaining_service(job: Job, gpu_types: tuple[GpuType, ...]) -> float:
    """Return the GPU-seconds a job still needs on its fastest of `gpu_types`; inf if on none."""
    throughput = _best(job.spec.throughputs, gpu_types, job.spec.num_gpus)
    return job.spec.num_gpus * job.steps_left / throughput if throughput > 0 else float("inf")


# Cached, since thousands of jobs share a few dozen throughputs.
_best = lru_cache(maxsize=4096)(Throughputs.best)


def attained_service(job: Job, _gpu_types: tuple[GpuType, ...]) -> float:
    """Return the GPU-seconds a job has received."""
    # Rounded to milliseconds, so that rounding errors of the sum do not break ties.
    return round(job.progress.service_gpu_s, 3)


@dataclass(frozen=True, slots=True)
class Greedy:
    """Jobs by rising key, each on its fastest type; job durations only if `knows_lengths`."""

    name: str
    key: Callable[[Job, tuple[GpuType, ...]], float]
    knows_lengths: bool

    def plan(self, snapshot: Snapshot, round_: Round) -> Plan:
        """Return which jobs run in `round_`, and on which GPUs."""
        allocator = Allocator(snapshot if self.knows_lengths else unknown_lengths(snapshot), round_)
        # The sort is stable: ties keep the allocator's canonical order.
        order = sorted(allocator.jobs, key=lambda job: self.key(job, allocator.gpu_types))
        for job in order:
            if not allocator.choose_first(job) and not allocator.has_room:
                break
        assign_nodes(allocator)
        allocator.fill(order)
        return allocator.plan()


def srsf(_: PolicyOptions | None = None) -> Greedy:
    """Return the policy of shortest remaining service first."""
    return Greedy("srsf", remaining_service, knows_lengths=True)


def las(_: PolicyOptions | None = None) -> Greedy:
    """Return the policy of least attained service first."""
    return Greedy("las", attained_service, knows_lengths=False)
