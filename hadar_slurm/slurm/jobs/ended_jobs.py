"""What ended jobs teach: how far claims are off, and how long jobs train that give no steps.

A job's reports are its owner's words as well. So a job that reports nothing, or too little, comes
as far as its run time says, once that is well beyond the claim; and how far an owner's claims were
off (`core.claims.Credit`) is learned from the run times of jobs that have ended.

A run counts once Slurm shows its end, whatever its final state, since it held GPUs for that time.
What a requeued job trained before is not known, nor what one that did not complete had left. So
each of their runs can show that a claim was too small, by outliving it, and never that it was true.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field, replace

from hadar_slurm.core.claims import LEAST_RUN_S, OUTLIVED, Judged, RunOnType, believed_steps
from hadar_slurm.core.cluster import GpuType, JobId
from hadar_slurm.core.job import JobSpec, SizeBelief
from hadar_slurm.core.learned_sizes import EndedJob, EndedJobs, learned_steps
from hadar_slurm.core.type_failures import Unsized
from hadar_slurm.jobspec.estimator import Estimator, work_of
from hadar_slurm.slurm.jobs.seen import SeenJob


@dataclass
class ClaimChecks:
    """Remembers which of the ended jobs it has counted, also those of a hadard before it."""

    estimator: Estimator
    # The runs that were counted, by job and start; by job, the run that goes on.
    _counted: set[tuple[JobId, float]] = field(default_factory=set)
    _running: dict[JobId, RunOnType] = field(default_factory=dict)
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
        done = max(done, by_time if by_time > OUTLIVED * claimed else 0.0)
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

    def see(self, seen: SeenJob, gpu_type: str) -> None:
        """Learn from a run that has ended, and from one that ended as its job was requeued."""
        row, credits = seen.row, self.estimator.credits
        run = self._running.get(row.key)
        if run and run.began_s != row.started_s:
            self._learn(seen, run, credits.now_s)
            run = None
        lasted_s = seen.ran_s if row.is_live else row.ended_s - row.started_s
        # Owners may change what they claim meanwhile: the least counts.
        steps = min(filter(None, (run and run.steps, seen.description.steps)), default=0)
        found = RunOnType(row.started_s, steps, lasted_s, gpu_type)
        if row.is_live:
            if row.state == "RUNNING" and steps and gpu_type:
                self._running[row.key] = found
        elif row.started_s and row.ended_s > credits.known_until_s(row.user):
            is_whole = row.state == "COMPLETED" and not row.restarts
            self._learn(seen, found, row.ended_s, is_whole=is_whole)

    def _learn(self, seen: SeenJob, run: RunOnType, at_s: float, *, is_whole: bool = False) -> None:
        """Count a run, once; one that is not whole if it shows that the claim was too small."""
        key = seen.key, run.began_s
        self._running.pop(seen.key, None)
        if key in self._counted or run.lasted_s < LEAST_RUN_S or not run.gpu_type:
            return
        self._counted.add(key)
        asks = replace(seen.description, steps=run.steps)
        found = self.estimator.judged(asks, seen.row.user, seen.key, run.gpu_type)
        found = found and replace(found, lasted_s=run.lasted_s)
        if found and (is_whole or found.outlives):
            self.estimator.credits.judge(found, at_s, is_whole=is_whole)
            self._judged.append(found)

    def keep(self, jobs: Collection[JobId]) -> None:
        """Forget all jobs but these."""
        self._counted = {run for run in self._counted if run[0] in jobs}
        self._running = {job: run for job, run in self._running.items() if job in jobs}


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
