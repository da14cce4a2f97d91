"""The plan of jobs that cannot move: each is inserted where it waits, runs and costs least.

A job that cannot move stays where it starts, so its type is chosen for good. In the order of the
policy each job goes into the first hole of each type that is long enough for it, behind what runs
and what was inserted before, and takes the type with the least

    weight * wait + run time + price * GPUs * run time.

So no job delays one before it, and what is idle before a gang begins goes to shorter jobs, as in
conservative backfill (Mu'alem and Feitelson, IEEE TPDS 12(6), 2001); by the type on which it ends
first it is list scheduling on unrelated machines (Ibarra and Kim, J. ACM 24(2), 1977). Waits count
more than once, since shorter jobs come meanwhile; more for one that probably ends soon (kinds.py).
One of stated size counts once, and until half of the GPUs are free: holes go to shorter jobs.

The price is the dual one of Hadar (IPDPS'24: the payoff of a job is its utility less the price of
its GPUs), computed from the jobs that wait, not from bounds on utilities. A job that holds a share
of the cluster for a time delays all jobs that wait behind it by about that share of the time. So a
GPU-second of a type costs (jobs behind that would wait) * worth / (capacity in worth), in seconds
of completion times; the worth of a type is the mean relative speed of the waiting work on it. Which
jobs would wait is found without prices first. Where none waits GPUs cost nothing.

Run times are those of the steps left: where sizes are learned, of the mean, and of what runs, of
the index (core/lengths/belief.py), since of many the first end long before their means. A limit
that may end the job on a type costs it, as much work again, and the time until its owner has
noticed, times the probability; behind the first jobs none starts where this exceeds its run time.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from heapq import nsmallest
from itertools import accumulate, chain, starmap
from operator import mul, sub
from typing import NamedTuple

from hadar_slurm.core.cluster import GpuType, JobId, Slot, TypeIndex
from hadar_slurm.core.gang import Allocation, Gang
from hadar_slurm.core.job import Job, Phase
from hadar_slurm.placement.allocator import Allocator
from hadar_slurm.policies.hadar import tuning
from hadar_slurm.policies.hadar.kinds import JobKind, Kinds

_MOST_JOBS = 200  # GPUs are reserved and priced for no more, as by Slurm's bf_max_job_test
_EXACT_S = 3600.0  # up to here the times of releases are exact


class FreedGpus(NamedTuple):
    """GPUs that become free in `in_s` seconds."""

    in_s: float
    gpus: int


class FreeGpus:
    """How many GPUs of a pool are free, from now on."""

    def __init__(self, releases: Iterable[FreedGpus]) -> None:
        self.times_s, self.free = [0.0], [0]
        for in_s, gpus in sorted(releases):
            if in_s <= self.times_s[-1]:
                self.free[-1] += gpus
            else:
                self.times_s.append(in_s)
                self.free.append(self.free[-1] + gpus)

    def least(self, start_s: float, lasts_s: float) -> int:
        """Return how many are free from `start_s` on for `lasts_s`."""
        first = bisect_right(self.times_s, start_s) - 1
        return min(self.free[first : max(first + 1, bisect_left(self.times_s, start_s + lasts_s))])

    def first_s(self, gpus: int, lasts_s: float, from_s: float) -> float:
        """Return when `gpus` are first free for `lasts_s`, at `from_s` or later; inf: never."""
        times_s, free = self.times_s, self.free
        at = bisect_right(times_s, from_s) - 1
        start_s, last = from_s, len(times_s) - 1
        while True:
            if free[at] < gpus:
                if at == last:
                    return math.inf
                start_s = times_s[at + 1]
            elif at == last or times_s[at + 1] >= start_s + lasts_s:
                return start_s
            at += 1

    def take(self, start_s: float, lasts_s: float, gpus: int) -> None:
        """Take GPUs from `start_s` on for `lasts_s`."""
        for at in range(self._cut(start_s), self._cut(start_s + lasts_s)):
            self.free[at] -= gpus

    def _cut(self, time_s: float) -> int:
        """Return the index of a time, inserted where it is new."""
        at = bisect_left(self.times_s, time_s)
        if time_s < math.inf and (at == len(self.times_s) or self.times_s[at] != time_s):
            self.times_s.insert(at, time_s)
            self.free.insert(at, self.free[at - 1])
        return at


class FreeTimes:
    """When the allocator's GPUs are free for `jobs`, which are inserted one after the other.

    GPUs of a type are one pool as far as the same jobs may use their nodes. Within a round, a job
    that can move releases its GPUs at the end of the round, if it does not end before.
    """

    def __init__(self, allocator: Allocator, jobs: Iterable[Job]) -> None:
        self._allocator = allocator
        users: defaultdict[Slot, list[object]] = defaultdict(list)
        for alike, job in {allocator.like(job): job for job in jobs}.items():
            for gpu_type in allocator.by_speed(job):
                for slot in allocator.slots_for(job, gpu_type):
                    users[slot].append(alike)
        self._releases = _releases(allocator) if users else {}
        shared: defaultdict[tuple[GpuType, tuple[object, ...]], list[FreedGpus]] = defaultdict(list)
        for slot, group in users.items():
            shared[slot.gpu_type, tuple(group)] += self._releases.get(slot, ())
        self._pools: defaultdict[tuple[GpuType, object], list[FreeGpus]] = defaultdict(list)
        for (gpu_type, kinds), releases in shared.items():
            pool = FreeGpus(releases)
            for alike in kinds:
                self._pools[gpu_type, alike].append(pool)

    def first_s(self, job: Job, gpu_type: GpuType, lasts_s: float, from_s: float = 0.0) -> float:
        """Return when a job's GPUs are first free for `lasts_s`, in s from now; inf: never."""
        pools, gpus = self.of(job, gpu_type), job.spec.num_gpus
        if len(pools) == 1:
            return pools[0].first_s(gpus, lasts_s, from_s)
        both = _together(pools)
        while (start_s := both.first_s(gpus, lasts_s, from_s)) < math.inf:
            # No GPU of one pool takes the place of another's meanwhile.
            if self.least(job, gpu_type, start_s, lasts_s) >= gpus:
                break
            later = bisect_right(both.times_s, start_s)
            from_s = both.times_s[later] if later < len(both.times_s) else math.inf
        return start_s

    def half_s(self, job: Job, gpu_type: GpuType) -> float:
        """Return when half of the GPUs of a type that a job may have are free, in s from now."""
        pool = _together(self.of(job, gpu_type))
        return pool.first_s(max(job.spec.num_gpus, -(-pool.free[-1] // 2)), 0.0, 0.0)

    def least(self, job: Job, gpu_type: GpuType, start_s: float, lasts_s: float) -> int:
        """Return how many GPUs of a type a job could have from `start_s` on for `lasts_s`."""
        return sum([max(0, pool.least(start_s, lasts_s)) for pool in self.of(job, gpu_type)])

    def take(self, job: Job, gpu_type: GpuType, start_s: float, lasts_s: float) -> None:
        """Take a job's GPUs of a type from `start_s` on for `lasts_s`."""
        left, pools = job.spec.num_gpus, self.of(job, gpu_type)
        for pool in pools:
            used = left if len(pools) == 1 else min(left, pool.least(start_s, lasts_s))
            if used > 0:
                pool.take(start_s, lasts_s, used)
                left -= used

    def start(self, gang: Gang, lasts_s: float) -> None:
        """Note that the GPUs of a gang are in use on their nodes, from now on for `lasts_s`."""
        for slot, gpus in gang.slots:
            self._releases[slot] += [FreedGpus(0.0, -gpus), FreedGpus(lasts_s, gpus)]

    def on_nodes_s(self, job: Job, gpu_type: GpuType) -> float:
        """Return when single nodes have room for a job, as far as what is placed holds them."""
        slots = self._allocator.slots_for(job, gpu_type)
        releases = [sorted(self._releases.get(slot, ())) for slot in slots]
        shapes = job.spec.shapes
        return min((_begin_s(releases, s.nodes, s.gpus_per_node) for s in shapes), default=math.inf)

    def of(self, job: Job, gpu_type: GpuType) -> Sequence[FreeGpus]:
        """Return the pools of a type of which a job may have GPUs."""
        return self._pools.get((gpu_type, self._allocator.like(job)), ())


def _together(pools: Sequence[FreeGpus]) -> FreeGpus:
    """Return several pools as one."""
    changes = (zip(p.times_s, map(sub, p.free, (0, *p.free)), strict=True) for p in pools)
    merged = starmap(FreedGpus, chain.from_iterable(changes))
    return pools[0] if len(pools) == 1 else FreeGpus(merged)


def _begin_s(slots: Iterable[Sequence[FreedGpus]], nodes: int, gpus: int) -> float:
    """Return when `nodes` of the slots will have `gpus` free each, in seconds; inf: never."""
    begins_s = []
    for releases in slots:
        totals = accumulate(release.gpus for release in releases)
        enough = (r.in_s for r, total in zip(releases, totals, strict=True) if total >= gpus)
        begins_s.append(next(enough, math.inf))
    return nsmallest(nodes, begins_s)[-1] if len(begins_s) >= nodes else math.inf


def _releases(allocator: Allocator) -> dict[Slot, list[FreedGpus]]:
    """Return when the free and placed GPUs of each slot become free."""
    found = {slot: [FreedGpus(0.0, free)] for slot, free in allocator.free.items() if free > 0}
    jobs = allocator.snapshot.by_id
    for job_id, allocation in allocator.placed.items():
        job = jobs[job_id]
        throughput = allocator.placed_throughput(job)
        left_s = job.steps_left / throughput if throughput > 0 else math.inf
        if job.spec.can_checkpoint and not allocator.round.may_move:
            left_s = min(left_s, allocator.round.left_s)
        if _EXACT_S < left_s < math.inf:  # by a 64th, so that the times of a large cluster are few
            unit_s = math.ldexp(1.0, math.frexp(left_s)[1] - 7)
            left_s = math.ceil(left_s / unit_s) * unit_s
        for gang in allocation.gangs:
            for slot, count in gang.slots:
                found.setdefault(slot, []).append(FreedGpus(left_s, count))
    return found


class _Place(NamedTuple):
    """Where a job is inserted: in seconds, from now on; from `held_s` on GPUs are kept for it."""

    cost_s: float
    start_s: float
    lasts_s: float
    gpu_type: GpuType
    held_s: float


def ended_by_limits(kinds: Kinds) -> float:
    """Return how many of the jobs that start are believed to be ended by their time limits."""
    allocator = kinds.allocator
    jobs = map(allocator.snapshot.by_id.__getitem__, allocator.placed)
    starts = (job for job in jobs if job.phase is Phase.QUEUED)
    return sum(_risk(j, kinds.of(j), allocator.placed_throughput(j)) for j in starts)


def non_preemptible(allocator: Allocator, job: Job) -> bool:
    """Return whether a queued job cannot be checkpointed and has a type that holds its gang."""
    waits = job.phase is Phase.QUEUED and not job.spec.can_checkpoint
    return waits and any(allocator.may_use(job, gpu_type) for gpu_type in allocator.gpu_types)


class Insertion:
    """Inserts the jobs of a queue, in its order."""

    def __init__(self, kinds: Kinds, queue: Sequence[Job]) -> None:
        self._kinds, self._allocator, self._queue = kinds, kinds.allocator, queue
        self._types = kinds.allocator.gpu_types
        self._table, self._starts_jobs, self._number = FreeTimes(kinds.allocator, queue), False, 0
        # By jobs alike, the steps of one that was not to start now: nor is a longer one.
        self._failed: dict[object, float] = {}
        # For each of the first jobs, what a GPU-second of each type costs it, in seconds.
        self.prices: Mapping[JobId, Sequence[float]] = {}
        self.prices = self._priced(queue[:_MOST_JOBS])

    def start(self) -> frozenset[JobId]:
        """Start the jobs that are to start now; return the others."""
        self._starts_jobs, allocator = True, self._allocator
        for job in self._queue:
            if not allocator.has_room:
                break
            place = self._insert(job)
            if place and place.start_s <= 0 and (gang := allocator.gang_on(job, place.gpu_type)):
                allocator.put(job, Allocation.rigid(gang))
                self._table.start(gang, place.lasts_s)
        return frozenset(job.job_id for job in self._queue) - allocator.placed.keys()

    def reserve(self, job: Job) -> GpuType | None:
        """Reserve GPUs for a job where it is inserted; return their type if they are free now."""
        place = self._insert(job)
        return place.gpu_type if place and place.start_s <= 0 else None

    def give(self, job: Job, index: TypeIndex) -> None:
        """Reserve GPUs of a type for a job as soon as there are enough."""
        if place := self._place(self._table, job, index):
            self._table.take(job, place.gpu_type, place.start_s, place.lasts_s)

    def _insert(self, job: Job) -> _Place | None:
        """Reserve GPUs for a job and return where; after the first jobs, only from now on."""
        self._number += 1
        only_now = self._number > _MOST_JOBS
        alike = self._allocator.like(job), job.belief and (job.spec.limit_s, job.belief)
        if only_now and job.steps_left >= self._failed.get(alike, math.inf):
            return None
        place = self._best(self._table, job, only_now=only_now)
        if place:
            lasts_s = place.start_s - place.held_s + place.lasts_s
            self._table.take(job, place.gpu_type, place.held_s, lasts_s)
        elif only_now:
            self._failed[alike] = job.steps_left
        return place

    def _best(self, table: FreeTimes, job: Job, *, only_now: bool = False) -> _Place | None:
        """Return where a job is inserted; None if it can run nowhere, or not now."""
        by_speed = self._kinds.of(job).by_speed
        places = (self._place(table, job, index, only_now=only_now) for index in by_speed)
        return min(filter(None, places), key=lambda place: place.cost_s, default=None)

    def _place(
        self, table: FreeTimes, job: Job, index: TypeIndex, *, only_now: bool = False
    ) -> _Place | None:
        """Return where a job is inserted on a type; None if it can never run there, or not now."""
        kind, gpu_type = self._kinds.of(job), self._types[index]
        lasts_s = max(1.0, job.steps_left / kind.steps_per_s[index])
        if only_now and table.least(job, gpu_type, 0.0, lasts_s) < kind.num_gpus:
            return None
        held_s = start_s = table.first_s(job, gpu_type, lasts_s)
        if start_s <= 0 and self._starts_jobs and not self._allocator.gang_on(job, gpu_type):
            # There are enough, but not on nodes: they are kept from now on, or others take them.
            from_s = max(1.0, table.on_nodes_s(job, gpu_type))
            start_s = table.first_s(job, gpu_type, lasts_s, from_s)
        prices = self.prices.get(job.job_id)
        price = prices[index] * kind.num_gpus if prices else 0.0
        lost_s = _lost_s(job, kind, index)
        if only_now:  # so it is compared with no later place, where its limit may suffice
            least_s = min(_lost_s(job, kind, i) for i in kind.by_speed) if lost_s > lasts_s else 0.0
            if start_s > 0 or lost_s - least_s > lasts_s:
                return None
        wait_s = kind.wait_weight(job) * start_s
        if 0 < start_s < math.inf and not job.is_estimated:
            wait_s = max(start_s, table.half_s(job, gpu_type))
        cost_s = wait_s + lasts_s * (1.0 + price) + lost_s
        place = _Place(cost_s, start_s, lasts_s, gpu_type, held_s=held_s)
        return place if start_s < math.inf else None

    def _priced(self, jobs: Sequence[Job]) -> Mapping[JobId, Sequence[float]]:
        """Return the prices of each type for these jobs, after inserting them without any.

        Only the jobs behind that may use some of the same nodes count, and only GPUs on these.
        """
        table, waits, worth = FreeTimes(self._allocator, jobs), [], [0.0] * len(self._types)
        for job in jobs:
            place, kind = self._best(table, job), self._kinds.of(job)
            waits.append(place is not None and place.start_s > 0)
            if place:
                table.take(job, place.gpu_type, place.start_s, place.lasts_s)
            for index in kind.by_speed:
                worth[index] += kind.num_gpus * job.steps_left / kind.best * kind.speeds[index]
        found, behind = dict[JobId, Sequence[float]](), Counter[frozenset[int]]()
        for job, is_waiting in zip(reversed(jobs), reversed(waits), strict=True):
            pools = [self._table.of(job, gpu_type) for gpu_type in self._types]
            reach = frozenset(map(id, chain.from_iterable(pools)))
            number = sum(n for other, n in behind.items() if not reach.isdisjoint(other))
            sizes = (sum(pool.free[-1] for pool in each) for each in pools)
            capacity = sum(map(mul, worth, sizes)) or 1.0
            found[job.job_id] = [number * each / capacity for each in worth]
            behind[reach] += is_waiting
        return found


def _risk(job: Job, kind: JobKind, steps_per_s: float) -> float:
    """Return the probability that its time limit ends a job that begins to train at a speed."""
    if job.belief is None or job.spec.limit_s == math.inf:
        return 0.0
    trained_s = job.progress.steps_done / kind.unit
    alive = job.belief.beyond(trained_s)
    ends_s = trained_s + job.spec.limit_s * steps_per_s / kind.unit
    return job.belief.beyond(ends_s) / alive if alive > 0.0 else 0.0


def _lost_s(job: Job, kind: JobKind, index: TypeIndex) -> float:
    """Return what a job loses on a type, on the mean, where its time limit ends it."""
    risk = _risk(job, kind, kind.steps_per_s[index])
    again_s = job.spec.limit_s * kind.speeds[index] + tuning.NOTICED_S
    return risk * (job.spec.limit_s + again_s) if risk else 0.0
