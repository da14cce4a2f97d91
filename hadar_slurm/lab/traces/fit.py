"""Checks that the jobs of a trace can run on a cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from hadar_slurm.core.cluster import Cluster, GpuType
from hadar_slurm.core.job import JobSpec, Shape
from hadar_slurm.core.snapshot import GangRules
from hadar_slurm.errors import TraceError
from hadar_slurm.lab.traces.model import Skipped, Trace


def check_fits(trace: Trace, cluster: Cluster, rules: GangRules | None = None) -> None:
    """Raise TraceError naming file, line and remedy for the first job that can never run."""
    for job, why in _unfit(trace, cluster, rules):
        raise TraceError(f"{trace.place(job)}: job {job.job_id}: {why}")


def without_unfit(trace: Trace, cluster: Cluster, rules: GangRules | None = None) -> Trace:
    """Return the trace without jobs that can never run; they are counted as skipped."""
    unfit = {job.job_id: f"{trace.place(job)}: {why}" for job, why in _unfit(trace, cluster, rules)}
    if not unfit:
        return trace
    first = next(iter(unfit.values()))
    jobs = tuple(job for job in trace.jobs if job.job_id not in unfit)
    if not jobs:
        raise TraceError(f"no job of the trace fits the cluster, such as {first}")
    left_out = Skipped("fits on no nodes of the cluster", len(unfit), first)
    places = {job.job_id: trace.place(job) for job in jobs}
    return replace(trace, jobs=jobs, places=places, skipped=(*trace.skipped, left_out))


def _unfit(
    trace: Trace, cluster: Cluster, rules: GangRules | None
) -> Iterator[tuple[JobSpec, str]]:
    """Yield the jobs that can never run, with the reason; equal jobs are checked once."""
    room = _Room.of(cluster, rules or GangRules())
    answers: dict[object, str] = {}
    for job in trace.jobs:
        key = (job.num_gpus, job.shapes, _types(job, cluster, is_spread=False),
               _types(job, cluster, is_spread=True))  # fmt: skip
        if key not in answers:
            answers[key] = _why_not(job, cluster, room)
        if answers[key]:
            yield job, answers[key]


def _why_not(job: JobSpec, cluster: Cluster, room: _Room) -> str:
    gpus = [f"{count} {gpu_type}" for gpu_type, count in cluster.gpus_by_type.items()]
    has = ", ".join(gpus) or "no GPU"
    if not _types(job, cluster, is_spread=False):
        known = ", ".join(job.throughputs.gpu_types) or "none"
        return (
            f"it runs with {job.num_gpus} GPUs on none of the cluster's types ({has}), only on "
            f"{known}; give another --cluster, --throughputs or --gpu-speeds"
        )
    if any(room.holds(job, shape, cluster) for shape in job.shapes):
        return ""
    return (
        f"no nodes hold its gang of {job.num_gpus} GPUs; the cluster has {has} on "
        f"{len(cluster.nodes)} nodes; give a larger --cluster, or --leave-out-unfit"
    )


def _types(job: JobSpec, cluster: Cluster, *, is_spread: bool) -> frozenset[GpuType]:
    on, size, gpu_types = job.throughputs.on, job.num_gpus, cluster.gpus_by_type
    return frozenset(k for k in gpu_types if on(k, size, is_spread=is_spread) > 0)


@dataclass(frozen=True)
class _Room:
    """Numbers of nodes by type and (GPUs of the type, whether the node has this type only)."""

    rules: GangRules
    nodes: dict[GpuType, Counter[tuple[int, bool]]]

    @classmethod
    def of(cls, cluster: Cluster, rules: GangRules) -> _Room:
        nodes: dict[GpuType, Counter[tuple[int, bool]]] = {}
        for node in cluster.nodes:
            for gpu_type, count in node.gpus:
                nodes.setdefault(gpu_type, Counter())[count, node.has_one_type] += 1
        return cls(rules, nodes)

    def holds(self, job: JobSpec, shape: Shape, cluster: Cluster) -> bool:
        """Return whether the empty cluster has nodes for a gang of this shape."""
        is_spread = shape.nodes > 1 and self.rules.counts_spread
        gpu_types = _types(job, cluster, is_spread=is_spread)
        nodes = [self.nodes[gpu_type].items() for gpu_type in gpu_types]
        most = sum if self.rules.may_mix_types else lambda parts: max(parts, default=0)
        if not self.rules.is_uniform:
            return most([sum(n * k for (n, _), k in of_type) for of_type in nodes]) >= job.num_gpus
        large = [
            [(k, pure) for (n, pure), k in of_type if n >= shape.gpus_per_node] for of_type in nodes
        ]
        alone = max((sum(k for k, _ in of_type) for of_type in large), default=0)
        mixed = most([sum(k for k, is_pure in of_type if is_pure) for of_type in large])
        return max(alone, mixed) >= shape.nodes
