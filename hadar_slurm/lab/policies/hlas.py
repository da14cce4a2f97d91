"""Policy `hlas`: least attained service where GPUs differ, for jobs of unknown length.

Source: the online scheduler of Hare (IEEE Transactions on Cloud Computing 12(4), 2024), of which
only the name, heterogeneity-aware least attained service, and the purpose are published openly;
whether it has queues is not. Our reconstruction:

* *Attained service* is normalised: a GPU-second on a type on which the job runs at a tenth of its
  best throughput counts as a tenth of a GPU-second, so slow GPUs cost a job no priority.
* *Queues* are those of Tiresias (NSDI'19): a job drops one queue at 3,250 and one at 7,200 such
  GPU-seconds; queues are served in order; in a queue running jobs go before queued ones.
* *Types.* Within that, a type goes to the job with the greatest comparative advantage, its
  throughput there over its mean throughput on all types of the cluster, then by arrival. A running
  job migrates only if it gains a tenth (our own rule), since a restart has a cost.

The policy uses no step counts (`unknown_lengths`). On identical GPUs it equals policy `tiresias`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from hadar_slurm.core.cluster import GpuType
from hadar_slurm.core.job import Job, Phase
from hadar_slurm.core.plan import Plan
from hadar_slurm.core.snapshot import Round, Snapshot
from hadar_slurm.lab.policies.lengths import normalised_service, unknown_lengths
from hadar_slurm.placement.allocator import Allocator
from hadar_slurm.placement.node_assignment import assign_nodes
from hadar_slurm.policies.entry_point import without_options

# Bonus factor for the type on which a job runs: a migration costs a restart.
_STAYS = 1.1


@dataclass(frozen=True, slots=True)
class Hlas:
    """The policy; `limits_gpu_s` are the GPU-seconds at which a job leaves each queue, rising."""

    limits_gpu_s: tuple[float, ...] = (3250.0, 7200.0)
    name: str = "hlas"

    def plan(self, snapshot: Snapshot, round_: Round) -> Plan:
        """Return which jobs run in `round_`, and on which GPUs."""
        allocator = Allocator(unknown_lengths(snapshot), round_)
        places = {job.job_id: self._queue_key(job, allocator.gpu_types) for job in allocator.jobs}
        order = sorted(allocator.jobs, key=lambda job: (places[job.job_id], job.spec.submitted_s))
        for _, alike in groupby(order, key=lambda job: places[job.job_id]):
            if not allocator.has_room:
                break
            _serve(allocator, list(alike))
        assign_nodes(allocator)
        allocator.fill(order)
        return allocator.plan()

    def _queue_key(self, job: Job, gpu_types: Sequence[GpuType]) -> tuple[int, bool]:
        queue = bisect_right(self.limits_gpu_s, normalised_service(job, gpu_types))
        return (queue, job.phase is Phase.QUEUED)


def _serve(allocator: Allocator, jobs: Iterable[Job]) -> None:
    """Reserve types for jobs of one queue, the pair of greatest advantage first."""
    pairs = []
    for place, job in enumerate(jobs):
        suits = _advantages(allocator, job)
        if allocator.runs_on(job) not in suits and allocator.keep(job):
            continue
        pairs += [(-advantage, place, gpu_type, job) for gpu_type, advantage in suits.items()]
    served = set()
    for _, place, gpu_type, job in sorted(pairs, key=lambda pair: pair[:3]):
        # A running job may keep its GPUs even where no job can start, e.g. on a drained node.
        if place not in served and (
            allocator.choose(job, gpu_type)
            or (allocator.runs_on(job) == gpu_type and allocator.keep(job))
        ):
            served.add(place)


def _advantages(allocator: Allocator, job: Job) -> Mapping[GpuType, float]:
    """Return a job's throughput on each type where it trains, over its mean on all types."""
    speeds = {gpu_type: allocator.throughput(job, gpu_type) for gpu_type in allocator.by_speed(job)}
    mean = sum(speeds.values()) / max(1, len(allocator.gpu_types))
    held = allocator.runs_on(job)
    return {
        gpu_type: speed / mean * (_STAYS if gpu_type == held else 1.0)
        for gpu_type, speed in speeds.items()
        if speed > 0
    }


make = without_options(Hlas)
