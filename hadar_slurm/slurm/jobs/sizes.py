"""The sizes of jobs whose steps are not given: as ended jobs say, within their time limits.

A run counts once Slurm shows its end, whatever its final state, since it held GPUs for that time.
Only the last run of a requeued job is known, so such jobs say nothing.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field, replace

from hadar_slurm.core.cluster import GpuType, JobId
from hadar_slurm.core.job import JobSpec
from hadar_slurm.core.learned_sizes import EndedJob, EndedJobs, learned_steps
from hadar_slurm.core.type_failures import Work
from hadar_slurm.jobspec.description import Description
from hadar_slurm.jobspec.estimator import Estimator, work_of
from hadar_slurm.slurm.client.parse import QueueRow

# What ended and what trains counts after this time at the latest.
_RENEW_S = 1800.0


@dataclass
class LearnedSizes:
    """Remembers which jobs it has counted; `ended` may also have jobs of a former hadard."""

    estimator: Estimator
    ended: EndedJobs
    is_used: bool = True
    _counted: set[JobId] = field(default_factory=set)
    _training: set[JobId] = field(default_factory=set)
    _renewed_s: float = -math.inf

    def see_ended(
        self,
        row: QueueRow,
        description: Description,
        gpu_type: str,
        gpu_types: Collection[GpuType],
    ) -> None:
        """Learn from a job that Slurm shows as ended; `gpu_type` is the one that it held."""
        lasted_s, work = row.ended_s - row.started_s, work_of(description, row.user)
        if row.key in self._counted or row.restarts or description.copies > 1:
            return
        if work is None or not (gpu_type and row.started_s and lasted_s > 0):
            return
        self._counted.add(row.key)
        known = self.estimator.throughputs(description, row.user, gpu_types)
        speed, best = known.on(gpu_type, description.gpus), known.best(gpu_types, description.gpus)
        if speed > 0:
            job = EndedJob(row.key, row.ended_s, work, lasted_s * speed / best)
            self._training.discard(row.key)
            self.ended.add(job)

    def renew(self, now_s: float) -> None:
        """Let what was learned since the last time matter."""
        if now_s >= self._renewed_s + _RENEW_S:
            self._renewed_s = now_s
            self.ended.durations.renew()

    def believed(
        self,
        description: Description,
        spec: JobSpec,
        steps_done: float,
        gpu_types: Collection[GpuType],
        *,
        is_running: bool,
    ) -> tuple[JobSpec, str]:
        """Return a job with its learned size, and what that rests on; "" where it is not used.

        `spec` has as many steps as fit the time limit.
        """
        work = work_of(description, spec.user)
        if not self.is_used or description.steps or work is None or not self.ended.suffice:
            return spec, ""
        best = spec.throughputs.best(gpu_types, spec.num_gpus)
        if best <= 0 or steps_done >= spec.total_steps:
            return spec, ""
        if is_running:
            self._training.add(spec.job_id)
            self.ended.durations.see(spec.job_id, work, steps_done / best)
        total = learned_steps(
            self.ended.durations,
            work,
            done=steps_done,
            best=best,
            limit_steps=float(spec.total_steps),
        )
        return replace(spec, total_steps=total), self._remark(work)

    def _remark(self, work: Work) -> str:
        return f"its size is learned, from {self.ended.origin(work)}"

    def keep(self, jobs: Collection[JobId]) -> None:
        """Forget all jobs but these, which Slurm shows."""
        self._counted.intersection_update(jobs)
        for job in self._training.difference(jobs):
            self.ended.durations.forget(job)
        self._training.intersection_update(jobs)
