"""A simulated cluster whose policies do not see types on which jobs would reach their limits.

hadard never places a job on a GPU type on which what is left of its steps takes longer than its
time limit, where it knows the steps (`slurm/jobs/choices.py`): so does this, by the same rule.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from hadar_slurm.core.cluster import GpuType, JobId
from hadar_slurm.core.job import Job, JobSpec, Phase, Shape
from hadar_slurm.core.snapshot import Snapshot
from hadar_slurm.core.time_limit import late_types, limits_by_type
from hadar_slurm.engine.actions import Action, Outcome
from hadar_slurm.engine.backend import Backend, Wake
from hadar_slurm.jobspec.estimator import fitting_types
from hadar_slurm.sim.backend import SimBackend
from hadar_slurm.sim.unread_snapshot import with_progress


@dataclass
class InTimeBackend:
    """`inner`, a view of the simulated `world`, observed with the types on which jobs end in time.

    A job that ends in time on no type that can hold it is seen as it is, and so are a forked one
    and one that `is_plain`: plain Slurm does not look at what fits its limit.
    `world` says whether limits are adjusted to types.
    """

    inner: Backend
    world: SimBackend
    is_plain: Callable[[JobSpec], bool] = lambda _: False
    # By job: its spec, and its limits by type.
    _limits: dict[JobId, tuple[JobSpec, dict[str, float]]] = field(default_factory=dict)
    # Policies cache results per spec: by job, its spec, the types left out, and what is seen.
    _seen: dict[JobId, tuple[JobSpec, frozenset[str], JobSpec]] = field(default_factory=dict)
    # By the allowed layouts of a gang, the types that can hold one.
    _types: dict[tuple[Shape, ...], Sequence[GpuType]] = field(default_factory=dict)
    # Queued jobs, as they are and as seen.
    _queued: dict[JobId, tuple[Job, Job]] = field(default_factory=dict)

    def observe(self) -> Snapshot:
        """Return the snapshot with the throughputs on types where jobs end in time."""
        return with_progress(self.inner.observe(), self._in_time)

    def apply(self, actions: Sequence[Action]) -> Sequence[Outcome]:
        """Apply the actions to the simulated cluster."""
        return self.inner.apply(actions)

    def wait(self, until_s: float) -> Wake:
        """Advance the simulated cluster."""
        return self.inner.wait(until_s)

    def _in_time(self, job: Job) -> Job:
        spec = job.spec
        if spec.limit_s == math.inf or spec.max_copies > 1 or self.is_plain(spec):
            return job
        before, seen = self._queued.get(job.job_id, (None, job))
        if before is job:
            return seen
        held = {gpu_type for gang in job.allocation.gangs for gpu_type in gang.gpus_by_type}
        limits_s, types = self._limits_of(spec), self._types_of(spec)
        late = frozenset(
            late_types(
                spec.throughputs,
                spec.num_gpus,
                steps=job.steps_left,
                limits_s=limits_s,
                present=types,
                held=held,
            )
        )
        seen = replace(job, spec=self._without(spec, late)) if late else job
        if job.phase is Phase.QUEUED:
            self._queued[job.job_id] = (job, seen)
        return seen

    def _limits_of(self, spec: JobSpec) -> dict[str, float]:
        known, limits_s = self._limits.get(spec.job_id, (None, {}))
        if known is not spec:
            written_for = spec.limit_type if self.world.adjusts_limits else ""
            limits_s = limits_by_type(
                spec.throughputs, spec.num_gpus, spec.limit_s, measured_on=written_for
            )
            self._limits[spec.job_id] = (spec, limits_s)
        return limits_s

    def _types_of(self, spec: JobSpec) -> Sequence[GpuType]:
        """Return the GPU types of which the cluster can hold the job's gang."""
        if spec.shapes not in self._types:
            self._types[spec.shapes] = fitting_types(self.world.cluster.nodes, spec.shapes)
        return self._types[spec.shapes]

    def _without(self, spec: JobSpec, late: frozenset[str]) -> JobSpec:
        known, left_out, seen = self._seen.get(spec.job_id, (None, frozenset(), spec))
        if known is not spec or left_out != late:
            seen = replace(spec, throughputs=spec.throughputs.without(late))
            self._seen[spec.job_id] = (spec, late, seen)
        return seen
