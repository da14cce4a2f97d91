"""Policies `srsf` and `las`: two greedy references that may stop anybody at the end of a round.

Both go through the jobs in an order of their own, and each job takes the fastest GPU type that
still has room for its gang. Neither looks ahead, and neither asks what a move costs; a job that
keeps its type keeps its place all the same (`assign_nodes`).

* `srsf`, shortest remaining service first: GPUs of the gang x seconds it still needs on its fastest
  type. The order that Tiresias (NSDI'19, section 3) takes as the best when sizes are known; the
  fastest-type rule is ours.
* `las`, least attained service first (Tiresias, NSDI'19, without its queues): GPU-seconds received
  so far, all types counting alike.

Ties go to the lower job id. Jobs whose reserved type has no fitting nodes left, and those that
found no room, take what remains, in the same order: where they run already, on their fastest type
with room, or on mixed types.
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
    rate = _best_rate(job.spec.rates, job.spec.num_gpus, gpu_types)
    return job.spec.num_gpus * job.steps_left / rate if rate > 0 else float("inf")


@lru_cache(maxsize=4096)
def _best_rate(rates: Throughputs, num_gpus: int, gpu_types: tuple[GpuType, ...]) -> float:
    """Return `Throughputs.best`; thousands of jobs ask it of a few dozen rates in every round."""
    return rates.best(gpu_types, num_gpus)


def attained_service(job: Job, _kinds: tuple[GpuType, ...]) -> float:
    """Return the GPU-seconds a job has received.

    To the millisecond: rounding errors of the sum would else decide among equals.
    """
    return round(job.progress.service_gpu_s, 3)


@dataclass(frozen=True, slots=True)
class Greedy:
    """Jobs by a key, the lowest first, each on its fastest type with room.

    Unless it `knows_lengths` it is not shown how long jobs will train.
    """

    name: str
    key: Callable[[Job, tuple[GpuType, ...]], float]
    knows_lengths: bool

    def plan(self, snapshot: Snapshot, round_: Round) -> Plan:
        """Return who runs where in `round_`."""
        board = Allocator(snapshot if self.knows_lengths else unknown_lengths(snapshot), round_)
        # The board's order is the canonical one, and sorting keeps it among equals.
        order = sorted(board.jobs, key=lambda job: self.key(job, board.gpu_types))
        for job in order:
            if not board.has_room:
                break
            any(board.choose(job, gpu_type) for gpu_type in board.by_speed(job))
        assign_nodes(board)
        board.fill(order)
        return board.plan()


def srsf(_: PolicyOptions | None = None) -> Greedy:
    """Return the policy of shortest remaining service first."""
    return Greedy("srsf", remaining_service, knows_lengths=True)


def las(_: PolicyOptions | None = None) -> Greedy:
    """Return the policy of least attained service first."""
    return Greedy("las", attained_service, knows_lengths=False)
