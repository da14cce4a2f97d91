"""Policy `slurm`: FIFO with backfill, without knowledge of GPU types.

What users have today: `sbatch --gres=gpu:4` on a Slurm whose queue ignores GPU types.
Source: the documentation of Slurm's sched/backfill (sched_config.html), in the EASY form (Lifka,
JSSPP'95): jobs start in order of submission; the first that has to wait gets a reservation of GPUs
at the earliest time that the running jobs' time limits allow; later jobs may start before it if
they end by then, or on GPUs that it will leave free. No preemption. Simplifications:

* One reservation, where Slurm makes up to bf_max_job_test: fewer holds, which favours short jobs
  and thus this baseline.
* Time limits: those of a careful user without knowledge of the GPUs, the time of all steps on the
  slowest type on which the job trains, spread over nodes where its layouts spread it. Past run
  time, as GPU-seconds received per GPU held, counts against it.
* Nodes: the first in order with room, in the first layout of the job's list that fits, as with
  nodes of equal weight; a gang over several nodes mixes types where the backend can express it.
  Types on which the job does not train are excluded, as by a --constraint.
* A job too large for the empty open nodes reserves nothing.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from operator import itemgetter

from hadar_slurm.core.cluster import GpuType, Slot
from hadar_slurm.core.gang import Allocation, Gang
from hadar_slurm.core.job import Job, Shape
from hadar_slurm.core.plan import Plan
from hadar_slurm.core.snapshot import Round, Snapshot
from hadar_slurm.core.throughput import Throughputs
from hadar_slurm.placement.allocator import Allocator
from hadar_slurm.placement.eligibility import Eligibility
from hadar_slurm.policies.policy import without_options

_Place = tuple[Slot, bool]


@dataclass(frozen=True, slots=True)
class SlurmBackfill:
    """The policy."""

    name: str = "slurm"

    def plan(self, snapshot: Snapshot, round_: Round) -> Plan:
        """Return which jobs run in `round_`, and on which GPUs."""
        allocator = Allocator(snapshot, round_)
        nodes = _NodesInOrder(allocator)
        waiting = [job for job in allocator.jobs if not allocator.stay(job)]
        ahead: _Reservation | None = None
        hopeless: set[object] = set()
        for job in sorted(waiting, key=lambda job: job.spec.submitted_s):
            if not allocator.has_room:
                break
            like = allocator.like(job)
            end_s = snapshot.now_s + time_limit_s(job, allocator.gpu_types)
            must_yield = ahead is not None and end_s > ahead.start_s
            if like in hopeless or (must_yield and (like, ahead) in hopeless):
                continue
            gang = nodes.first_gang(job, ahead.left if ahead and must_yield else allocator.free)
            if gang is not None:
                allocator.put(job, Allocation.rigid(gang))
                if ahead:
                    ahead.note(gang, allocator.free, outlasts=must_yield)
            elif must_yield:
                hopeless.add((like, ahead))
            else:
                hopeless.add(like)
                ahead = ahead or _reserve(job, allocator, nodes)
        return allocator.plan()


def time_limit_s(job: Job, gpu_types: tuple[GpuType, ...]) -> float:
    """Return the time limit in seconds that the job's user writes; inf if it trains nowhere."""
    spec = job.spec
    layouts = (False, True) if any(shape.nodes > 1 for shape in spec.shapes) else (False,)
    throughput = _slowest(spec.throughputs, spec.num_gpus, gpu_types, layouts)
    return spec.total_steps / throughput if throughput > 0 else float("inf")


@lru_cache(maxsize=4096)
def _slowest(
    throughputs: Throughputs,
    num_gpus: int,
    gpu_types: tuple[GpuType, ...],
    layouts: tuple[bool, ...],
) -> float:
    on = partial(throughputs.on, num_gpus=num_gpus)
    found = (on(k, is_spread=is_spread) for k in gpu_types for is_spread in layouts)
    return min((throughput for throughput in found if throughput > 0), default=0.0)


@dataclass(eq=False)
class _Reservation:
    """GPUs reserved for one job from `start_s` on."""

    start_s: float
    # Other GPUs free at that time.
    spare: dict[Slot, int]
    # GPUs free both now and then.
    left: dict[Slot, int]

    def note(self, gang: Gang, free: Mapping[Slot, int], *, outlasts: bool) -> None:
        """Subtract the GPUs of a started job; with `outlasts` it holds them beyond `start_s`."""
        for slot, count in gang.slots:
            self.spare[slot] -= count if outlasts else 0
            self.left[slot] = min(free[slot], self.spare[slot])


def _reserve(job: Job, allocator: Allocator, nodes: _NodesInOrder) -> _Reservation | None:
    """Return the earliest start of a job by the time limits of all running jobs, or None."""
    ends = sorted(_ends(allocator), key=itemgetter(0))
    times = [end_s for end_s, _ in ends]

    def free_at(time_s: float) -> Counter[Slot]:
        free = Counter(allocator.free)
        for _, gang in ends[: bisect_right(times, time_s)]:
            free.update(dict(gang.slots))
        return free

    # Free GPUs only grow with time, so the first end at which the job fits can be bisected.
    first = bisect_left(times, True, key=lambda at: nodes.first_gang(job, free_at(at)) is not None)
    if first == len(times):
        return None
    spare = free_at(times[first])
    if gang := nodes.first_gang(job, spare):
        spare.subtract(dict(gang.slots))
    left = {slot: min(count, spare[slot]) for slot, count in allocator.free.items()}
    return _Reservation(times[first], spare, left)


def _ends(allocator: Allocator) -> Iterator[tuple[float, Gang]]:
    """Yield when each gang is free again by its job's time limit."""
    now_s, jobs = allocator.snapshot.now_s, allocator.snapshot.by_id
    for job_id, allocation in allocator.placed.items():
        job = jobs[job_id]
        num_gpus = sum(gang.num_gpus for gang in allocation.gangs)
        left_s = time_limit_s(job, allocator.gpu_types) - job.progress.service_gpu_s / num_gpus
        for gang in allocation.gangs:
            yield now_s + max(0.0, left_s), gang


class _NodesInOrder:
    """Finds a job the first nodes of the cluster that have room."""

    def __init__(self, allocator: Allocator) -> None:
        self._allocator = allocator
        self._reach = Eligibility(allocator.snapshot)
        self._places: dict[object, list[_Place]] = {}

    def first_gang(self, job: Job, free: Mapping[Slot, int]) -> Gang | None:
        """Return a gang on the first nodes with room in `free`, or None."""
        if not self._allocator.rules.is_uniform:
            return self._walk(job, free, None)
        return next(filter(None, (self._walk(job, free, s) for s in job.spec.shapes)), None)

    def _walk(self, job: Job, free: Mapping[Slot, int], shape: Shape | None) -> Gang | None:
        """Take nodes in order until they suffice, of one type or mixed; no shape: any split."""
        size = job.spec.num_gpus
        least = shape.gpus_per_node if shape else 1
        found: defaultdict[GpuType | None, dict[tuple[str, str], int]] = defaultdict(dict)
        places = self._places_of(job, is_spread=shape is not None and shape.nodes > 1)
        for slot, may_mix in places:
            room = free[slot]
            if room < least:
                continue
            for key in (slot.gpu_type, None) if may_mix else (slot.gpu_type,):
                gang = found[key]
                if shape and any(node == slot.node for node, _ in gang):
                    continue
                gang[slot] = least if shape else min(room, size - sum(gang.values()))
                if sum(gang.values()) >= size:
                    return Gang.of(gang)
        return None

    def _places_of(self, job: Job, *, is_spread: bool) -> list[_Place]:
        """Return the slots that a job may use, and whether in a gang of several types."""
        key = (self._allocator.like(job), is_spread)
        if key not in self._places:
            nodes, on, size = self._reach.nodes, job.spec.throughputs.on, job.spec.num_gpus
            types = [k for k in self._allocator.gpu_types if on(k, size, is_spread=is_spread) > 0]
            alone, mixed = (
                {(n.name, k) for k in types for n in nodes(job, k, is_mixed=is_mixed)}
                for is_mixed in (False, True)
            )
            may_mix = self._allocator.rules.may_mix_types and job.bound_type is None
            self._places[key] = [
                (slot, may_mix and slot in mixed)
                for node in self._allocator.snapshot.cluster.nodes
                for slot, _ in node.slots
                if slot in alone
            ]
        return self._places[key]


make = without_options(SlurmBackfill)
