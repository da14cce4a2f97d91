"""A simulated cluster whose policies see what users claim of their jobs, not what is true."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from hadar_slurm.core.claims import Credits, believed_steps, bounded_throughputs
from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.job import Job, JobSpec, Progress
from hadar_slurm.core.snapshot import Snapshot
from hadar_slurm.core.throughput import Throughputs
from hadar_slurm.core.throughput_model import Place, rows_of
from hadar_slurm.engine.actions import Action, Outcome
from hadar_slurm.engine.backend import Wake
from hadar_slurm.sim.backend import SimBackend
from hadar_slurm.sim.unread_snapshot import with_progress


@dataclass(frozen=True, slots=True)
class UserClaim:
    """What a job's user says of it."""

    total_steps: int
    throughputs: Throughputs
    can_checkpoint: bool = True
    # The time limit, in seconds; Slurm does not end the job here.
    limit_s: float = math.inf


@dataclass
class ClaimsBackend:
    """The simulated `world`, observed as the jobs' users describe them.

    Jobs without a claim are seen as they are. With `is_bounded` claims are bounded as by hadard
    (`core.claims`): what is known of a workload is what its jobs truly do, as if from a table.
    Otherwise they are believed, and a job has at most the steps claimed.
    """

    world: SimBackend
    claims: Mapping[JobId, UserClaim]
    is_bounded: bool = True
    _measured: dict[JobId, dict[Place, float]] = field(default_factory=dict)
    _credits: Credits = field(default_factory=Credits)
    _specs: dict[object, JobSpec] = field(default_factory=dict)

    def observe(self) -> Snapshot:
        """Return the snapshot with what is claimed."""
        snapshot = self.world.observe()
        if self.is_bounded:
            for end in snapshot.ended:
                if end.job_id in self.claims:
                    self._learn(self.world.sim_jobs[end.job_id].spec, end.end_s)
        return with_progress(snapshot, self._as_claimed)

    def apply(self, actions: Sequence[Action]) -> Sequence[Outcome]:
        """Apply the actions to the simulated cluster."""
        return self.world.apply(actions)

    def wait(self, until_s: float) -> Wake:
        """Advance the simulated cluster; what trains meanwhile is measured."""
        jobs = self.world.sim_jobs
        for job_id in self.claims if self.is_bounded else ():
            for copy in jobs[job_id].copies.values():
                if place := Place.of(copy.gang):
                    self._measured.setdefault(job_id, {})[place] = copy.throughput
        return self.world.wait(until_s)

    def _as_claimed(self, job: Job) -> Job:
        claim = self.claims.get(job.job_id)
        if claim is None:
            return job
        progress, steps, seen = job.progress, claim.total_steps, Throughputs()
        if self.is_bounded:
            seen = rows_of(self._measured.get(job.job_id, {}))
            steps = self._steps(job, claim, seen)
        elif progress.steps_done > steps:
            progress = Progress(float(steps), progress.restarts, progress.service_by_type)
        spec = self._spec(job.spec, claim, steps, seen)
        return replace(job, spec=spec, progress=progress, limit_left_s=self._limit_left_s(job))

    def _limit_left_s(self, job: Job) -> float | None:
        """Return what is left of a time limit, as if the job had never been requeued."""
        if not self.is_bounded:
            return None
        ran_s = job.progress.service_gpu_s / job.spec.num_gpus
        left_s = max(0.0, self.claims[job.job_id].limit_s - ran_s)
        return self._credits.of(job.spec.user).limit_left_s(left_s, self.world.now_s)

    def _learn(self, spec: JobSpec, now_s: float) -> None:
        """Compare the claim of a job that has ended with what it did, on the types that it had."""
        claim = self.claims[spec.job_id]
        bounded, _ = bounded_throughputs(claim.throughputs, spec.throughputs)
        offs, speeds_off = [], 1.0
        for place, steps_per_s in self._measured.get(spec.job_id, {}).items():
            given, used = (
                rows.on(place.gpu_type, spec.num_gpus, is_spread=place.is_spread)
                for rows in (claim.throughputs, bounded)
            )
            if given > 0:
                offs.append(used / steps_per_s)
                speeds_off = max(speeds_off, given / steps_per_s, steps_per_s / given)
        if offs:
            lasted = spec.total_steps * max(offs)
            self._credits.learn(spec.user, claim.total_steps, lasted, now_s, speeds_off=speeds_off)

    def _steps(self, job: Job, claim: UserClaim, seen: Throughputs) -> int:
        spec = job.spec
        fastest = self._spec(spec, claim, claim.total_steps, seen).throughputs.best(
            self.world.cluster.gpus_by_type, spec.num_gpus
        )
        times = self._credits.of(spec.user).factor(self.world.now_s)
        done, limit_s = job.progress.steps_done, claim.limit_s
        # A requeued job has its whole limit again.
        return believed_steps(claim.total_steps, done, limit_s, fastest, times=times)[0]

    def _spec(self, spec: JobSpec, claim: UserClaim, steps: int, seen: Throughputs) -> JobSpec:
        """Return the spec as claimed; the same object while nothing has changed."""
        most_off = self._credits.of(spec.user).most_off(self.world.now_s)
        key = (spec.job_id, steps, seen, most_off)
        if key not in self._specs:
            throughputs = claim.throughputs
            if self.is_bounded:
                throughputs, _ = bounded_throughputs(
                    throughputs, spec.throughputs, seen, most_off=most_off
                )
            self._specs[key] = replace(
                spec,
                total_steps=steps,
                throughputs=throughputs,
                can_checkpoint=claim.can_checkpoint,
            )
        return self._specs[key]
