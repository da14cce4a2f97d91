"""A cluster whose policies do not know how fast jobs are, and may find out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.job import Job, JobSpec
from hadar_slurm.core.snapshot import Snapshot
from hadar_slurm.core.throughput import Throughputs
from hadar_slurm.core.throughput_model import (
    EXPECTED_S,
    Place,
    ThroughputModel,
    Workload,
    estimated_rates,
    published_prior,
)
from hadar_slurm.engine.actions import Action, Outcome
from hadar_slurm.engine.backend import Wake
from hadar_slurm.sim.backend import SimBackend


@dataclass
class LearningBackend:
    """The simulated `world` as seen by one who does not know the jobs' rates.

    The rates that a snapshot shows are estimates (`core.speeds`), from what is `published` of the
    GPU types' relative speeds and, unless `measures` is false, from what jobs were seen to do.
    Nothing published makes all types alike. A job's steps are known, and so is on which types it
    trains at all, since on others it would end at once. One that nobody has measured is taken to be
    an hour's work. `noise` gives a factor for each measurement.
    """

    world: SimBackend
    published: Mapping[str, float]
    measures: bool = True
    noise: Callable[[], float] = lambda: 1.0
    speeds: ThroughputModel = field(default_factory=ThroughputModel)
    _specs: dict[JobId, JobSpec] = field(default_factory=dict)
    _versions: dict[JobId, int] = field(default_factory=dict)

    def observe(self) -> Snapshot:
        """Return what there is, with rates as they are believed to be."""
        if self.measures:
            self._measure()
        snapshot = self.world.observe()
        return replace(snapshot, jobs=tuple(self._as_believed(job) for job in snapshot.jobs))

    def apply(self, actions: Sequence[Action]) -> Sequence[Outcome]:
        """Pass the actions on."""
        return self.world.apply(actions)

    def wait(self, until_s: float) -> Wake:
        """Pass the time."""
        return self.world.wait(until_s)

    def _measure(self) -> None:
        for spec, gang, rate in self.world.measured():
            place = Place.of(gang)
            if place is not None:
                self.speeds.measure(_workload(spec), place, rate * self.noise())

    def _as_believed(self, job: Job) -> Job:
        spec = self._specs.get(job.job_id, job.spec)
        if self._versions.get(job.job_id) != self.speeds.version:
            rates = self._rates(job.spec)
            # Policies remember what they made of a job as long as it says the same.
            if rates != spec.rates:
                spec = replace(job.spec, rates=rates)
            self._specs[job.job_id] = spec
            self._versions[job.job_id] = self.speeds.version
        return replace(job, spec=spec)

    def _rates(self, spec: JobSpec) -> Throughputs:
        gpu_types = [
            str(gpu_type)
            for gpu_type in self.world.cluster.gpus_by_type
            if spec.rates.on(gpu_type, spec.num_gpus) > 0
        ]
        slowest = spec.total_steps / EXPECTED_S
        prior = published_prior(self.published, gpu_types, spec.num_gpus, slowest)
        rates, _ = estimated_rates(self.speeds, _workload(spec), spec.num_gpus, gpu_types, prior)
        return rates


def _workload(spec: JobSpec) -> Workload:
    return Workload(spec.user, spec.workload or str(spec.job_id))
