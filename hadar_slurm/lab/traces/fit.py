"""Checks that the jobs of a trace can run on a cluster."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from hadar_slurm.core.cluster import Cluster, GpuType
from hadar_slurm.core.job import JobSpec, Shape
from hadar_slurm.core.snapshot import GangRules
from hadar_slurm.lab.traces.fields import TraceError
from hadar_slurm.lab.traces.model import Skipped, Trace

# Numbers of nodes by type and (GPUs of the type, whether the node has this type only).
_Nodes = dict[GpuType, Counter[tuple[int, bool]]]


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
    rules = rules or GangRules()
    nodes: _Nodes = defaultdict(Counter)
    for node in cluster.nodes:
        for gpu_type, count in node.gpus:
            nodes[gpu_type][count, node.has_one_type] += 1
    answers: dict[object, str] = {}
    for job in trace.jobs:
        gpu_types = [_types(job, cluster, is_spread=is_spread) for is_spread in (False, True)]
        key = (job.num_gpus, job.shapes, *gpu_types)
        if key not in answers:
            answers[key] = _why_not(job, cluster, rules, nodes)
        if answers[key]:
            yield job, answers[key]


def _why_not(job: JobSpec, cluster: Cluster, rules: GangRules, nodes: _Nodes) -> str:
    gpus = [f"{count} {gpu_type}" for gpu_type, count in cluster.gpus_by_type.items()]
    has = ", ".join(gpus) or "no GPU"
    if not _types(job, cluster, is_spread=False):
        known = ", ".join(job.throughputs.gpu_types) or "none"
        return (
            f"it runs with {job.num_gpus} GPUs on none of the cluster's types ({has}), only on "
            f"{known}; give another --cluster, --throughputs or --gpu-speeds"
        )
    if any(_has_nodes(job, shape, cluster, rules, nodes) for shape in job.shapes):
        return ""
    return (
        f"no nodes hold its gang of {job.num_gpus} GPUs; the cluster has {has} on "
        f"{len(cluster.nodes)} nodes; give a larger --cluster, or --leave-out-unfit"
    )


def _types(job: JobSpec, cluster: Cluster, *, is_spread: bool) -> frozenset[GpuType]:
    on, size, gpu_types = job.throughputs.on, job.num_gpus, cluster.gpus_by_type
    return frozenset(k for k in gpu_types if on(k, size, is_spread=is_spread) > 0)


def _has_nodes(
    job: JobSpec, shape: Shape, cluster: Cluster, rules: GangRules, nodes: _Nodes
) -> bool:
    """Return whether the empty cluster has nodes for a gang of this shape."""
    gpu_types = _types(job, cluster, is_spread=shape.nodes > 1 and rules.counts_spread)
    found = [nodes[gpu_type].items() for gpu_type in gpu_types]
    most: Callable[[list[int]], int] = sum if rules.may_mix_types else partial(max, default=0)
    if not rules.is_uniform:
        return most([sum(n * k for (n, _), k in of_type) for of_type in found]) >= job.num_gpus
    size = shape.gpus_per_node
    large = [[(k, is_pure) for (n, is_pure), k in of_type if n >= size] for of_type in found]
    alone = max((sum(k for k, _ in of_type) for of_type in large), default=0)
    mixed = most([sum(k for k, is_pure in of_type if is_pure) for of_type in large])
    return max(alone, mixed) >= shape.nodes
