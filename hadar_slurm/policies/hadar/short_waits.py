"""Lets a preemptible job wait within a round for GPUs of a faster type that are soon free.

A preemptible job that starts on a slow type stays there until the next round, when it can migrate
at the cost of a restart. Running jobs may end before then and free GPUs of a faster type. A queued
job that ends sooner with these is not started on the slow type. Jobs without GPUs that are ahead
of it in the queue take theirs first.

The forecast assumes that jobs end when their remaining steps say so. If they do not, the wait ends
with the round.
"""

from __future__ import annotations

from bisect import insort
from collections import defaultdict
from collections.abc import Iterator, Sequence, Set
from typing import NamedTuple

from hadar_slurm.core.cluster import GpuType, JobId, NodeName
from hadar_slurm.core.job import Job, Phase, Shape
from hadar_slurm.placement.allocator import Allocator
from hadar_slurm.policies.hadar.completion_forecast import FreedGpus


class _Start(NamedTuple):
    """When and where a gang could start, and how fast it would be: `gpus` GPUs on each node."""

    in_s: float
    gpu_type: GpuType
    nodes: tuple[NodeName, ...]
    gpus: int
    steps_per_s: float


def take_back_slow_starts(allocator: Allocator, queue: Sequence[Job]) -> frozenset[JobId]:
    """Take back the GPUs of queued jobs that end sooner on a faster type; return these jobs.

    `queue`: the preemptible jobs, the first served first.
    """
    queued = [job for job in queue if job.phase is Phase.QUEUED]
    slow = {job.job_id for job in queued if _is_slow(allocator, job)}
    if not slow:
        return frozenset()
    soon, late, hopeless = _Soon(allocator, slow), [], set[object]()
    for job in queued:
        if soon.is_empty:
            break
        alike = allocator.like(job)
        if job.job_id in slow:
            if soon.give_if_sooner(job):
                late.append(job)
        elif job.job_id in allocator.placed or alike in hopeless:
            continue
        elif not soon.give_first(job):
            hopeless.add(alike)
    for job in late:
        allocator.take_back(job)
    return frozenset(job.job_id for job in late)


class _Soon:
    """The GPUs that become free within the round, on nodes of which some do."""

    def __init__(self, allocator: Allocator, ignored: Set[JobId]) -> None:
        """`ignored`: placed jobs whose GPUs do not count."""
        self._allocator = allocator
        # By type and node, the soonest first.
        self._releases: defaultdict[GpuType, dict[NodeName, list[FreedGpus]]] = defaultdict(dict)
        self._usable: dict[tuple[object, GpuType], frozenset[NodeName]] = {}
        by_id, round_left_s = allocator.snapshot.by_id, allocator.round.left_s
        for job_id, allocation in allocator.placed.items():
            job = by_id[job_id]
            steps_per_s = allocator.placed_throughput(job)
            if job_id in ignored or job.steps_left >= steps_per_s * round_left_s:
                continue
            for slot, gpus in allocation.slots:
                release = FreedGpus(job.steps_left / steps_per_s, gpus)
                insort(self._releases[slot.gpu_type].setdefault(slot.node, []), release)
        for slot, free in allocator.free.items():
            if free > 0 and slot.node in self._releases.get(slot.gpu_type, ()):
                self._releases[slot.gpu_type][slot.node].insert(0, FreedGpus(0.0, free))

    @property
    def is_empty(self) -> bool:
        """Whether no GPUs are left to give."""
        return not any(self._releases.values())

    def give_if_sooner(self, job: Job) -> bool:
        """Give a placed job GPUs of a faster type if it ends sooner with them; say whether."""
        allocator, round_left_s = self._allocator, self._allocator.round.left_s
        own = allocator.placed_throughput(job)
        ends_s = {
            start: start.in_s + job.steps_left / start.steps_per_s
            for start in self._starts(job)
            if start.steps_per_s > own
        }
        first = min(ends_s, key=ends_s.__getitem__, default=None)
        if first is None:
            return False
        end_s = job.steps_left / own
        if end_s > round_left_s:
            # It may migrate then, at best to the fastest type.
            rest_s = (job.steps_left - round_left_s * own) / _fastest(allocator, job)
            end_s = min(end_s, round_left_s + job.spec.restart_cost_s + rest_s)
        if ends_s[first] >= end_s:
            return False
        self._give(first)
        return True

    def give_first(self, job: Job) -> bool:
        """Give a job the GPUs that it could have first; say whether there are any."""
        first = min(self._starts(job), key=lambda start: start.in_s, default=None)
        if first:
            self._give(first)
        return first is not None

    def _starts(self, job: Job) -> Iterator[_Start]:
        """Yield the first start of a job on each type in each shape, the fastest type first."""
        for gpu_type in self._allocator.by_speed(job):
            for shape in job.spec.shapes if self._releases.get(gpu_type) else ():
                start = self._start(job, gpu_type, shape)
                if start:
                    yield start

    def _start(self, job: Job, gpu_type: GpuType, shape: Shape) -> _Start | None:
        is_spread = shape.nodes > 1 and self._allocator.rules.counts_spread
        steps_per_s = job.spec.throughputs.on(gpu_type, job.spec.num_gpus, is_spread=is_spread)
        begins = []
        usable = self._usable_nodes(job, gpu_type)
        for node, releases in self._releases[gpu_type].items():
            missing = shape.gpus_per_node
            for in_s, gpus in releases if node in usable else ():
                missing -= gpus
                if missing <= 0:
                    begins.append((in_s, node))
                    break
        if len(begins) < shape.nodes or steps_per_s <= 0:
            return None
        begins = sorted(begins)[: shape.nodes]
        nodes = tuple(node for _, node in begins)
        return _Start(
            begins[-1][0],
            gpu_type=gpu_type,
            nodes=nodes,
            gpus=shape.gpus_per_node,
            steps_per_s=steps_per_s,
        )

    def _usable_nodes(self, job: Job, gpu_type: GpuType) -> frozenset[NodeName]:
        key = (self._allocator.like(job), gpu_type)
        if key not in self._usable:
            nodes = self._allocator.nodes_for(job, gpu_type)
            self._usable[key] = frozenset(node.name for node in nodes)
        return self._usable[key]

    def _give(self, start: _Start) -> None:
        """Take the GPUs of a start, those that become free first on each node."""
        by_node = self._releases[start.gpu_type]
        for node in start.nodes:
            missing, rest = start.gpus, []
            for in_s, gpus in by_node.pop(node):
                used = min(missing, gpus)
                missing -= used
                rest += [FreedGpus(in_s, gpus - used)] if used < gpus else []
            if rest:
                by_node[node] = rest


def _is_slow(allocator: Allocator, job: Job) -> bool:
    """Return whether a job was given GPUs on which it is slower than on its fastest type."""
    is_placed = job.job_id in allocator.placed
    return is_placed and allocator.placed_throughput(job) < _fastest(allocator, job)


def _fastest(allocator: Allocator, job: Job) -> float:
    return allocator.throughput(job, allocator.by_speed(job)[0])
