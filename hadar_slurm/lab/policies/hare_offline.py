"""Policy `hare-offline`: Hare's order and list scheduling for whole gangs, sizes known.

Source: the offline scheduler of Hare (HPDC'22; IEEE TCC 12(4), 2024), reconstructed in `hare.py`
for tasks. What a backend runs are gangs, not tasks: neither Slurm nor the simulator lets the
workers of one job take turns on a GPU. So this is Hare without its relaxed synchronisation, a round
of training being the scheduler's round:

* *Order.* Jobs by the GPU-seconds they still need on the mean GPU of the cluster (at harmonic-mean
  speed), the least first: the order without a program, all weights being 1.
* *List scheduling.* In that order each takes the GPUs with which it ends first, the wait until
  those before it have ended and a restart included. Who would begin now gets GPUs of that type;
  the others know when theirs come free, so they do not take slow ones in haste, and who runs keeps
  what it has until then (ours: left to chance, it made fifteen times as many moves).
* *Work conservation* (ours). What is left goes to who waits, in the same order, on its fastest type
  with room: a job can move on when its turn comes.

Arrivals yet to come are in no snapshot: each round plans for the jobs that are there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from hadar_slurm.core.cluster import GpuType
from hadar_slurm.core.job import Job, Phase
from hadar_slurm.core.plan import Plan
from hadar_slurm.core.snapshot import Round, Snapshot
from hadar_slurm.placement.allocator import Allocator
from hadar_slurm.placement.node_assignment import assign_nodes
from hadar_slurm.policies.policy import PolicyOptions


@dataclass(frozen=True, slots=True)
class HareOffline:
    """The policy."""

    name: str = "hare-offline"

    def plan(self, snapshot: Snapshot, round_: Round) -> Plan:
        """Return who runs where in `round_`."""
        board = Allocator(snapshot, round_)
        order = sorted(board.jobs, key=lambda job: mean_work(job, snapshot))
        free_s = {gpu_type: [0.0] * board.room(gpu_type) for gpu_type in board.gpu_types}
        for pool in free_s.values():
            heapify(pool)
        for job in order:
            if not board.has_room:
                break
            gpu_type = _first_end(board, job, free_s)
            if gpu_type is None:
                board.keep(job)
                continue
            begins_s = _take(job, free_s[gpu_type], _lasts_s(board, job, gpu_type))
            held = board.runs_on(job)
            if begins_s <= 0:
                if not board.choose(job, gpu_type):
                    board.keep(job)
            elif held is not None and board.choose(job, held):
                _take(job, free_s[held], begins_s)
        assign_nodes(board)
        board.fill(order)
        return board.plan()


def mean_work(job: Job, snapshot: Snapshot) -> float:
    """Return the GPU-seconds a job still needs at the harmonic mean of the GPUs' speeds."""
    size, seconds, gpus = job.spec.num_gpus, 0.0, 0
    for gpu_type, count in snapshot.cluster.gpus_by_type.items():
        rate = job.spec.rates.on(gpu_type, size)
        if rate > 0:
            seconds, gpus = seconds + count / rate, gpus + count
    return size * job.steps_left * seconds / gpus if gpus else math.inf


def _first_end(
    board: Allocator, job: Job, free_s: Mapping[GpuType, Sequence[float]]
) -> GpuType | None:
    """Return the type with which a job ends first, the fastest of equals."""
    ends_s = {}
    for gpu_type in board.by_speed(job):
        if len(free_s[gpu_type]) >= job.spec.num_gpus and board.may_use(job, gpu_type):
            begins_s = sorted(free_s[gpu_type])[job.spec.num_gpus - 1]
            ends_s[gpu_type] = begins_s + _lasts_s(board, job, gpu_type)
    return min(ends_s, key=lambda gpu_type: ends_s[gpu_type], default=None)


def _take(job: Job, pool: list[float], lasts_s: float) -> float:
    """Give a job the GPUs of a type that come free first; return when it begins."""
    taken = [heappop(pool) for _ in range(job.spec.num_gpus)]
    for _ in taken:
        heappush(pool, taken[-1] + lasts_s)
    return taken[-1]


def _lasts_s(board: Allocator, job: Job, gpu_type: GpuType) -> float:
    """Return how long a job takes on a type from its beginning there, in seconds."""
    has_run = job.phase is Phase.RUNNING or job.progress.steps_done > 0
    moves = has_run and board.runs_on(job) != gpu_type
    return job.steps_left / board.rate(job, gpu_type) + (job.spec.restart_cost_s if moves else 0.0)


def make(_: PolicyOptions) -> HareOffline:
    """Return the policy, as its entry point asks for it."""
    return HareOffline()
