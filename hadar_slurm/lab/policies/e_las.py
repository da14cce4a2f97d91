"""Policy `e-las`: least attained service, corrected by each job's progress rate.

Source: E-LAS (ICPP'20, doi 10.1145/3404397.3404415). It does not know completion times; priority
depends on the real-time epoch progress rate and the service attained in time and space. Its formula
is not openly available. Our reconstruction:

* Attained service A is GPUs x seconds. As in Tiresias (NSDI'19, section 3.3) a job drops one queue
  at 3,250 and one at 7,200 of these GPU-seconds; queues are served in order.
* A job's epoch progress rate is p / A, p being its steps over the steps that its user asked for. At
  this rate it needs (1 - p) A / p more, and in a queue the job that needs the least goes first. A
  job without progress counts as needing nothing.

Like Tiresias the policy does not distinguish GPU types; each job takes the type with most free
GPUs.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from hadar_slurm.core.job import Job, Phase
from hadar_slurm.lab.policies.tiresias import Tiresias
from hadar_slurm.policies.entry_point import without_options


@dataclass(frozen=True, slots=True)
class Elas(Tiresias):
    """The policy: Tiresias with another order in its queues."""

    name: str = "e-las"

    def _queue_key(self, job: Job) -> tuple[float, ...]:
        queue = bisect_right(self.limits_gpu_s, job.progress.service_gpu_s)
        # Rounded to seconds, so that rounding errors of sums do not break ties.
        left_gpu_s = round(service_left(job))
        return (queue, left_gpu_s, job.phase is Phase.QUEUED, job.spec.submitted_s)


def service_left(job: Job) -> float:
    """Return the GPU-seconds a job still needs at its epoch progress rate so far."""
    done = min(1.0, job.progress.steps_done / job.spec.total_steps)
    return job.progress.service_gpu_s * (1.0 - done) / done if done > 0 else 0.0


make = without_options(Elas)
