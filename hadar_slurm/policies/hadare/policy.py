"""Policy `hadare`: jobs forked into copies on separate nodes, which share their steps.

Source: HadarE (arXiv 2503.10918): a job may have one copy on every node; during an averaging
interval the copies train side by side, each at its own throughput, then their parameters are
averaged. The assignment of nodes is our own:

1. *Types.* A linear program over all work left (`fork_lp.py`) gives the horizon and prices: a job
   is good at GPU types where a GPU-second of it is worth its price, or nearly.
2. *First copies.* Jobs that are long, even with all their copies, come first, then those with the
   least GPU time left. Each gets one gang, on the good type on which it would end first, a restart
   included.
3. *Forks.* The rest of a type goes to the jobs good there, in the same order, held places first. So
   while there are jobs for all GPUs no job pays for averaging; after that idle GPUs speed up the
   job that ends first, and most others keep their single copy.
4. The rest goes to any job that trains there: to queued jobs, then to copies.

A copy is made only if it pays (`_Deal._pays`). Nothing migrates within an interval; GPUs that
become free are assigned in the same way. A job limited to one copy, or that cannot be checkpointed
and so never gives a copy up, is placed like a first copy, on several nodes if need be.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from hadar_slurm.core.cluster import GpuType
from hadar_slurm.core.gang import Allocation, Gang
from hadar_slurm.core.job import Job
from hadar_slurm.core.plan import Plan
from hadar_slurm.core.snapshot import Round, Snapshot
from hadar_slurm.errors import SolverError
from hadar_slurm.placement.allocator import Allocator
from hadar_slurm.placement.copies import Copies, held_by, may_fork, restart_s, with_one_copy
from hadar_slurm.placement.node_assignment import assign_nodes
from hadar_slurm.policies.hadare.fork_lp import ForkDemand, Forking, solve_forking
from hadar_slurm.policies.policy import PolicyOptions, SolverLimits, open_gpus

# A job is good at a type from this worth on: the loss is below the cost of averaging.
_GOOD = 0.99
# A job that needs this share of the horizon, with all its copies, comes first.
_LONG = 0.7


@dataclass(frozen=True, slots=True)
class Hadare:
    """The policy; without a solution within `limits` a job is good at every type it trains on."""

    limits: SolverLimits | None = None
    name: str = "hadare"
    # A copy may have another number of GPUs on each type.
    sizes_by_type = True

    def plan(self, snapshot: Snapshot, round_: Round) -> Plan:
        """Return which jobs run in `round_`, in how many copies, and on which GPUs."""
        interval_end = round_.memory
        if round_.may_move or not isinstance(interval_end, _IntervalEnd):
            interval_end = _IntervalEnd(snapshot.now_s + round_.length_s)
        allocator, horizon_s = Allocator(snapshot, round_), 0.0
        if any(allocator.free.values()):
            contenders, horizon_s = _contenders(allocator, self.limits)
            rest_s = interval_end.at_s - snapshot.now_s
            deal = _Deal(allocator, contenders, rest_s, Copies(allocator))
            deal.first_copies()
            deal.forks(_Contender.good)
            for contender in contenders:
                keep_or_start(allocator, contender.job, contender.usable())
            deal.forks(_Contender.usable)
        copies = sum(len(allocation.copies) for allocation in allocator.placed.values())
        figures = {"horizon_s": horizon_s, "copies": float(copies)}
        return allocator.plan(figures=figures, memory=interval_end)


@dataclass(frozen=True, slots=True)
class _IntervalEnd:
    """When the present averaging interval ends, in seconds."""

    at_s: float


@dataclass(frozen=True, slots=True)
class _Contender:
    """A job, the types on which it trains (the fastest first), its demand and its worth there."""

    job: Job
    gpu_types: Sequence[GpuType]
    demand: ForkDemand
    worth: Mapping[GpuType, float]

    def rank(self, horizon_s: float) -> tuple[bool, float]:
        """Return the sort key: long with all copies on good types, then by GPU time left."""
        demand, pace = self.demand, 0.0
        gpu_s = (demand.num_gpus[k] * alone_s for k, alone_s in demand.alone_s.items())
        left = demand.max_copies
        for gpu_type in self.gpu_types:
            if self.worth.get(gpu_type, 0.0) >= _GOOD:
                copies = min(left, demand.copies[gpu_type])
                left, pace = left - copies, pace + copies / demand.alone_s[gpu_type]
        forked_s = 1.0 / pace if pace else 0.0
        return (forked_s < _LONG * horizon_s, min(gpu_s, default=math.inf))

    def good(self) -> Sequence[GpuType]:
        """Return the types on which the job is (nearly) worth its price, its soonest end first."""
        held, alone_s, cost_s = held_types(self.job), self.demand.alone_s, restart_s(self.job)
        good = [gpu_type for gpu_type, worth in self.worth.items() if worth >= _GOOD]
        return sorted(
            good, key=lambda gpu_type: alone_s[gpu_type] + cost_s * (gpu_type not in held)
        )

    def usable(self) -> Sequence[GpuType]:
        """Return all types on which the job trains, by falling worth."""
        return sorted(self.gpu_types, key=lambda gpu_type: -self.worth.get(gpu_type, 0.0))


def held_types(job: Job) -> set[GpuType]:
    """Return the GPU types that a job holds."""
    return {slot.gpu_type for gang in held_by(job).gangs for slot, _ in gang.slots}


def keep_or_start(allocator: Allocator, job: Job, gpu_types: Sequence[GpuType]) -> None:
    """Give a job without GPUs a gang that it holds, or else start it on `gpu_types`."""
    if job.job_id not in allocator.placed:
        copies = Copies(allocator)
        if gang := next(filter(copies.is_free, held_by(job).gangs), None):
            copies.give(job, [gang])
        else:
            allocator.start(job, gpu_types)


def _contenders(
    allocator: Allocator, limits: SolverLimits | None
) -> tuple[Sequence[_Contender], float]:
    """Return the jobs in the order in which they are served, and the horizon in seconds."""
    # In the order of nodes, which decides between types of equal worth.
    snapshot, jobs = allocator.snapshot, allocator.snapshot.plannable
    types = tuple(dict.fromkeys(slot.gpu_type for slot in snapshot.plannable_capacity))
    counts = zip(types, open_gpus(snapshot, types), strict=True)
    gpus = {gpu_type: count for gpu_type, count in counts if count}
    room: dict[object, int] = {}
    demands = [_demand(allocator, job, gpus, room) for job in jobs]
    try:
        found = solve_forking(demands, gpus, limits)
    except SolverError:
        found = Forking(0.0, [dict.fromkeys(demand.alone_s, 1.0) for demand in demands])
    contenders = [
        _Contender(job, allocator.by_speed(job), demand, worth)
        for job, demand, worth in zip(jobs, demands, found.worth, strict=True)
    ]
    return sorted(contenders, key=lambda one: one.rank(found.horizon_s)), found.horizon_s


def _demand(
    allocator: Allocator, job: Job, gpus: Mapping[GpuType, int], room: dict[object, int]
) -> ForkDemand:
    """Return a job's demand; `room` caches, for jobs alike, the number of nodes where one fits."""
    spec, capacity, held = job.spec, allocator.snapshot.cluster.capacity, held_types(job)
    alone_s, copies = {}, {}
    sizes = {gpu_type: spec.gpus_on(gpu_type) for gpu_type in gpus}
    for gpu_type in allocator.by_speed(job):
        is_open = gpu_type in held if job.is_pinned_in_place else allocator.may_use(job, gpu_type)
        if not (is_open and gpu_type in gpus):
            continue
        key = (gpu_type, sizes[gpu_type], spec.throughputs, spec.can_checkpoint, job.allowed_nodes)
        if key not in room:
            slots = allocator.slots_for(job, gpu_type)
            room[key] = sum(capacity[slot] >= sizes[gpu_type] for slot in slots)
        alone_s[gpu_type] = max(job.steps_left, 1.0) / allocator.throughput(job, gpu_type)
        copies[gpu_type] = max(1, room[key])
    return ForkDemand(alone_s, copies, sizes, spec.max_copies if may_fork(job) else 1)


@dataclass(frozen=True, slots=True)
class _Deal:
    """Assigns GPUs to contenders, in order, for the `rest_s` seconds left of an interval."""

    allocator: Allocator
    contenders: Sequence[_Contender]
    rest_s: float
    copies: Copies

    def first_copies(self) -> None:
        """Give undecided jobs a gang on one of their good types, as far as these suffice."""
        undecided, choose = {job.job_id for job in self.allocator.jobs}, self.allocator.choose
        chosen = [
            contender.job
            for contender in self.contenders
            if contender.job.job_id in undecided
            and any(choose(with_one_copy(contender.job, k), k) for k in contender.good())
        ]
        assign_nodes(self.allocator)
        for job in chosen:
            if job.job_id in self.allocator.placed:
                self.copies.give(job, self.allocator.placed[job.job_id].gangs)

    def forks(self, gpu_types_of: Callable[[_Contender], Sequence[GpuType]]) -> None:
        """Give placed jobs further copies on the types of `gpu_types_of`, where that pays."""
        for contender in self.contenders:
            if not self.allocator.has_room:
                return
            job = contender.job
            gangs = self.allocator.placed.get(job.job_id, Allocation()).gangs
            if not (gangs and may_fork(job)) or job.is_pinned_in_place or gangs[0].is_spread:
                continue
            found = self.copies.places(job, gpu_types_of(contender), gangs)
            more = tuple(islice(found, job.spec.max_copies - len(gangs)))
            if more and self._pays(job, gangs, more):
                self.copies.give(job, gangs + more)

    def _pays(self, job: Job, gangs: Sequence[Gang], more: Sequence[Gang]) -> bool:
        """Return whether all of the `more` copies pay.

        If the job ends within the interval: whether it ends sooner, averaging included. Else:
        whether the new copies, from their restart to the averaging at the interval's end, train
        more steps than averaging costs a single copy.
        """
        new = [gang for gang in more if gang not in held_by(job).gangs]
        throughput, added, of_new = (self._throughput(job, each) for each in (gangs, more, new))
        late = restart_s(job) * of_new
        aggregation_s, is_forked = job.spec.aggregation_cost_s, len(gangs) > 1
        alone_s = job.steps_left / throughput if throughput > 0 else math.inf
        end_s = alone_s + aggregation_s * is_forked
        if end_s <= self.rest_s:
            return (job.steps_left + late) / (throughput + added) + aggregation_s < end_s
        lost = 0.0 if is_forked else throughput * aggregation_s
        return added * (self.rest_s - aggregation_s) - late > lost

    def _throughput(self, job: Job, gangs: Sequence[Gang]) -> float:
        return sum(self.allocator.rules.throughput(gang, job.spec.throughputs) for gang in gangs)


def make(options: PolicyOptions) -> Hadare:
    """Return the policy (entry point)."""
    return Hadare(limits=options.limits)
