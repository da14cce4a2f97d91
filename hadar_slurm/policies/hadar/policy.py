"""Policy `hadar`, the default: prices from a linear program, long jobs in time, short jobs first.

Like Hadar (IPDPS'24) it is primal-dual: GPU types have prices, and a job takes the type on which
what it gains is worth most after the price. It does not follow the paper's form (that is
`hadar-paper`); what is ours:

* Prices are the duals of the makespan program over all jobs in view (`horizon.py`), exact for the
  horizon, where the paper's rise with use. A job may take any type that does its work at the lowest
  priced cost, the fastest of them that has room. Where GPUs cost nothing, that is its fastest.
* Jobs whose planned time fills the horizon are critical and go first, on the types planned for
  them: whoever of these waits longer makes everybody's end later.
* Then those who have gone without GPUs for more than a day and ten times the horizon: nobody
  waits for ever.
* All others go by the shortest remaining service (GPU-seconds on the fastest type), which is best
  for the mean completion time, weighted by Slurm's fair-share factor where it is known.
* Who runs keeps its type unless another saves more than a restart, and with its type its place. Of
  two jobs the one that runs goes first unless the other is shorter by two restarts, or among
  critical jobs later by ten.
* The program is solved again after jobs came or went, at most every half hour, and more often as
  the horizon comes near.
* Where nearly all can run at once, those that are neither critical nor overdue share the types out
  by comparative advantage among the types that cost them least: a short job that hardly gains from
  a fast GPU leaves it to a longer one that does. Then more is done in all, and the next to come
  find less before them.
* A job that cannot be moved takes the type on which it ends first, the wait included, and does not
  begin elsewhere meanwhile (`earliest.py`): it would have to stay there.
* Where only gangs wait that are larger than what is left of a type, jobs of nearly the same worth
  are traded so that it is used (`fitting.py`).

GPUs that are left go to whoever can use them, mixed types included.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from hadar_slurm.core.cluster import GpuType, JobId
from hadar_slurm.core.job import Job, Phase
from hadar_slurm.core.plan import Plan
from hadar_slurm.core.snapshot import Round, Snapshot
from hadar_slurm.errors import SolverError
from hadar_slurm.placement.allocator import Allocator
from hadar_slurm.placement.comparative_advantage import advantages
from hadar_slurm.placement.node_assignment import assign_nodes
from hadar_slurm.policies.hadar.completion_forecast import Forecast, first_end_on_nodes, settles
from hadar_slurm.policies.hadar.knapsack import Item, refit
from hadar_slurm.policies.hadar.makespan_lp import Demand, Horizon, find_horizon
from hadar_slurm.policies.policy import PolicyOptions, SolverLimits

# A job is critical when its planned time is this share of what is left of the horizon.
_CRITICAL = 0.95
# Costs closer than this share are the same: the solver's rounding.
_SAME_COST = 1e-6
# The program is solved again after this time, or this share of the horizon, if that is shorter.
_RENEW_S, _RENEW_SHARE = 1800.0, 0.02
# Even when nobody came or went, plan and progress drift apart.
_DRIFT_SHARE = 0.2
# Among critical jobs one that runs goes before another that is later by less than this.
_RESTARTS_TO_MOVE = 10
# Among all others one that runs goes before another that is shorter by less than this.
_RESTARTS_TO_STOP = 2
# GPUs left idle are used where that costs no more than this share of the worth of the jobs there.
_WORTH_TO_TRADE = 0.005
# It is crowded when the jobs together ask for more than this many times the GPUs. Below, nearly
# everybody runs, and who has which type matters more than who goes first.
_CROWDED = 1.2
_URGENT = 1e6
# The longest wait: this, and so many times what is left of the horizon.
_LONGEST_WAIT_S, _LONGEST_WAIT_HORIZONS = 86400.0, 10.0


@dataclass(frozen=True, slots=True)
class Hadar:
    """The policy; it keeps the program's last solution as its memory."""

    limits: SolverLimits = field(default_factory=SolverLimits)
    name: str = "hadar"

    def plan(self, snapshot: Snapshot, round_: Round) -> Plan:
        """Return who runs where in `round_`."""
        board = Allocator(snapshot, round_)
        prospects = _Prospects(board)
        horizon, is_new = self._horizon(snapshot, round_, prospects)
        queue = _Queue(snapshot.now_s, prospects, horizon).ranked(board.jobs)
        settling = {job.job_id for job in board.jobs if settles(board, job)}
        chosen, refits = _choose_types(board, queue, settling)
        late: list[Job] = []
        for entry, gpu_type in zip(queue, chosen, strict=True):
            if gpu_type is None or not board.choose(entry.job, board.gpu_types[gpu_type]):
                late.append(entry.job)
        for job in late:
            if not board.has_room:
                break
            if job.job_id not in settling:
                own = board.runs_on(job)
                types = [*([own] if own else []), *board.by_speed(job)]
                any(board.choose(job, one) for one in types)
        for job in assign_nodes(board):
            if job.job_id in settling and (first := first_end_on_nodes(board, job)):
                board.start(job, [first])
        board.fill(entry.job for entry in queue if entry.job.job_id not in settling)
        figures = {"solved": float(is_new), "refitted": float(refits)}
        if horizon:
            figures["horizon_s"] = horizon.ends_s - snapshot.now_s
            for kind_name, price in zip(board.gpu_types, horizon.prices, strict=True):
                figures[f"price.{kind_name}"] = price
        return board.plan(figures=figures, memory=horizon, patient=settling)

    def _horizon(
        self, snapshot: Snapshot, round_: Round, prospects: _Prospects
    ) -> tuple[Horizon | None, bool]:
        """Return the horizon in memory while it will do, else a new one; and whether it is new."""
        gpu_types = prospects.board.gpu_types
        known = round_.memory if isinstance(round_.memory, Horizon) else None
        if known and len(known.prices) != len(gpu_types):
            known = None
        jobs = [job for job in snapshot.plannable if job.steps_left > 0 and prospects.of(job).best]
        if known and not _is_stale(known, jobs, snapshot.now_s):
            return known, False
        capacity = _capacity(snapshot, gpu_types)
        demands = []
        for job in jobs:
            prospect, size = prospects.of(job), job.spec.num_gpus
            throughputs = tuple(
                throughput if count >= size else 0.0
                for throughput, count in zip(prospect.throughputs, capacity, strict=True)
            )
            if any(throughputs):
                demands.append(Demand(job.job_id, prospect, size, job.steps_left, throughputs))
        if not demands:
            return None, False
        try:
            return find_horizon(demands, capacity, snapshot.now_s, self.limits), True
        except SolverError:
            # Without prices every type is free and nobody critical: shortest remaining first.
            return known, False


def _is_stale(known: Horizon, jobs: Sequence[Job], now_s: float) -> bool:
    age_s, left_s = now_s - known.made_s, known.ends_s - now_s
    if left_s <= 0 or age_s > _DRIFT_SHARE * left_s:
        return True
    if age_s < min(_RENEW_S, _RENEW_SHARE * left_s):
        return False
    return len(jobs) != len(known.jobs) or any(job.job_id not in known.jobs for job in jobs)


def _capacity(snapshot: Snapshot, gpu_types: Sequence[GpuType]) -> list[int]:
    """Return the GPUs of each type that our jobs may use on nodes that take work."""
    nodes = snapshot.cluster.by_name
    total = dict.fromkeys(gpu_types, 0)
    for slot, count in snapshot.plannable_capacity.items():
        if nodes[slot.node].is_schedulable:
            total[slot.gpu_type] += count
    return list(total.values())


@dataclass(eq=False, slots=True)
class _Prospect:
    """What jobs share that differ in nothing but their steps.

    `throughputs` in steps/s on each type, 0 where they may not run; `types` at the lowest cost by
    index, the fastest first, once prices are known.
    """

    throughputs: tuple[float, ...]
    by_speed: tuple[int, ...]
    best: float
    types: tuple[int, ...] | None = None


class _Prospects:
    """The prospects of the jobs on one board."""

    def __init__(self, board: Allocator) -> None:
        self.board = board
        self._by_kind: dict[object, _Prospect] = {}
        self._by_job: dict[JobId, _Prospect] = {}

    def of(self, job: Job) -> _Prospect:
        """Return a job's prospect."""
        found = self._by_job.get(job.job_id)
        if found is None:
            spec = job.spec
            key = (
                id(spec.throughputs),
                spec.num_gpus,
                spec.shapes,
                job.allowed_nodes,
                job.bound_type,
            )
            found = self._by_kind.get(key)
            if found is None:
                found = self._by_kind[key] = self._make(job)
            self._by_job[job.job_id] = found
        return found

    def _make(self, job: Job) -> _Prospect:
        board = self.board
        throughputs = tuple(
            board.throughput(job, gpu_type) if board.may_use(job, gpu_type) else 0.0
            for gpu_type in board.gpu_types
        )
        runs = [index for index, throughput in enumerate(throughputs) if throughput > 0]
        by_speed = tuple(sorted(runs, key=lambda index: (-throughputs[index], index)))
        return _Prospect(throughputs, by_speed, max(throughputs, default=0.0))


class _Entry(NamedTuple):
    """A job in the queue: class, key within it, place in the board's order, and its types."""

    rank: int
    key: float
    place: int
    job: Job
    types: tuple[int, ...]
    left_s: float


_CRITICAL_RANK, _OVERDUE_RANK, _SHORTEST_RANK, _NOWHERE_RANK = range(4)


@dataclass(frozen=True, slots=True)
class _Queue:
    """The order of the jobs, and for each the types it should take, the first the best."""

    now_s: float
    prospects: _Prospects
    horizon: Horizon | None

    def ranked(self, jobs: Sequence[Job]) -> list[_Entry]:
        """Return all jobs: critical, overdue, then the shortest first."""
        return sorted(self._entry(place, job) for place, job in enumerate(jobs))

    def _entry(self, place: int, job: Job) -> _Entry:
        prospect, spec = self.prospects.of(job), job.spec
        if not prospect.best:
            return _Entry(_NOWHERE_RANK, 0.0, place, job, (), 0.0)
        left_s = job.steps_left / prospect.best
        horizon_s = max(1.0, self.horizon.ends_s - self.now_s) if self.horizon else 0.0
        planned = self.horizon.planned.get(job.job_id) if self.horizon else None
        if planned:
            planned_s = planned.left_s(job.steps_left)
            if planned_s >= _CRITICAL * horizon_s:
                if job.phase is Phase.RUNNING:
                    planned_s += _RESTARTS_TO_MOVE * spec.restart_cost_s
                # What it was planned on it may be unable to use by now.
                types = tuple(i for i in prospect.by_speed if planned.seconds[i])
                types = types or self._types_at_lowest_cost(prospect)
                types = self._with_own_type(job, prospect, types)
                return _Entry(_CRITICAL_RANK, -planned_s, place, job, types, left_s)
        types = self._with_own_type(job, prospect, self._types_at_lowest_cost(prospect))
        waited_s = self._waited_s(job)
        if waited_s > _LONGEST_WAIT_S + _LONGEST_WAIT_HORIZONS * horizon_s:
            return _Entry(_OVERDUE_RANK, -waited_s, place, job, types, left_s)
        # To be stopped for a shorter job costs a restart, and so may the way back.
        stays_s = _RESTARTS_TO_STOP * spec.restart_cost_s if job.phase is Phase.RUNNING else 0.0
        service = spec.num_gpus * max(0.0, left_s - stays_s)
        if job.fair_share is not None:
            # 0.5 is a user who has used just the share; down to a twentieth of it.
            service /= max(0.05, 2.0 * job.fair_share)
        return _Entry(_SHORTEST_RANK, service, place, job, types, left_s)

    def _waited_s(self, job: Job) -> float:
        """Return how long a job was without GPUs, all in all."""
        age_s = self.now_s - job.spec.submitted_s
        return age_s - job.progress.service_gpu_s / job.spec.num_gpus

    def _types_at_lowest_cost(self, prospect: _Prospect) -> tuple[int, ...]:
        """Return the types on which a step costs least at the horizon's prices, fastest first."""
        if prospect.types is None:
            costs = self._costs(prospect)
            least = min(costs.values()) + _SAME_COST
            prospect.types = tuple(i for i in prospect.by_speed if costs[i] <= least)
        return prospect.types

    def _costs(self, prospect: _Prospect) -> dict[int, float]:
        """Return what a second's work on the fastest type costs on each type.

        In seconds of the dearest type; all are 0 where GPUs cost nothing.
        """
        prices = self.horizon.prices if self.horizon else (0.0,) * len(prospect.throughputs)
        dearest = max(prices) or 1.0
        return {
            i: prices[i] / dearest * prospect.best / prospect.throughputs[i]
            for i in prospect.by_speed
        }

    def _with_own_type(
        self, job: Job, prospect: _Prospect, types: tuple[int, ...]
    ) -> tuple[int, ...]:
        """Return the types with that on which a job runs in front, unless a move pays.

        It does when it saves more than a restart: of the job's own time, or of what it costs.
        """
        board = self.prospects.board
        gpu_type = board.runs_on(job)
        if gpu_type is None or types[0] == (own := board.gpu_types.index(gpu_type)):
            return types
        if not prospect.throughputs[own]:
            return types
        costs = self._costs(prospect)
        longer_s = job.steps_left * (
            1 / prospect.throughputs[own] - 1 / prospect.throughputs[types[0]]
        )
        dearer_s = job.steps_left / prospect.best * (costs[own] - costs[types[0]])
        if max(longer_s, dearer_s) > job.spec.restart_cost_s:
            return types
        return (own, *(i for i in types if i != own))


def _worth(entry: _Entry) -> float:
    """Return the share of a job that a second trains; more than any other's for whom it is time."""
    return 1.0 / max(entry.left_s, 1e-3) if entry.rank == _SHORTEST_RANK else _URGENT


def _choose_types(
    board: Allocator, queue: Sequence[_Entry], settling: Set[JobId]
) -> tuple[list[int | None], int]:
    """Return for each entry the index of its type, and on how many types a better fit was found.

    In the order of the queue each takes the first of its types with room, or if it is one of
    `settling` the one on which it ends first (earliest.py). Unless it is crowded, those whose turn
    is only a matter of size take types by comparative advantage, after all others. GPUs that are
    left then are used by trading, among those that are neither critical, overdue nor settling
    (fitting.py).
    """
    room = [board.room(gpu_type) for gpu_type in board.gpu_types]
    chosen: list[int | None] = [None] * len(queue)
    left = sum(room)
    wanted = sum(entry.job.spec.num_gpus for entry in queue if entry.types)
    is_crowded = wanted > _CROWDED * left
    forecast = Forecast(board, [entry.job for entry in queue] if settling else [])
    later: list[int] = []
    for index, entry in enumerate(queue):
        if left <= 0:
            break
        job, size, types = entry.job, entry.job.spec.num_gpus, entry.types
        if job.job_id in settling:
            first = forecast.first_end(job)
            types = () if first is None else (board.gpu_types.index(first),)
        elif not is_crowded and entry.rank == _SHORTEST_RANK and types and size <= left:
            # To the forecast they are nobody: they move away from what suits another better.
            later.append(index)
            left -= size
            continue
        for gpu_type in types:
            if room[gpu_type] >= size:
                room[gpu_type] -= size
                left -= size
                chosen[index] = gpu_type
                if settling and job.job_id not in settling:
                    forecast.give(job, board.gpu_types[gpu_type])
                break
    pairs = [
        (-suits[board.gpu_types[gpu_type]], index, gpu_type)
        for index in later
        for suits in [advantages(board, queue[index].job)]
        for gpu_type in queue[index].types
    ]
    for _, index, gpu_type in sorted(pairs):
        size = queue[index].job.spec.num_gpus
        if chosen[index] is None and room[gpu_type] >= size:
            room[gpu_type] -= size
            chosen[index] = gpu_type
    refits = 0
    for gpu_type, free in enumerate(room):
        if free <= 0:
            continue
        loose = [
            (Item(index, entry.job.spec.num_gpus, _worth(entry)), chosen[index])
            for index, entry in enumerate(queue)
            if entry.job.job_id not in settling
            if (chosen[index] == gpu_type and entry.rank == _SHORTEST_RANK)
            or (chosen[index] is None and gpu_type in entry.types)
        ]
        taken = [item for item, own in loose if own is not None]
        waiting = [item for item, own in loose if own is None]
        better = refit(taken, waiting, free, _WORTH_TO_TRADE)
        if better is not None:
            refits += 1
            for item, _ in loose:
                chosen[item.place] = gpu_type if item.place in better else None
    return chosen, refits


def make(options: PolicyOptions) -> Hadar:
    """Return the policy, as its entry point asks for it."""
    return Hadar(limits=options.limits)
