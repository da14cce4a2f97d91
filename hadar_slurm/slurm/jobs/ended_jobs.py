"""What ended jobs teach: how far claims are off, and how long jobs train that give no steps.

A job's reports are its owner's words as well. So a job that reports nothing, or too little, comes
as far as its run time says, once that is well beyond the claim; and how far an owner's claims were
off (`core.claims.Credit`) is learned from the run times of jobs that Slurm has completed.

A run counts once Slurm shows its end, whatever its final state, since it held GPUs for that time.
Only the last run of a requeued job is known, so such jobs say nothing.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from functools import cached_property

from hadar_slurm.core.claims import Judged, believed_steps
from hadar_slurm.core.cluster import GpuType, JobId
from hadar_slurm.core.job import JobSpec, SizeBelief
from hadar_slurm.core.learned_sizes import EndedJob, EndedJobs, learned_steps
from hadar_slurm.core.type_failures import Unsized
from hadar_slurm.jobspec.estimator import Estimator, work_of
from hadar_slurm.slurm.jobs.seen import SeenJob

# A run of this many times the time claimed outlives its claim, without a report that says so.
# Starting takes time, and throughputs differ a little from those that were given.
_OUTLIVED = 1.5
# Runs of less than this say nothing: most of the time they start.
_LEAST_S = 300.0


@dataclass
class ClaimChecks:
    """Remembers which of the ended jobs it has counted, also those of a hadard before it."""

    estimator: Estimator
    _counted: set[JobId] = field(default_factory=set)
    _judged: list[Judged] = field(default_factory=list)

    def take_judged(self) -> list[Judged]:
        """Return the jobs judged since the last call."""
        judged, self._judged = self._judged, []
        return judged

    def believed(self, seen: SeenJob, spec: JobSpec) -> tuple[JobSpec, str]:
        """Return a job with what is believed of its owner's claims; say why."""
        description, user, ran_s = seen.description, seen.row.user, seen.ran_s
        if not description.steps or description.copies > 1:
            return spec, ""
        claimed, speeds = float(spec.total_steps), spec.throughputs
        done = float(seen.report.steps_done) if seen.report else 0.0
        left_s = max(0.0, (seen.limit_s or math.inf) - ran_s)
        by_time = ran_s * seen.gang.throughput(speeds) if seen.gang and ran_s else 0.0
        done = max(done, by_time if by_time > _OUTLIVED * claimed else 0.0)
        times = self.estimator.credits.of(user).factor(seen.now_s)
        fastest = speeds.best(speeds.gpu_types, spec.num_gpus)
        total, doubt = believed_steps(claimed, done, left_s, fastest, times=times)
        if total == spec.total_steps:
            return spec, ""
        return replace(spec, total_steps=total, claimed_steps=spec.total_steps), doubt

    def limit_left_s(self, seen: SeenJob) -> float | None:
        """Return what is left of a job's time limit while its owner's claims are unproven.

        None once they are, and for a job of which nothing is claimed.
        """
        if not (seen.description.steps or seen.description.throughputs):
            return None
        left_s = max(0.0, (seen.limit_s or math.inf) - seen.ran_s)
        return self.estimator.credits.of(seen.row.user).limit_left_s(left_s, seen.now_s)

    @cached_property
    def _counted_until_s(self) -> dict[str, float]:
        """Until when a former hadard has counted each user's ended jobs, as known at the start."""
        return {user: credit.at_s for user, credit in self.estimator.credits.by_user.items()}

    def see_ended(self, seen: SeenJob, gpu_type: str) -> None:
        """Learn from a job that Slurm shows as completed, of which all runs but one are known."""
        row, description = seen.row, seen.description
        lasted_s = row.ended_s - row.started_s
        if (
            row.key in self._counted
            or row.state != "COMPLETED"
            or row.restarts
            or not (gpu_type and row.started_s and description.steps)
            or lasted_s < _LEAST_S
            or row.ended_s <= self._counted_until_s.get(row.user, 0.0)
        ):
            return
        self._counted.add(row.key)
        used = self.estimator.throughputs(description, row.user, [gpu_type])
        steps_per_s = used.on(gpu_type, description.gpus)
        if steps_per_s <= 0:
            return
        given = {name.lower(): value for name, value in description.throughputs.items()}
        said = given.get(gpu_type, 0.0)
        off = max(said / steps_per_s, steps_per_s / said) if said > 0 else 1.0
        claimed_s = max(1.0, description.steps / steps_per_s)
        self.estimator.credits.learn(row.user, claimed_s, lasted_s, row.ended_s, speeds_off=off)
        job = Judged(row.key, row.user, description.workload, claimed_s, lasted_s, off)
        self._judged.append(job)

    def keep(self, jobs: Collection[JobId]) -> None:
        """Forget all jobs but these."""
        self._counted.intersection_update(jobs)


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

    def see_ended(self, seen: SeenJob, gpu_type: str, gpu_types: Collection[GpuType]) -> None:
        """Learn from a job that Slurm shows as ended; `gpu_type` is the one that it held."""
        row, description = seen.row, seen.description
        lasted_s, work = row.ended_s - row.started_s, work_of(description, row.user)
        asked_s = description.limit_s or seen.limit_s or math.inf
        if row.key in self._counted or row.restarts or description.copies > 1:
            return
        if work is None or not (gpu_type and row.started_s and lasted_s > 0):
            return
        self._counted.add(row.key)
        known = self.estimator.throughputs(description, row.user, gpu_types)
        speed, best = known.on(gpu_type, description.gpus), known.best(gpu_types, description.gpus)
        if speed > 0:
            service_s = lasted_s * speed / best
            self._training.discard(row.key)
            self.ended.add(EndedJob(row.key, row.ended_s, work, service_s, asked_s=asked_s))

    def renew(self, now_s: float) -> None:
        """Let what was learned since the last time matter."""
        if now_s >= self._renewed_s + _RENEW_S:
            self._renewed_s = now_s
            if self.is_used and self.ended.suffice:
                self.ended.durations.renew()

    def believed(
        self, seen: SeenJob, spec: JobSpec, steps_done: float, gpu_types: Collection[GpuType]
    ) -> tuple[JobSpec, SizeBelief | None, str]:
        """Return a job with its learned size, and what that rests on; None, "" where it has none.

        `spec` has as many steps as fit the time limit; it is judged by all of the limit, as later.
        The returned one has the limit in seconds, unless hadard sets that by the type.
        """
        asks, ended, limit_s = seen.description, self.ended, seen.limit_s or math.inf
        work, best = work_of(asks, spec.user), spec.throughputs.best(gpu_types, spec.num_gpus)
        is_left = best > 0 and steps_done < spec.total_steps
        if not (self.is_used and work and is_left and ended.suffice) or asks.steps:
            return spec, None, ""
        job = Unsized(work, asks.limit_s or limit_s, spec.total_steps / best)
        if seen.row.state == "RUNNING":
            self._training.add(spec.job_id)
            ended.durations.see(spec.job_id, job._replace(limit_s=job.asked_s), steps_done / best)
        stays = seen.is_pending and not spec.can_checkpoint
        total, belief = learned_steps(ended.durations, job, done=steps_done, best=best, stays=stays)
        spec = replace(spec, total_steps=total, limit_s=math.inf if asks.time_on else limit_s)
        return spec, belief, f"its size is learned, from {ended.origin(work)}"

    def keep(self, jobs: Collection[JobId]) -> None:
        """Forget all jobs but these, which Slurm shows."""
        self._counted.intersection_update(jobs)
        for job in self._training.difference(jobs):
            self.ended.durations.forget(job)
        self._training.intersection_update(jobs)
