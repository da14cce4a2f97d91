"""What ended jobs teach: how far claims are off, and how long jobs train that give no steps.

A job's reports are its owner's words as well. So a job that reports nothing, or too little, comes
as far as its run time says, once that is well beyond the claim; and how far an owner's claims were
off is learned from the run times of jobs (`jobspec/claimed_runs.py`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from hadar_slurm.core.claims import OUTLIVED_BY_TIME, Judged, believed_steps
from hadar_slurm.core.cluster import GpuType, JobId
from hadar_slurm.core.job import JobSpec, SizeBelief
from hadar_slurm.core.learned_sizes import EndedJob, EndedJobs, learned_steps
from hadar_slurm.core.type_failures import Unsized
from hadar_slurm.jobspec.claimed_runs import ClaimedRuns, RunOnType, ShownRun
from hadar_slurm.jobspec.estimator import Estimator, work_of
from hadar_slurm.slurm.client.parse import ENDED_STATES, HOLDING_STATES, QueueRow
from hadar_slurm.slurm.jobs.seen import SeenJob

_RUNS = (HOLDING_STATES | ENDED_STATES) - {"CONFIGURING"}


@dataclass
class ClaimChecks:
    """Compares what is claimed of jobs with what Slurm shows of them."""

    estimator: Estimator
    runs: ClaimedRuns = field(init=False)

    def __post_init__(self) -> None:
        self.runs = ClaimedRuns(self.estimator)

    def take_judged(self) -> list[Judged]:
        """Return the runs judged since the last call."""
        judged, self.runs.judged = self.runs.judged, []
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
        done = max(done, by_time if by_time > OUTLIVED_BY_TIME * claimed else 0.0)
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
        """Note what is claimed of a job, and its run."""
        row = seen.row
        if not seen.description.steps or self.runs.is_counted(row.key, row.started_s):
            return
        self.runs.claim(row.key, row.user, seen.description)
        # A node that is powered up first moves the start; other states show estimated times.
        if row.started_s and row.state in _RUNS:
            run = RunOnType(row.started_s, max(0.0, seen.now_s - row.started_s), gpu_type)
            self.runs.runs(row.key, run, is_stopped=row.state in ("SUSPENDED", "STOPPED"))

    def settle(self, queue: Mapping[JobId, QueueRow], now_s: float) -> None:
        """Judge the runs that have ended, also of jobs of which nothing is claimed any more."""

        def shown(job: JobId) -> ShownRun | None:
            if (row := queue.get(job)) is None:
                return None
            ended_s = row.ended_s if row.state in ENDED_STATES else math.inf
            return ShownRun(row.started_s, ended_s, row.state == "COMPLETED" and not row.restarts)

        self.runs.settle(shown, now_s)


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
