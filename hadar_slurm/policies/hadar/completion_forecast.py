"""Forecasts on which GPU type a non-preemptible job ends first, the wait for GPUs included.

A later round can migrate a preemptible job. A non-preemptible one stays where it starts, and on a
slow type it may end later than after a wait for a fast one. So it takes the type on which it ends
first: list scheduling on unrelated machines by earliest completion time (Ibarra and Kim, J. ACM
24(2), 1977), in the order of the policy, in every round.

The forecast assumes that every job ahead runs to its end where it is, a preemptible one as well,
unless the policy will place it afterwards; within a round, preemptible jobs release their GPUs at
the round's end. GPUs of a type are one pool as far as the same jobs may use their nodes. Their
spread over the nodes counts only for a job that had room and found no nodes (`first_on_nodes`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush, nsmallest
from itertools import accumulate
from typing import NamedTuple

from hadar_slurm.core.cluster import GpuType, Slot
from hadar_slurm.core.job import Job, Phase
from hadar_slurm.placement.allocator import Allocator


class FreedGpus(NamedTuple):
    """GPUs that become free in `in_s` seconds."""

    in_s: float
    gpus: int


_Pool = list[FreedGpus]  # a heap


def non_preemptible(allocator: Allocator, job: Job) -> bool:
    """Return whether a queued job cannot be checkpointed and has a type that holds its gang."""
    waits = job.phase is Phase.QUEUED and not job.spec.can_checkpoint
    return waits and any(allocator.may_use(job, gpu_type) for gpu_type in allocator.gpu_types)


class Forecast:
    """When the allocator's GPUs become free for `jobs`, which receive them one after the other."""

    def __init__(self, allocator: Allocator, jobs: Iterable[Job], wait_factor: float) -> None:
        self._allocator, self._wait_factor = allocator, wait_factor
        reaches = {
            (gpu_type, allocator.like(job)): nodes
            for job in jobs
            for gpu_type in allocator.by_speed(job)
            if (nodes := allocator.nodes_for(job, gpu_type))
        }
        # Nodes that the same jobs may use are one pool.
        users: defaultdict[Slot, list[object]] = defaultdict(list)
        for (gpu_type, alike), nodes in reaches.items():
            for node in nodes:
                users[Slot(node.name, gpu_type)].append(alike)
        releases = _releases(allocator) if reaches else {}
        pools: defaultdict[tuple[GpuType, tuple[object, ...]], _Pool] = defaultdict(list)
        for slot, group in users.items():
            pools[slot.gpu_type, tuple(group)] += releases.get(slot, ())
        self._pools: defaultdict[tuple[GpuType, object], list[_Pool]] = defaultdict(list)
        for (gpu_type, kinds), pool in pools.items():
            heapify(pool)
            for alike in kinds:
                self._pools[gpu_type, alike].append(pool)

    def first_end(self, job: Job) -> GpuType | None:
        """Give a job the GPUs with which it ends first; return their type if they are free now.

        None: it waits, for GPUs now reserved for it, or because no type will ever have enough.
        """
        begins_s = {k: self._begin_s(job, k) for k in self._allocator.by_speed(job)}
        if (gpu_type := _first_end(self._allocator, job, begins_s, self._wait_factor)) is None:
            return None
        self.give(job, gpu_type)
        return gpu_type if begins_s[gpu_type] <= 0 else None

    def give(self, job: Job, gpu_type: GpuType) -> None:
        """Give a job, to its end, the GPUs of a type that become free first."""
        taken, left = list(self._take(job, gpu_type)), job.spec.num_gpus
        end_s = max((release.in_s for release, _ in taken), default=0.0)
        end_s += _lasts_s(self._allocator, job, gpu_type)
        for (in_s, gpus), pool in taken:
            used = min(left, gpus)
            left -= used
            heappush(pool, FreedGpus(end_s, used))
            if used < gpus:
                heappush(pool, FreedGpus(in_s, gpus - used))

    def _begin_s(self, job: Job, gpu_type: GpuType) -> float:
        """Return when a job's GPUs would all be free, in seconds from now; inf: never."""
        taken = list(self._take(job, gpu_type))
        for release, pool in taken:
            heappush(pool, release)
        is_enough = sum(release.gpus for release, _ in taken) >= job.spec.num_gpus
        return taken[-1][0].in_s if is_enough else math.inf

    def _take(self, job: Job, gpu_type: GpuType) -> Iterator[tuple[FreedGpus, _Pool]]:
        """Take releases out of their pools, the soonest first, until a job has its GPUs."""
        pools = self._pools.get((gpu_type, self._allocator.like(job)), ())
        missing = job.spec.num_gpus
        while missing > 0 and any(pools):
            pool = min(filter(None, pools), key=lambda pool: pool[0])
            release = heappop(pool)
            missing -= release.gpus
            yield release, pool


def first_on_nodes(allocator: Allocator, job: Job, wait_factor: float) -> GpuType | None:
    """Return the type on which a job ends first, by single nodes, if it could start there now."""
    releases = {slot: sorted(found) for slot, found in _releases(allocator).items()}
    begins_s = {}
    for gpu_type in allocator.by_speed(job):
        slots = [releases.get(slot, ()) for slot in allocator.slots_for(job, gpu_type)]
        starts_s = (_begin_on_nodes(slots, s.nodes, s.gpus_per_node) for s in job.spec.shapes)
        begins_s[gpu_type] = min(starts_s, default=math.inf)
    first = _first_end(allocator, job, begins_s, wait_factor)
    return first if first is not None and begins_s[first] <= 0 else None


def _begin_on_nodes(slots: Iterable[Sequence[FreedGpus]], nodes: int, gpus: int) -> float:
    """Return when `nodes` of the slots will have `gpus` free each, in seconds; inf: never."""
    begins_s = []
    for releases in slots:
        totals = accumulate(release.gpus for release in releases)
        enough = (r.in_s for r, total in zip(releases, totals, strict=True) if total >= gpus)
        begins_s.append(next(enough, math.inf))
    return nsmallest(nodes, begins_s)[-1] if len(begins_s) >= nodes else math.inf


def _first_end(
    allocator: Allocator, job: Job, begins_s: Mapping[GpuType, float], wait_factor: float
) -> GpuType | None:
    """Return the type on which a job ends first, the fastest of equals; None: on none ever."""
    ends_s = {
        gpu_type: wait_factor * begin_s + _lasts_s(allocator, job, gpu_type)
        for gpu_type, begin_s in begins_s.items()
        if begin_s < math.inf and allocator.may_use(job, gpu_type)
    }
    return min(ends_s, key=lambda gpu_type: ends_s[gpu_type], default=None)


def _lasts_s(allocator: Allocator, job: Job, gpu_type: GpuType) -> float:
    return job.steps_left / allocator.throughput(job, gpu_type)


def _releases(allocator: Allocator) -> dict[Slot, _Pool]:
    """Return when the free and placed GPUs of each slot become free."""
    found = {slot: [FreedGpus(0.0, free)] for slot, free in allocator.free.items() if free > 0}
    jobs = allocator.snapshot.by_id
    for job_id, allocation in allocator.placed.items():
        job = jobs[job_id]
        throughput = allocator.placed_throughput(job)
        left_s = job.steps_left / throughput if throughput > 0 else math.inf
        if job.spec.can_checkpoint and not allocator.round.may_move:
            left_s = min(left_s, allocator.round.left_s)
        for gang in allocation.gangs:
            for slot, count in gang.slots:
                found.setdefault(slot, []).append(FreedGpus(left_s, count))
    return found
