"""Policy `e-las`: least attained service, corrected by how far each job has come with it.

Source: E-LAS (ICPP'20, doi 10.1145/3404397.3404415): completion times are not known; the priority
comes from the real-time epoch progress rate and the service attained in time and space. Its formula
is not published openly. The rule is our reconstruction:

* Attained service A is GPUs x seconds, and as in Tiresias (NSDI'19, section 3.3) a job falls a
  queue at 3,250 and at 7,200 of these GPU-seconds; queues are served in order.
* A job's epoch progress rate is p / A, p being the share of its epochs that is done: its steps
  over the steps that its user asked for. At this rate it needs (1 - p) A / p more, and in a queue
  the job that needs the least goes first. One without progress yet has the benefit of the doubt.

So the number of epochs is known, as it is wherever a user writes it into a script, and how long one
takes is not. Like Tiresias it knows one GPU type, and types are taken by plenty.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from hadar_slurm.core.job import Job, Phase
from hadar_slurm.core.plan import Plan
from hadar_slurm.core.snapshot import Round, Snapshot
from hadar_slurm.lab.policies.lengths import unknown_lengths
from hadar_slurm.lab.policies.tiresias import serve_by_plenty
from hadar_slurm.placement.allocator import Allocator
from hadar_slurm.policies.policy import PolicyOptions


@dataclass(frozen=True, slots=True)
class Elas:
    """The policy; `limits_gpu_s` are the GPU-seconds at which a job leaves each queue, rising."""

    limits_gpu_s: tuple[float, ...] = (3250.0, 7200.0)
    name: str = "e-las"

    def plan(self, snapshot: Snapshot, round_: Round) -> Plan:
        """Return who runs where in `round_`."""
        board = Allocator(unknown_lengths(snapshot), round_)
        jobs = snapshot.by_id
        order = sorted(board.jobs, key=lambda job: self._place_in_line(jobs[job.job_id]))
        return serve_by_plenty(board, order)

    def _place_in_line(self, job: Job) -> tuple[int, float, bool, float]:
        service_gpu_s = job.progress.service_gpu_s
        queue = bisect_right(self.limits_gpu_s, service_gpu_s)
        # To the second: rounding errors of sums would else decide among equals.
        left_gpu_s = round(service_left(job))
        return (queue, left_gpu_s, job.phase is Phase.QUEUED, job.spec.submitted_s)


def service_left(job: Job) -> float:
    """Return the GPU-seconds a job still needs at its epoch progress rate so far."""
    done = min(1.0, job.progress.steps_done / job.spec.total_steps)
    return job.progress.service_gpu_s * (1.0 - done) / done if done > 0 else 0.0


def make(_: PolicyOptions) -> Elas:
    """Return the policy, as its entry point asks for it."""
    return Elas()
