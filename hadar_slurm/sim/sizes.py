"""A simulated cluster whose policies see what is believed of jobs' sizes, not the true sizes."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hadar_slurm.core.claims import believed_steps
from hadar_slurm.core.cluster import GpuType, JobId
from hadar_slurm.core.job import Job, JobSpec, Phase
from hadar_slurm.core.learned_sizes import learned_steps
from hadar_slurm.core.lengths.belief import Belief
from hadar_slurm.core.lengths.calibration import Coverage
from hadar_slurm.core.lengths.durations import Durations, Trained
from hadar_slurm.core.snapshot import Snapshot
from hadar_slurm.core.throughput_model import Workload
from hadar_slurm.core.type_failures import Unsized, Work
from hadar_slurm.engine.actions import Action, Outcome
from hadar_slurm.engine.backend import Backend, Wake
from hadar_slurm.sim.backend import SimBackend
from hadar_slurm.sim.unread_snapshot import with_progress

# What ended and what trains counts after this time at the latest.
_RENEW_S = 1800.0


@dataclass
class SizesBackend:
    """`inner`, a view of the simulated `world`, observed without the jobs' true total steps.

    Without `durations` a job has as many steps as fit its time limit (one without a limit: as if it
    had the longest of all). With them, its size is what they say, and the limit only its most. With
    `learns`, jobs that end and that train are counted.
    """

    inner: Backend
    world: SimBackend
    durations: Durations | None = None
    learns: bool = True
    _renewed_s: float = -math.inf
    # The jobs' specs as last believed, and the queued jobs, as they are and as believed.
    _specs: dict[JobId, JobSpec] = field(default_factory=dict)
    _queued: dict[JobId, tuple[Job, Job]] = field(default_factory=dict)
    # The steps that truly fit the jobs' time limits, and these in seconds, as asked for.
    _limits: dict[JobId, float] = field(init=False)
    _asked_s: dict[JobId, float] = field(init=False)

    def __post_init__(self) -> None:
        self._asked_s = {spec.job_id: spec.limit_s for spec in self.world.jobs}
        longest_s = max((s for s in self._asked_s.values() if s < math.inf), default=math.inf)
        self._limits = {
            spec.job_id: replace(spec, limit_s=min(spec.limit_s, longest_s)).limit_steps
            for spec in self.world.jobs
        }

    def observe(self) -> Snapshot:
        """Return the snapshot with the sizes that are believed."""
        snapshot = self.inner.observe()
        if self.durations and self.learns:
            for end in snapshot.ended:
                spec = self._specs.pop(end.job_id, None)
                if spec is not None:
                    service_s = self.world.sim_jobs[end.job_id].steps_done / self._best(spec)
                    # Without a limit it was ended for another: it would have lasted longer.
                    is_unlimited = self._asked_s[end.job_id] == math.inf
                    is_cut = end.phase is Phase.FAILED and is_unlimited
                    note = self.durations.see if is_cut else self.durations.end
                    note(end.job_id, self._unsized(spec), service_s)
            if snapshot.now_s >= self._renewed_s + _RENEW_S:
                self._renewed_s = snapshot.now_s
                for job in snapshot.jobs:
                    trained_s = job.progress.steps_done / self._best(job.spec)
                    self.durations.see(job.job_id, self._unsized(job.spec), trained_s)
                self.durations.renew()
                self._queued.clear()
        return with_progress(snapshot, self._as_believed)

    def apply(self, actions: Sequence[Action]) -> Sequence[Outcome]:
        """Apply the actions to the simulated cluster."""
        return self.inner.apply(actions)

    def wait(self, until_s: float) -> Wake:
        """Advance the simulated cluster."""
        return self.inner.wait(until_s)

    def coverage(self) -> Mapping[str, Any]:
        """Return the share of the jobs beyond each quantile of what was believed; {} of none."""
        return self.durations.coverage.by_name() if self.durations and self.learns else {}

    def _as_believed(self, job: Job) -> Job:
        before, believed = self._queued.get(job.job_id, (None, job))
        if before is job:
            return believed
        believed = self._believed(job)
        if job.phase is Phase.QUEUED:
            self._queued[job.job_id] = (job, believed)
        return believed

    def _believed(self, job: Job) -> Job:
        spec, done = job.spec, job.progress.steps_done
        belief: Belief | None = None
        if self.durations is None:
            total = believed_steps(self._limits[spec.job_id], done, math.inf, 0.0)[0]
        else:
            best = self._best(spec)
            unsized = self._unsized(spec)
            stays = job.phase is Phase.QUEUED and not spec.can_checkpoint
            total, belief = learned_steps(
                self.durations, unsized, done=done, best=best, stays=stays
            )
            if not self.learns:  # what no job can confirm is no distribution to draw sizes from
                belief = None
        seen = self._specs.get(spec.job_id)
        # Policies cache results per spec: keep the object while it is equal.
        if seen is None or seen.total_steps != total or seen.throughputs != spec.throughputs:
            # A limit that hadard adjusts to the type ends no job there, as under hadard.
            limit_s = math.inf if self.world.adjusts_limits else spec.limit_s
            seen = self._specs[spec.job_id] = replace(spec, total_steps=total, limit_s=limit_s)
        return replace(job, spec=seen, belief=belief, is_estimated=True)

    def _unsized(self, spec: JobSpec) -> Unsized:
        limit_s = self._limits[spec.job_id] / self._best(spec)
        return Unsized(work_of(spec), self._asked_s[spec.job_id], limit_s)

    def _best(self, spec: JobSpec) -> float:
        best = spec.throughputs.best(self.world.cluster.gpus_by_type, spec.num_gpus)
        return best if best > 0 else 1.0


def learned_from(specs: Iterable[JobSpec], gpu_types: Collection[GpuType]) -> Durations:
    """Return what jobs say that have ended before, with their true sizes; each on these types.

    They are not judged: coverage is that of the jobs played.
    """
    known = Durations.of(
        Trained(
            spec.job_id,
            Unsized(work_of(spec), spec.limit_s, spec.limit_steps / best),
            began_s=spec.submitted_s,
            ended_s=spec.submitted_s + spec.total_steps / best,
            service_s=spec.total_steps / best,
        )
        for spec in specs
        if (best := spec.throughputs.best(gpu_types, spec.num_gpus)) > 0
    )
    known.calibration.coverage = Coverage()
    return known


def work_of(spec: JobSpec) -> Work:
    """Return the work of a job, by which jobs share what is known of durations."""
    return Work(Workload(spec.user, spec.workload or spec.name), spec.num_gpus)
