"""Policy `tiresias`: discretised two-dimensional least attained service.

Source: Tiresias (NSDI'19, section 3.3, Discretized 2D-LAS) and its published simulator. A job's
attained service is GPUs x seconds. It drops one queue at each limit that it has reached; the limits
are the simulator's, 3,250 and 7,200 GPU-seconds. Queues are served in order; within a queue running
jobs go first, then FIFO. A job that does not fit is skipped; running jobs without GPUs are
preempted.

Not implemented: the promotion of starved jobs to queue 0, which is off in the simulator's defaults,
and the placement by a profile of the model's tensors, which no trace here has.

Tiresias knows one GPU type. Here a job that is to run keeps its GPUs if it can; any other takes the
type with the most free GPUs (ties to the first by name) on which it fits and trains.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from hadar_slurm.core.job import Job, Phase
from hadar_slurm.core.plan import Plan
from hadar_slurm.core.snapshot import Round, Snapshot
from hadar_slurm.lab.policies.lengths import unknown_lengths
from hadar_slurm.placement.allocator import Allocator
from hadar_slurm.placement.node_assignment import assign_nodes
from hadar_slurm.policies.entry_point import without_options


@dataclass(frozen=True, slots=True)
class Tiresias:
    """The policy; `limits_gpu_s` are the GPU-seconds at which a job leaves each queue, rising."""

    limits_gpu_s: tuple[float, ...] = (3250.0, 7200.0)
    name: str = "tiresias"

    def plan(self, snapshot: Snapshot, round_: Round) -> Plan:
        """Return which jobs run in `round_`, and on which GPUs."""
        allocator = Allocator(unknown_lengths(snapshot), round_)
        # By the snapshot's jobs, with the steps that they have done.
        keys = {job.job_id: self._queue_key(job) for job in snapshot.jobs}
        order = sorted(allocator.jobs, key=lambda job: keys[job.job_id])
        for job in order:
            if not allocator.has_room:
                break
            held = allocator.runs_on(job)
            if not (held and allocator.choose(job, held)) and not allocator.keep(job):
                allocator.choose_first(job, allocator.by_room(job))
        assign_nodes(allocator)
        allocator.fill(order, allocator.by_room)
        return allocator.plan()

    def _queue_key(self, job: Job) -> tuple[float, ...]:
        queue = bisect_right(self.limits_gpu_s, job.progress.service_gpu_s)
        return (queue, job.phase is Phase.QUEUED, job.spec.submitted_s)


make = without_options(Tiresias)
