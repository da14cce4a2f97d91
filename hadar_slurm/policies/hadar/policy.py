"""Policy `hadar`, the default: primal-dual as Hadar (IPDPS'24), see docs/policies.md.

Jobs that cannot move are inserted into one plan, priced by the jobs that wait (`insertion.py`). For
the others the rule for order and types (`ways.py`) is used that does best when played forward
(`look_ahead.py`), at the duals of a makespan program (`makespan_lp.py`).
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import count
from typing import NamedTuple

from hadar_slurm.core.cluster import JobId, TypeIndex
from hadar_slurm.core.job import Job, Phase
from hadar_slurm.core.plan import Plan
from hadar_slurm.core.snapshot import Round, Snapshot
from hadar_slurm.errors import SolverError
from hadar_slurm.placement.allocator import Allocator
from hadar_slurm.placement.node_assignment import assign_nodes
from hadar_slurm.policies.hadar.history import History
from hadar_slurm.policies.hadar.insertion import Insertion, non_preemptible
from hadar_slurm.policies.hadar.kinds import JobKind, Kinds
from hadar_slurm.policies.hadar.look_ahead import View, WayInUse, choose, is_due
from hadar_slurm.policies.hadar.makespan_lp import Demand, Horizon, find_horizon
from hadar_slurm.policies.hadar.shares import IMMOVABLE, Leads, Shares
from hadar_slurm.policies.hadar.short_waits import take_back_slow_starts
from hadar_slurm.policies.hadar.type_sharing import share_types, worths
from hadar_slurm.policies.hadar.ways import BY_WORK, NOWHERE, OVERDUE, AsPlanned, Typing, Way
from hadar_slurm.policies.policy import DEFAULT_USER_SHARES, PolicyOptions, SolverLimits, open_gpus

# The program is solved again after this time if jobs came or went, and after this share of the
# horizon even if none did, since plan and progress drift apart.
_RENEW_S, _RENEW_SHARE = 1800.0, 0.02
# A round ends early, after this share of its length, where that spares a job without GPUs this many
# times its time left.
_LEAST_ROUND, _TIMES_TOO_LONG = 1 / 3, 4.0
# The longest total time without GPUs before a job goes first: this, plus this many times its time
# alone on its fastest type.
_LONGEST_WAIT_S, _LONGEST_WAIT_TIMES = 172800.0, 20.0


@dataclass(frozen=True, slots=True)
class Memory:
    """What the policy remembers: the program's last solution, the last choice, and all jobs."""

    horizon: Horizon | None = None
    choice: WayInUse | None = None
    history: History | None = None
    leads: Leads | None = None


@dataclass(frozen=True, slots=True)
class Hadar:
    """The policy."""

    limits: SolverLimits = field(default_factory=SolverLimits)
    # How strictly users share, 0 (not at all) to 1 (shares.py).
    user_shares: float = DEFAULT_USER_SHARES
    name: str = "hadar"

    def plan(self, snapshot: Snapshot, round_: Round) -> Plan:
        """Return which jobs run in `round_`, and on which GPUs."""
        allocator = Allocator(snapshot, round_)
        memory = round_.memory if isinstance(round_.memory, Memory) else Memory()
        kinds = Kinds(allocator)
        able = [j for j in snapshot.plannable if j.steps_left > 0 and kinds.of(j).best]
        if able and not any(job.spec.can_checkpoint for job in snapshot.plannable):
            return self._inserted(kinds, able, memory)
        horizon, is_new = self._horizon(kinds, able, memory.horizon)
        kinds.prices = horizon.prices if horizon else None
        known, now_s = memory.history, snapshot.now_s
        history = known.after(able, now_s) if known else History.begin(able, now_s)
        choice, num_ways = self._choice(kinds, able, horizon, memory.choice, history)
        way = choice.way if choice else Way()
        shares = Shares.of(kinds, able, self.user_shares, memory.leads)
        queue = _Ranking(kinds, horizon, way, shares).queue()
        immovable = {job.job_id for job in allocator.jobs if non_preemptible(allocator, job)}
        selection = _TypeSelection(kinds, queue, immovable, way)
        selection.run()
        _reserve(allocator, queue, selection.chosen, immovable)
        if any(job.job_id in immovable for job in assign_nodes(allocator)):
            left = immovable - allocator.placed.keys()
            Insertion(kinds, [e.job for e in queue if e.job.job_id in left]).start()
        movable = [entry.job for entry in queue if entry.job.job_id not in immovable]
        allocator.fill(movable)
        late = take_back_slow_starts(allocator, movable)
        if late:
            allocator.fill(job for job in movable if job.job_id not in late)
        figures = {"solved": float(is_new)}
        if horizon:
            figures["horizon_s"] = horizon.ends_s - snapshot.now_s
            for gpu_type, price in zip(allocator.gpu_types, horizon.prices, strict=True):
                figures[f"price.{gpu_type}"] = price
        figures["ways"] = float(num_ways)
        memory = Memory(horizon, choice, history, shares.after() if shares else None)
        plan = allocator.plan(figures=figures, memory=memory, patient=immovable | late)
        return replace(plan, next_round_s=_next_round_s(allocator, queue))

    def _inserted(self, kinds: Kinds, able: Sequence[Job], memory: Memory) -> Plan:
        """Return the plan where no job can move: shortest service first (insertion.py)."""
        shares = Shares.of(kinds, able, self.user_shares, memory.leads)
        queue = _Ranking(kinds, horizon=None, way=Way(), shares=shares).queue()
        jobs = [e.job for e in queue if e.types and e.job.phase is Phase.QUEUED]
        insertion = Insertion(kinds, jobs)
        waits, first = insertion.start(), insertion.prices.get(jobs[0].job_id, ()) if jobs else ()
        # Those that fit no type mix several.
        kinds.allocator.fill(entry.job for entry in queue if not entry.types)
        memory = replace(memory, leads=shares.after() if shares else None)
        figures = {f"price.{k}": p for k, p in zip(kinds.allocator.gpu_types, first, strict=False)}
        return kinds.allocator.plan(figures=figures, memory=memory, patient=waits)

    def _choice(
        self,
        kinds: Kinds,
        jobs: Sequence[Job],
        horizon: Horizon | None,
        known: WayInUse | None,
        history: History,
    ) -> tuple[WayInUse | None, int]:
        """Return the way in use, chosen again where that is due, and the number of ways played."""
        now_s, round_s = kinds.allocator.snapshot.now_s, kinds.allocator.round.length_s
        expects = bool(history.expected())
        if not jobs or (known and not is_due(known, jobs, now_s, round_s, expects=expects)):
            return known, 0
        view = View.of(kinds, jobs, history, horizon)
        ids = frozenset(job.job_id for job in jobs)
        incumbent, is_news = (known.way, not ids <= known.jobs) if known else (None, True)
        way, span_s, num_ways = choose(view, incumbent, round_s, is_news=is_news)
        return WayInUse(way, now_s, ids, span_s, expects), num_ways

    def _horizon(
        self, kinds: Kinds, able: Sequence[Job], known: Horizon | None
    ) -> tuple[Horizon | None, bool]:
        """Return the known horizon while it is valid, else a new one, and whether it is new."""
        allocator, snapshot = kinds.allocator, kinds.allocator.snapshot
        if known and known.gpu_types != allocator.gpu_types:
            known = None
        if known and not _is_stale(known, able, snapshot.now_s):
            return known, False
        capacity = open_gpus(snapshot, allocator.gpu_types)
        demands = []
        for job in able:
            kind, size = kinds.of(job), job.spec.num_gpus
            pairs = zip(kind.steps_per_s, capacity, strict=True)
            found = tuple(steps_per_s if count >= size else 0.0 for steps_per_s, count in pairs)
            if any(found):
                demands.append(Demand(job.job_id, kind, size, job.steps_left, found))
        if not demands:
            return None, False
        try:
            horizon = find_horizon(demands, capacity, snapshot.now_s, self.limits)
        except SolverError:
            # Without prices every type is free and no job critical.
            return (known if known and known.ends_s > snapshot.now_s else None), False
        ids = frozenset(job.job_id for job in able)
        return replace(horizon, jobs=ids, gpu_types=allocator.gpu_types), True


def _is_stale(known: Horizon, jobs: Sequence[Job], now_s: float) -> bool:
    age_s, left_s = now_s - known.made_s, known.ends_s - now_s
    is_old = left_s <= 0 or age_s > _RENEW_SHARE * left_s
    return is_old or (age_s >= _RENEW_S and known.jobs != {job.job_id for job in jobs})


def _reserve(
    allocator: Allocator,
    queue: Sequence[_Entry],
    chosen: Sequence[TypeIndex | None],
    immovable: Set[JobId],
) -> None:
    """Reserve the chosen types, then any type with room for the preemptible jobs left over."""
    late = [
        entry.job
        for entry, index in zip(queue, chosen, strict=True)
        if index is None or not allocator.choose(entry.job, allocator.gpu_types[index])
    ]
    for job in late:
        if not allocator.has_room:
            break
        if job.job_id not in immovable:
            types = filter(None, (allocator.runs_on(job), *allocator.by_speed(job)))
            any(allocator.choose(job, gpu_type) for gpu_type in types)


class _Entry(NamedTuple):
    """A job in the queue; entries sort by rank, then by key, the smallest first."""

    # Critical, overdue, by remaining service, or unable to run anywhere.
    rank: int
    key: float
    # The index in the allocator's jobs.
    tie_break: int
    job: Job
    # The GPU types it may take, the best first.
    types: tuple[TypeIndex, ...]
    left_s: float


@dataclass(frozen=True, slots=True)
class _Ranking:
    """Ranks jobs, and finds for each the types it should take, the first the best."""

    kinds: Kinds
    horizon: Horizon | None
    way: Way
    shares: Shares | None = None

    def queue(self) -> list[_Entry]:
        """Return the entries of the jobs to decide on, in order, the shares of users heeded."""
        found = sorted(map(self.entry, count(), self.kinds.allocator.jobs))
        if not self.shares:
            return found
        jobs = [None if entry.rank == OVERDUE else entry.job for entry in found]
        return [found[position] for position in self.shares.order(jobs)]

    def entry(self, tie_break: int, job: Job) -> _Entry:
        """Return a job's entry: overdue, critical or promoted, or by remaining work."""
        kind, spec, way = self.kinds.of(job), job.spec, self.way
        if not kind.best:
            return _Entry(NOWHERE, 0.0, tie_break, job, (), 0.0)
        allocator, shares = self.kinds.allocator, self.shares
        left_s = shares.left_s(job, kind.best) if shares else job.steps_left / kind.best
        counts = not (shares and shares.goes_by_limit(job))
        stays_s = spec.restart_cost_s if job.phase is Phase.RUNNING else 0.0
        types = self.kinds.types(kind, way.typing)
        had_s = job.progress.service_gpu_s / spec.num_gpus
        waited_s = allocator.snapshot.now_s - spec.submitted_s - had_s
        if waited_s > _LONGEST_WAIT_S + _LONGEST_WAIT_TIMES * spec.total_steps / kind.best:
            types = self._own_first(job, kind, types)
            return _Entry(OVERDUE, -waited_s, tie_break, job, types, left_s)
        planned = self.horizon.planned.get(job.job_id) if self.horizon and counts else None
        if self.horizon and planned and way.critical_first:
            # The planned types may have become unusable.
            its = planned.types(kind.by_speed) or types
            critical = way.rank_if_critical(
                left_s,
                AsPlanned(planned.left_s(job.steps_left), *planned.speeds(its, kind.speeds)),
                max(1.0, self.horizon.ends_s - allocator.snapshot.now_s),
                allocator.round.length_s,
                is_running=job.phase is Phase.RUNNING,
                is_on_first=allocator.runs_on(job) == allocator.gpu_types[its[0]],
            )
            if critical:
                return _Entry(*critical, tie_break, job, self._own_first(job, kind, its), left_s)
        is_promoted = counts and job.job_id in way.promoted
        weight = way.weight(job)
        if shares and spec.user and not spec.can_checkpoint:
            weight *= IMMOVABLE
        rank, key = way.rank(left_s, weight, stays_s, is_promoted=is_promoted)
        return _Entry(rank, key, tie_break, job, self._own_first(job, kind, types), left_s)

    def _own_first(
        self, job: Job, kind: JobKind, types: tuple[TypeIndex, ...]
    ) -> tuple[TypeIndex, ...]:
        """Return the types, a running job's own first unless moving saves more than one restart.

        The saving is in the job's time or in priced time.
        """
        allocator, speeds = self.kinds.allocator, kind.steps_per_s
        held = allocator.runs_on(job)
        own = types[0] if held is None else allocator.gpu_types.index(held)
        if own == types[0] or not speeds[own]:
            return types
        costs = kind.costs(self.kinds.prices)
        longer_s = job.steps_left * (1 / speeds[own] - 1 / speeds[types[0]])
        dearer_s = job.steps_left / kind.best * (costs[own] - costs[types[0]])
        is_moved = max(longer_s, dearer_s) > job.spec.restart_cost_s
        return types if is_moved else (own, *(i for i in types if i != own))


def _next_round_s(allocator: Allocator, queue: Sequence[_Entry]) -> float | None:
    """Return when the next round is to begin if a new short job would wait too long for it."""
    round_, now_s = allocator.round, allocator.snapshot.now_s
    passed_s = round_.length_s - round_.left_s
    begins_in_s = max(0.0, _LEAST_ROUND * round_.length_s - passed_s)
    spared_s = round_.left_s - begins_in_s
    if round_.may_move or spared_s <= 0:
        return None
    is_due = any(
        _TIMES_TOO_LONG * entry.left_s <= spared_s
        for entry in queue
        if entry.types
        and entry.job.job_id not in allocator.placed
        and entry.job.spec.submitted_s >= now_s - passed_s
    )
    return now_s + begins_in_s if is_due else None


class _TypeSelection:
    """Chooses a GPU type for each job of the queue, in two passes."""

    def __init__(
        self, kinds: Kinds, queue: Sequence[_Entry], immovable: Set[JobId], way: Way
    ) -> None:
        self._kinds, self._queue, self._immovable, self._way = kinds, queue, immovable, way
        self._allocator = allocator = kinds.allocator
        self._room = [allocator.room(gpu_type) for gpu_type in allocator.gpu_types]
        # The type of each entry.
        self.chosen: list[TypeIndex | None] = [None] * len(queue)

    def run(self) -> None:
        """Make the passes."""
        self._share_types(self._in_order())

    def _take(self, position: int, types: Sequence[TypeIndex]) -> TypeIndex | None:
        """Give an entry the first of `types` with room."""
        size = self._queue[position].job.spec.num_gpus
        found = next((index for index in types if self._room[index] >= size), None)
        if found is not None:
            self._room[found] -= size
            self.chosen[position] = found
        return found

    def _in_order(self) -> list[int]:
        """Serve the queue in order; return the positions left for `_share_types`.

        A non-preemptible job takes the type on which it is inserted. Where types go by regret, jobs
        ranked by remaining work are left for `_share_types`, and only their number of GPUs is
        reserved; the forecast ignores them, since they may migrate.
        """
        queue, immovable, gpu_types = self._queue, self._immovable, self._allocator.gpu_types
        left, by_regret = sum(self._room), self._way.typing is Typing.REGRET
        forecast = Insertion(self._kinds, [e.job for e in queue] if immovable else [])
        later = []
        for position, (rank, _, _, job, types, _) in enumerate(queue):
            if left <= 0:
                break
            size = job.spec.num_gpus
            if job.job_id in immovable:
                first = forecast.reserve(job)
                types = () if first is None else (gpu_types.index(first),)
            elif by_regret and rank == BY_WORK and types and size <= left:
                later.append(position)
                left -= size
                continue
            index = self._take(position, types)
            if index is not None:
                left -= size
                if immovable and job.job_id not in immovable:
                    forecast.give(job, index)
        return later

    def _share_types(self, positions: Sequence[int]) -> None:
        """Give entries one of their types, by regret (type_sharing.py)."""
        gpu_types, found = self._allocator.gpu_types, []
        for entry in (self._queue[position] for position in positions):
            kind, held = self._kinds.of(entry.job), self._allocator.runs_on(entry.job)
            found.append(
                worths(
                    kind.speeds,
                    entry.types,
                    kind.num_gpus,
                    entry.left_s,
                    self._way.urgency,
                    held=(gpu_types.index(held), entry.job.spec.restart_cost_s) if held else None,
                )
            )
        share_types(
            found,
            lambda at, gpu_type: self._take(positions[at], [gpu_type]) is not None,
            lambda gpu_type: not self._room[gpu_type],
        )


def make(options: PolicyOptions) -> Hadar:
    """Return the policy (entry point)."""
    return Hadar(limits=options.limits, user_shares=options.user_shares)
