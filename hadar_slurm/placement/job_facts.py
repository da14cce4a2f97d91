"""What follows from a cluster and its rules about jobs, whatever runs: kept for all rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from hadar_slurm.core.cluster import Cluster, GpuType, JobId, NodeName
from hadar_slurm.core.job import Job, JobSpec
from hadar_slurm.core.plan import WaitReason
from hadar_slurm.core.snapshot import GangRules
from hadar_slurm.core.throughput import Throughputs

# Jobs, and kinds of jobs, known of a cluster: beyond this, all are forgotten.
MOST = 20_000


@dataclass(eq=False, slots=True)
class SharedFacts:
    """Facts shared by all jobs that could run in the same places, computed when first needed."""

    # The GPU types on which the jobs train at all, the fastest first.
    by_speed: Sequence[GpuType]
    # Whether the open nodes have enough GPUs of a type.
    usable: dict[GpuType, bool] = field(default_factory=dict)
    could_start: bool | None = None
    reason: WaitReason | None = None


@dataclass(eq=False, slots=True)
class JobFacts:
    """The facts of all jobs on a cluster with these GPU types."""

    gpu_types: tuple[GpuType, ...]
    _facts: dict[object, SharedFacts] = field(default_factory=dict)
    # By job, with its spec, its allowed nodes and its bound type at that time.
    _by_job: dict[
        JobId, tuple[JobSpec, frozenset[NodeName] | None, GpuType | None, SharedFacts]
    ] = field(default_factory=dict)

    @property
    def num_jobs(self) -> int:
        """Return the number of jobs remembered."""
        return len(self._by_job)

    @staticmethod
    def about(cluster: Cluster, rules: GangRules) -> JobFacts:
        """Return the facts known so far of jobs on a cluster under these rules."""
        found = _about(cluster, rules)
        # Most jobs and estimates are of the past.
        if found.num_jobs > MOST or len(found._facts) > MOST:
            found._by_job.clear()
            found._facts.clear()
        return found

    def of(self, job: Job) -> SharedFacts:
        """Return what is known of all jobs that could run in the same places as `job`."""
        spec, allowed, bound = job.spec, job.allowed_nodes, job.bound_type
        known = self._by_job.get(spec.job_id)
        if known and known[0] is spec and known[1] is allowed and known[2] is bound:
            return known[3]
        sizes = (spec.num_gpus, spec.gangs, spec.shapes)
        key = (spec.throughputs, sizes, allowed, bound, spec.can_checkpoint)
        found = self._facts.get(key)
        if found is None:
            by_speed = speeds(spec.throughputs, spec.num_gpus, spec.gangs, self.gpu_types)
            found = self._facts[key] = SharedFacts(by_speed)
        self._by_job[spec.job_id] = (spec, allowed, bound, found)
        return found


@lru_cache(maxsize=16)
def _about(cluster: Cluster, rules: GangRules) -> JobFacts:
    """Return the facts that all allocators of a cluster under some rules share."""
    return JobFacts(tuple(cluster.gpus_by_type))


@lru_cache(maxsize=4096)
def speeds(
    throughputs: Throughputs,
    num_gpus: int,
    gangs: tuple[tuple[str, int], ...],
    gpu_types: tuple[GpuType, ...],
) -> tuple[GpuType, ...]:
    """Return the types of `gpu_types` on which such a gang trains at all, the fastest first."""
    sizes = dict(gangs)
    ordered = sorted(
        (-throughputs.on(gpu_type, sizes.get(gpu_type.lower(), num_gpus)), gpu_type)
        for gpu_type in gpu_types
    )
    return tuple(gpu_type for speed, gpu_type in ordered if speed < 0)
