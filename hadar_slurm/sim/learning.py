"""A simulated cluster whose policies see estimated throughputs instead of the true ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.gpu_types import KnownTypes, facts_of
from hadar_slurm.core.job import Job, JobSpec
from hadar_slurm.core.snapshot import Snapshot
from hadar_slurm.core.throughput_model import (
    EXPECTED_S,
    Place,
    ThroughputModel,
    Workload,
    estimated_throughputs,
    relative_prior,
)
from hadar_slurm.engine.actions import Action, Outcome
from hadar_slurm.engine.backend import Wake
from hadar_slurm.sim.backend import SimBackend


@dataclass
class LearningBackend:
    """The simulated `world`, observed without knowledge of the jobs' throughputs.

    The throughputs in a snapshot are estimates (`core.throughput_model`). The steps of a job and
    the types on which it trains (on others it would end at once) are known. An unmeasured job is
    assumed to take an hour.
    """

    world: SimBackend
    # Published relative throughputs of GPU types; if empty, all types are equal.
    known_types: KnownTypes
    # Whether estimates use the observed throughputs of running jobs.
    measures: bool = True
    # Returns a factor for each measurement.
    noise: Callable[[], float] = lambda: 1.0
    speeds: ThroughputModel = field(default_factory=ThroughputModel)
    # Each job with estimates, and their version.
    _specs: dict[JobId, tuple[JobSpec, int]] = field(default_factory=dict)

    def observe(self) -> Snapshot:
        """Return the snapshot with estimated throughputs."""
        for spec, gang, throughput in self.world.measured() if self.measures else ():
            place = Place.of(gang)
            if place is not None:
                self.speeds.measure(_workload(spec), place, throughput * self.noise())
        snapshot = self.world.observe()
        return replace(snapshot, jobs=tuple(self._with_estimates(job) for job in snapshot.jobs))

    def apply(self, actions: Sequence[Action]) -> Sequence[Outcome]:
        """Apply the actions to the simulated cluster."""
        return self.world.apply(actions)

    def wait(self, until_s: float) -> Wake:
        """Advance the simulated cluster."""
        return self.world.wait(until_s)

    def _with_estimates(self, job: Job) -> Job:
        spec, version = self._specs.get(job.job_id, (job.spec, None))
        if version != self.speeds.version:
            size, on = job.spec.num_gpus, job.spec.throughputs.on
            gpu_types = [k for k in self.world.cluster.gpus_by_type if on(k, size) > 0]
            slowest, workload = job.spec.total_steps / EXPECTED_S, _workload(job.spec)
            by_bandwidth = relative_speeds(gpu_types, self.known_types)
            prior = relative_prior(by_bandwidth, size, slowest)
            throughputs, _ = estimated_throughputs(
                self.speeds, workload=workload, num_gpus=size, gpu_types=gpu_types, prior=prior
            )
            # Policies cache results per spec: keep the object while they are equal.
            if throughputs != spec.throughputs:
                spec = replace(job.spec, throughputs=throughputs)
            self._specs[job.job_id] = (spec, self.speeds.version)
        return replace(job, spec=spec)


def relative_speeds(names: Iterable[str], known: KnownTypes) -> dict[str, float | None]:
    """Return the bandwidth of types in GB/s, by their names in lower case; None: not known."""
    return {name.lower(): facts_of(name, known).bandwidth_gb_s for name in names}


def _workload(spec: JobSpec) -> Workload:
    return Workload(spec.user, spec.workload or str(spec.job_id))
