"""Policy `hadare`: jobs forked into copies on separate nodes, which share their steps.

Source: HadarE (arXiv 2503.10918): a job may have a copy on every node, one per node; for a slot the
copies train side by side, each as many steps as it is fast, then they are made one. Who gets the
nodes is ours:

1. *Who is good at what.* A linear program over all that is left (`forking.py`) gives the horizon
   and prices: a job goes to GPU types where a GPU-second of it is worth its price, or nearly.
2. *First copies.* Jobs that are long, even with all the copies they may have, come first, then
   those with the least GPU time left. Each gets one gang, on the good type on which it would end
   first, a restart included.
3. *Forks.* What is left of a type goes to the jobs that are good there, in the same order, held
   places first. So as long as there are jobs for all GPUs nobody pays for aggregation; after that
   idle GPUs hasten the job that ends first, and most others keep their single copy.
4. What is left then goes to anybody who trains there: to waiting jobs, then to copies.

A copy is made only if it pays (`_Deal._pays`). Within a slot nothing is moved; what comes free is
given out the same way. A job that may have one copy only is placed like any other's first copy, on
several nodes if need be; so is one that cannot be checkpointed, which could never give a copy up.
"""

from __future__ import annotations

import math
from collections import Counter
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
from hadar_slurm.policies.policy import PolicyOptions, SolverLimits

# A job is good at a type from this worth on: less is lost there than aggregation would take.
_GOOD = 0.99
# A job that needs so large a part of the horizon, with all the copies it may have, comes first.
_LONG = 0.7


@dataclass(frozen=True, slots=True)
class Hadare:
    """The policy; without a solution within `limits` a job is good at every type it trains on."""

    limits: SolverLimits | None = None
    name: str = "hadare"

    def plan(self, snapshot: Snapshot, round_: Round) -> Plan:
        """Return who runs where, in how many copies."""
        slot_end = round_.memory
        if round_.may_move or not isinstance(slot_end, _SlotEnd):
            slot_end = _SlotEnd(snapshot.now_s + round_.length_s)
        board = Allocator(snapshot, round_)
        horizon_s = 0.0
        if any(board.free.values()):
            contenders, horizon_s = _contenders(board, self.limits)
            deal = _Deal(board, contenders, slot_end.at_s - snapshot.now_s, Copies(board))
            deal.first_copies()
            deal.forks(_Contender.good)
            deal.leftovers()
            deal.forks(_Contender.usable)
        copies = sum(len(allocation.copies) for allocation in board.placed.values())
        figures = {"horizon_s": horizon_s, "copies": float(copies)}
        return board.plan(figures=figures, memory=slot_end)


@dataclass(frozen=True, slots=True)
class _SlotEnd:
    """When the present slot ends, in seconds; rounds within it cannot tell."""

    at_s: float


@dataclass(frozen=True, slots=True)
class _Contender:
    """A job, the types on which it trains (the fastest first), what it needs and is worth there."""

    job: Job
    gpu_types: Sequence[GpuType]
    demand: ForkDemand
    worth: Mapping[GpuType, float]

    def rank(self, horizon_s: float) -> tuple[bool, float]:
        """Return the sort key of the order in which jobs are served."""
        shortest_s = min(self.demand.alone_s.values(), default=math.inf)
        return (self.forked_s() < _LONG * horizon_s, self.demand.num_gpus * shortest_s)

    def forked_s(self) -> float:
        """Return how long the job takes with all the copies it may have, on its good types."""
        left, pace = self.demand.max_copies, 0.0
        for gpu_type in self.gpu_types:
            if self.worth.get(gpu_type, 0.0) >= _GOOD:
                copies = min(left, self.demand.copies[gpu_type])
                left, pace = left - copies, pace + copies / self.demand.alone_s[gpu_type]
        return 1.0 / pace if pace else 0.0

    def good(self) -> Sequence[GpuType]:
        """Return the types on which the job is (nearly) worth its price, its soonest end first."""
        held = {slot.gpu_type for gang in held_by(self.job).gangs for slot, _ in gang.slots}
        ends_s = {
            gpu_type: self.demand.alone_s[gpu_type] + restart_s(self.job) * (gpu_type not in held)
            for gpu_type, worth in self.worth.items()
            if worth >= _GOOD
        }
        return sorted(ends_s, key=lambda gpu_type: ends_s[gpu_type])

    def usable(self) -> Sequence[GpuType]:
        """Return all types on which the job trains, the one where it is worth most first."""
        return sorted(self.gpu_types, key=lambda gpu_type: -self.worth.get(gpu_type, 0.0))


def _contenders(
    board: Allocator, limits: SolverLimits | None
) -> tuple[Sequence[_Contender], float]:
    """Return the jobs in the order in which they are served, and the horizon in seconds."""
    nodes = board.snapshot.cluster.by_name
    gpus: Counter[GpuType] = Counter()
    for slot, free in board.snapshot.plannable_capacity.items():
        gpus[slot.gpu_type] += free if nodes[slot.node].is_schedulable else 0
    jobs = board.snapshot.plannable
    room: dict[object, int] = {}
    demands = [_demand(board, job, +gpus, room) for job in jobs]
    try:
        found = solve_forking(demands, +gpus, limits)
    except SolverError:
        found = Forking(0.0, [dict.fromkeys(demand.alone_s, 1.0) for demand in demands])
    contenders = [
        _Contender(job, board.by_speed(job), demand, worth)
        for job, demand, worth in zip(jobs, demands, found.worth, strict=True)
    ]
    return sorted(contenders, key=lambda one: one.rank(found.horizon_s)), found.horizon_s


def _demand(
    board: Allocator, job: Job, gpus: Mapping[GpuType, int], room: dict[object, int]
) -> ForkDemand:
    """Return what a job asks for; `room` keeps, for jobs alike, on how many nodes one fits."""
    spec, capacity = job.spec, board.snapshot.cluster.capacity
    held = {slot.gpu_type for gang in held_by(job).gangs for slot, _ in gang.slots}
    alone_s, copies = {}, {}
    for gpu_type in board.by_speed(job):
        is_open = gpu_type in held if job.is_pinned_in_place else board.may_use(job, gpu_type)
        if not (is_open and gpu_type in gpus):
            continue
        key = (gpu_type, spec.num_gpus, spec.throughputs, spec.can_checkpoint, job.allowed_nodes)
        if key not in room:
            slots = board.slots_for(job, gpu_type)
            room[key] = sum(capacity[slot] >= spec.num_gpus for slot in slots)
        alone_s[gpu_type] = max(job.steps_left, 1.0) / board.throughput(job, gpu_type)
        copies[gpu_type] = max(1, room[key])
    return ForkDemand(alone_s, copies, spec.num_gpus, spec.max_copies if may_fork(job) else 1)


@dataclass(frozen=True, slots=True)
class _Deal:
    """Gives out a board's GPUs to contenders, in order, for the `rest_s` seconds left of a slot."""

    board: Allocator
    contenders: Sequence[_Contender]
    rest_s: float
    copies: Copies

    def first_copies(self) -> None:
        """Give every undecided job a gang on one of its good types, as far as they go."""
        undecided = {job.job_id for job in self.board.jobs}
        chosen = []
        for contender in self.contenders:
            job = contender.job
            if job.job_id in undecided and any(
                self.board.choose(with_one_copy(job, gpu_type), gpu_type)
                for gpu_type in contender.good()
            ):
                chosen.append(job)
        assign_nodes(self.board)
        for job in chosen:
            if job.job_id in self.board.placed:
                self.copies.give(job, self.board.placed[job.job_id].gangs)

    def leftovers(self) -> None:
        """Give waiting jobs whatever they can train on: a gang they hold, or what is left."""
        for contender in self.contenders:
            job = contender.job
            if job.job_id in self.board.placed:
                continue
            held = (gang for gang in held_by(job).gangs if self.copies.is_free(gang))
            gang = next(held, None)
            if gang is not None:
                self.copies.give(job, [gang])
            else:
                self.board.start(job, contender.usable())

    def forks(self, gpu_types_of: Callable[[_Contender], Sequence[GpuType]]) -> None:
        """Give jobs that run further copies on the types that `kinds_of` names, where that pays."""
        for contender in self.contenders:
            if not self.board.has_room:
                return
            job = contender.job
            allocation = self.board.placed.get(job.job_id, Allocation())
            gangs = allocation.gangs
            if not (gangs and may_fork(job)) or job.is_pinned_in_place or gangs[0].is_spread:
                continue
            found = self.copies.places(job, gpu_types_of(contender), gangs)
            more = tuple(islice(found, job.spec.max_copies - len(gangs)))
            if more and self._pays(job, gangs, more):
                self.copies.give(job, gangs + more)

    def _pays(self, job: Job, gangs: Sequence[Gang], more: Sequence[Gang]) -> bool:
        """Return whether a job is better off with `more` copies, all of them.

        If it ends within the slot: whether it ends sooner, the aggregation included that follows
        where there are several copies. Else: whether the new copies, from their restart to their
        aggregation at the slot's end, train more than what aggregation takes from a single copy.
        """
        throughput, added = self._throughput(job, gangs), self._throughput(job, more)
        held = held_by(job).gangs
        late = restart_s(job) * self._throughput(job, [gang for gang in more if gang not in held])
        aggregation_s, is_forked = job.spec.aggregation_cost_s, len(gangs) > 1
        end_s = (
            job.steps_left / throughput + aggregation_s * is_forked if throughput > 0 else math.inf
        )
        if end_s <= self.rest_s:
            return (job.steps_left + late) / (throughput + added) + aggregation_s < end_s
        lost = 0.0 if is_forked else throughput * aggregation_s
        return added * (self.rest_s - aggregation_s) - late > lost

    def _throughput(self, job: Job, gangs: Sequence[Gang]) -> float:
        return sum(self.board.rules.throughput(gang, job.spec.throughputs) for gang in gangs)


def make(options: PolicyOptions) -> Hadare:
    """Return the policy (entry point)."""
    return Hadare(limits=options.limits)
