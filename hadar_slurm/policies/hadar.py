"""Policy `hadar`, the default: prices from a linear program, long jobs in time, short jobs first.

Like Hadar (IPDPS'24) it is primal-dual: GPU types have prices, and a job takes the type on which
what it gains is worth most after the price. It does not follow the paper's form (that is
`hadar-paper`); what is ours:

* Prices are the duals of the makespan program over all jobs in view (`horizon.py`), exact for the
  horizon, where the paper's rise with use. A job may take any type that does its work at the lowest
  priced cost, the fastest of them that has room. Where GPUs cost nothing, that is its fastest.
* Jobs whose planned time fills the horizon are critical and go first, on the types planned for
  them: whoever of these waits longer makes everybody's end later.
* Then those who have gone without GPUs for more than a day and six times the horizon: nobody
  waits for ever.
* All others go by the shortest remaining service (GPU-seconds on the fastest type), which is best
  for the mean completion time, weighted by Slurm's fair-share factor where it is known.
* Who runs and keeps its type keeps its place; among critical jobs one that runs is not stopped for
  another that is later by less than ten restarts.
* The program is solved again after jobs came or went, at most every half hour, and more often as
  the horizon comes near.

GPUs that are left go to whoever can use them, mixed types included.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hadar_slurm.core.cluster import GpuType
from hadar_slurm.core.job import Job, Phase
from hadar_slurm.core.plan import Plan
from hadar_slurm.core.snapshot import Round, Snapshot
from hadar_slurm.errors import SolverError
from hadar_slurm.policies.board import Board
from hadar_slurm.policies.horizon import Demand, Horizon, find_horizon
from hadar_slurm.policies.lp import SolverLimits

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
# The longest wait: this, and so many times what is left of the horizon.
_LONGEST_WAIT_S, _LONGEST_WAIT_HORIZONS = 86400.0, 6.0


@dataclass(frozen=True, slots=True)
class Hadar:
    """The policy; it keeps the program's last solution as its memory."""

    limits: SolverLimits = field(default_factory=SolverLimits)
    name: str = "hadar"

    def plan(self, snapshot: Snapshot, round_: Round) -> Plan:
        """Return who runs where in `round_`."""
        board = Board(snapshot, round_)
        rates = _RateTable(board)
        horizon, is_new = self._horizon(snapshot, round_, board, rates)
        queue = _Queue(snapshot, board, rates, horizon).sorted()
        late: list[Job] = []
        for job, kinds in queue:
            if not any(board.choose(job, kind) for kind in kinds):
                late.append(job)
        for job in late:
            if not board.has_room:
                break
            any(board.choose(job, kind) for kind in board.by_speed(job))
        board.settle()
        board.fill(job for job, _ in queue)
        figures = {"solved": float(is_new)}
        if horizon:
            figures["horizon_s"] = horizon.ends_s - snapshot.now_s
            figures |= {
                f"price.{kind}": price
                for kind, price in zip(board.kinds, horizon.prices, strict=True)
            }
        return board.plan(figures=figures, memory=horizon)

    def _horizon(
        self, snapshot: Snapshot, round_: Round, board: Board, rates: _RateTable
    ) -> tuple[Horizon | None, bool]:
        """Return the horizon in memory while it will do, else a new one; and whether it is new."""
        known = round_.memory if isinstance(round_.memory, Horizon) else None
        jobs = [job for job in snapshot.plannable if rates.runs(job) and job.steps_left > 0]
        if known and not _is_stale(known, jobs, snapshot.now_s, len(board.kinds)):
            return known, False
        capacity = _capacity(snapshot, board.kinds)
        demands = [
            Demand(
                job.job_id,
                rates.key(job),
                job.spec.num_gpus,
                job.steps_left,
                tuple(
                    rate if capacity[i] >= job.spec.num_gpus else 0.0
                    for i, rate in enumerate(rates.of(job))
                ),
            )
            for job in jobs
        ]
        demands = [demand for demand in demands if max(demand.rates) > 0]
        if not demands:
            return None, False
        try:
            return find_horizon(demands, capacity, snapshot.now_s, self.limits), True
        except SolverError:
            # Without prices every type is free and nobody critical: shortest remaining first.
            return known, False


def _is_stale(known: Horizon, jobs: Sequence[Job], now_s: float, num_kinds: int) -> bool:
    age_s, left_s = now_s - known.made_s, known.ends_s - now_s
    if len(known.prices) != num_kinds or left_s <= 0 or age_s > _DRIFT_SHARE * left_s:
        return True
    if age_s < min(_RENEW_S, _RENEW_SHARE * left_s):
        return False
    return len(jobs) != len(known.jobs) or any(job.job_id not in known.jobs for job in jobs)


def _capacity(snapshot: Snapshot, kinds: Sequence[GpuType]) -> list[int]:
    """Return the GPUs of each type that our jobs may use on nodes that take work."""
    nodes = snapshot.cluster.by_name
    total = dict.fromkeys(kinds, 0)
    for slot, count in snapshot.plannable_capacity.items():
        if nodes[slot.node].is_schedulable:
            total[slot.gpu_type] += count
    return list(total.values())


@dataclass(frozen=True)
class _RateTable:
    """Rates of each kind of job on each type, 0 where it may not run; jobs of a kind share them."""

    board: Board
    _known: dict[object, tuple[float, ...]] = field(default_factory=dict)

    def key(self, job: Job) -> object:
        """Return what two jobs have in common that differ in nothing but their steps."""
        spec = job.spec
        return (id(spec.rates), spec.num_gpus, spec.shapes, job.allowed_nodes, job.bound_type)

    def of(self, job: Job) -> tuple[float, ...]:
        """Return the steps/s of a job's gang on each type of the board."""
        key = self.key(job)
        if key not in self._known:
            board = self.board
            self._known[key] = tuple(
                board.rate(job, kind) if board.may_use(job, kind) else 0.0 for kind in board.kinds
            )
        return self._known[key]

    def runs(self, job: Job) -> bool:
        """Return whether a job could run on any type."""
        return max(self.of(job), default=0.0) > 0


@dataclass(frozen=True)
class _Queue:
    """The order of the jobs, and for each the types it should take, the first the best."""

    snapshot: Snapshot
    board: Board
    rates: _RateTable
    horizon: Horizon | None
    _cheapest: dict[object, tuple[GpuType, ...]] = field(default_factory=dict)

    def sorted(self) -> list[tuple[Job, Sequence[GpuType]]]:
        """Return all jobs of the board: critical, overdue, then the shortest first."""
        ranked = [(self._rank(job), index, job) for index, job in enumerate(self.board.jobs)]
        ranked.sort(key=lambda entry: (entry[0][:2], entry[1]))
        return [(job, rank[2]) for rank, _, job in ranked]

    def _rank(self, job: Job) -> tuple[int, float, Sequence[GpuType]]:
        rates, spec = self.rates.of(job), job.spec
        best = max(rates, default=0.0)
        if best <= 0:
            return 3, 0.0, ()
        left_s = max(1.0, self.horizon.ends_s - self.snapshot.now_s) if self.horizon else 0.0
        planned = self.horizon.planned.get(job.job_id) if self.horizon else None
        if planned:
            planned_s = planned.left_s(job.steps_left)
            if planned_s >= _CRITICAL * left_s:
                kinds = self._types_planned(job, planned.seconds)
                return 0, -planned_s - self._stay_bonus_s(job), kinds
        kinds = self._types_at_lowest_cost(job)
        waited_s = self._waited_s(job)
        if waited_s > _LONGEST_WAIT_S + _LONGEST_WAIT_HORIZONS * left_s:
            return 1, -waited_s, kinds
        service = spec.num_gpus * job.steps_left / best
        if job.fair_share is not None:
            # 0.5 is a user who has used just the share; down to a twentieth of it.
            service /= max(0.05, 2.0 * job.fair_share)
        return 2, service, kinds

    def _waited_s(self, job: Job) -> float:
        """Return how long a job was without GPUs, all in all."""
        age_s = self.snapshot.now_s - job.spec.submitted_s
        return age_s - job.progress.service_gpu_s / job.spec.num_gpus

    def _stay_bonus_s(self, job: Job) -> float:
        is_running = job.phase is Phase.RUNNING
        return _RESTARTS_TO_MOVE * job.spec.restart_cost_s if is_running else 0.0

    def _types_planned(self, job: Job, seconds: Sequence[float]) -> Sequence[GpuType]:
        planned = {kind for kind, time_s in zip(self.board.kinds, seconds, strict=True) if time_s}
        return [kind for kind in self.board.by_speed(job) if kind in planned]

    def _types_at_lowest_cost(self, job: Job) -> Sequence[GpuType]:
        """Return the types on which a step costs least at the horizon's prices, fastest first."""
        key = self.rates.key(job)
        if key not in self._cheapest:
            speeds = dict(zip(self.board.kinds, self.rates.of(job), strict=True))
            prices: Mapping[GpuType, float] = dict(
                zip(self.board.kinds, self.horizon.prices, strict=True) if self.horizon else ()
            )
            best, dearest = max(speeds.values()), max(prices.values(), default=0.0) or 1.0
            costs = {
                kind: prices.get(kind, 0.0) / dearest * best / rate
                for kind, rate in speeds.items()
                if rate > 0
            }
            least = min(costs.values())
            self._cheapest[key] = tuple(
                kind
                for kind in self.board.by_speed(job)
                if costs.get(kind, float("inf")) <= least + _SAME_COST
            )
        return self._cheapest[key]
