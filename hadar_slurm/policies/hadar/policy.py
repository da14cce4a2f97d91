"""Policy `hadar`, the default: primal-dual as Hadar (IPDPS'24), see docs/policies.md.

Jobs that cannot move are inserted into one plan, priced by those that wait (`insertion.py`). Others
go by the shortest service (`ranking.py`), and types, while more jobs are expected (`arrivals.py`),
by what each would lose (`type_sharing.py`), then by the duals of a makespan program
(`makespan_lp.py`). Its critical jobs, if movable or of stated size, go first: a few, later more.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from operator import mul, sub
from typing import TYPE_CHECKING

from hadar_slurm.core.cluster import GpuType, JobId, TypeIndex
from hadar_slurm.core.job import Job, Phase
from hadar_slurm.core.plan import Plan
from hadar_slurm.core.snapshot import Round, Snapshot
from hadar_slurm.errors import SolverError
from hadar_slurm.placement.allocator import Allocator
from hadar_slurm.placement.node_assignment import assign_nodes
from hadar_slurm.policies.hadar import tuning
from hadar_slurm.policies.hadar.arrivals import Arrivals
from hadar_slurm.policies.hadar.insertion import Insertion, ended_by_limits, non_preemptible
from hadar_slurm.policies.hadar.kinds import Kinds
from hadar_slurm.policies.hadar.ranking import BY_WORK, Entry, Ranking
from hadar_slurm.policies.hadar.shares import Leads, Shares
from hadar_slurm.policies.hadar.type_sharing import share_types, worths
from hadar_slurm.policies.policy import DEFAULT_USER_SHARES, PolicyOptions, SolverLimits, open_gpus

if TYPE_CHECKING:  # Loaded with the first job that may move or states its size.
    from hadar_slurm.policies.hadar.makespan_lp import Horizon

_RENEW_S = 1800.0  # After this time the program is solved again if jobs came or went.


@dataclass(frozen=True, slots=True)
class Memory:
    """What the policy remembers: the program's last solution, and when jobs have come."""

    horizon: Horizon | None = None
    arrivals: Arrivals = field(default_factory=Arrivals)
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
        stays = partial(_stays, round_=round_, gpu_types=snapshot.cluster.gpus_by_type)
        allocator = Allocator(snapshot, round_, stays)
        memory = round_.memory if isinstance(round_.memory, Memory) else Memory()
        kinds = Kinds(allocator)
        able = [j for j in snapshot.plannable if j.steps_left > 0 and kinds.of(j).best]
        can_move = not able or any(job.spec.can_checkpoint for job in snapshot.plannable)
        arrivals = memory.arrivals.after(able)
        expects = arrivals.are_expected(snapshot.now_s)
        horizon, is_new, gpus = None, False, open_gpus(snapshot, allocator.gpu_types)
        if can_move or not all(job.is_estimated for job in able):
            horizon, is_new = self._horizon(kinds, able, gpus, memory.horizon)
        kinds.prices = horizon.prices if horizon and not expects else None
        shares = Shares.of(kinds, able, self.user_shares, memory.leads)
        most = sum(gpus) * arrivals.critical_share(snapshot.now_s, can_move=can_move)
        queue = Ranking(kinds, horizon, shares, most_critical=most).queue()
        if can_move:
            patient = _place_with_moves(kinds, queue, shares)
            prices: Sequence[float] = kinds.prices or ()
        else:
            patient, prices = _place_by_insertion(kinds, queue)
        figures = {"solved": float(is_new), "expects": float(expects)}
        figures["ended_by_limits"] = ended_by_limits(kinds)
        if horizon:
            figures["horizon_s"] = horizon.ends_s - snapshot.now_s
        figures |= {f"price.{t}": p for t, p in zip(allocator.gpu_types, prices, strict=False)}
        memory = Memory(horizon, arrivals, shares.after() if shares else None)
        plan = allocator.plan(figures=figures, memory=memory, patient=patient)
        return replace(plan, next_round_s=_next_round_s(allocator, queue)) if can_move else plan

    def _horizon(
        self, kinds: Kinds, able: Sequence[Job], gpus: tuple[int, ...], known: Horizon | None
    ) -> tuple[Horizon | None, bool]:
        """Return the known horizon while it is valid, else a new one, and whether it is new."""
        from hadar_slurm.policies.hadar.makespan_lp import Demand, find_horizon

        allocator, snapshot = kinds.allocator, kinds.allocator.snapshot
        if known and known.gpu_types != allocator.gpu_types:
            known = None
        if known and not _is_stale(known, able, gpus, snapshot.now_s):
            return known, False
        demands, sizes = [], list(zip(allocator.gpu_types, gpus, strict=True))
        for job in able:
            kind, size = kinds.of(job), job.spec.num_gpus
            held = None if job.spec.can_checkpoint else allocator.runs_on(job)
            able_on = (n >= size and held in (None, gpu_type) for gpu_type, n in sizes)
            found = tuple(map(mul, kind.steps_per_s, able_on))
            if any(found):
                demands.append(Demand(job.job_id, (kind, held), size, job.steps_left, found))
        if not demands:
            return None, False
        try:
            horizon = find_horizon(demands, gpus, snapshot.now_s, self.limits)
        except SolverError:
            # Without prices every type is free and no job critical.
            return (known if known and known.ends_s > snapshot.now_s else None), False
        ids = frozenset(job.job_id for job in able)
        return replace(horizon, jobs=ids, gpu_types=allocator.gpu_types, gpus=gpus), True


def _stays(job: Job, round_: Round, gpu_types: Collection[GpuType]) -> bool:
    """Return whether a running job has not earned a stop; the first may earn itself later."""
    spec, had, cost_s = job.spec, job.progress, tuning.EARNED_BY * job.spec.restart_cost_s
    least_s = max(0.0, cost_s - round_.length_s) * (had.restarts + 1)
    own = job.allocation.throughput(spec.throughputs)
    best = max(map(spec.throughput_on, gpu_types), default=0.0)
    saves_s = job.steps_left * (1 / own - 1 / best) if min(own, best) > 0 else 0.0
    earns = not had.restarts and saves_s >= cost_s
    return had.service_gpu_s / spec.num_gpus < least_s and not earns


def _place_with_moves(kinds: Kinds, queue: Sequence[Entry], shares: Shares | None) -> Set[JobId]:
    """Place jobs of which some can move; return those that may wait although they could start."""
    allocator = kinds.allocator
    immovable = {job.job_id for job in allocator.jobs if non_preemptible(allocator, job)}
    chosen = _TypeSelection(kinds, queue, immovable, shares).chosen
    _reserve(allocator, queue, chosen, immovable)
    if any(job.job_id in immovable for job in assign_nodes(allocator)):
        left = immovable - allocator.placed.keys()
        Insertion(kinds, [e.job for e in queue if e.job.job_id in left]).start()
    allocator.fill(entry.job for entry in queue if entry.job.job_id not in immovable)
    return immovable


def _place_by_insertion(kinds: Kinds, queue: Sequence[Entry]) -> tuple[Set[JobId], Sequence[float]]:
    """Place jobs that cannot move; return those that wait, and the prices for the first."""
    jobs = [e.job for e in queue if e.types and e.job.phase is Phase.QUEUED]
    insertion = Insertion(kinds, jobs)
    waits = insertion.start()
    # Those that fit no type mix several.
    kinds.allocator.fill(entry.job for entry in queue if not entry.types)
    return waits, (insertion.prices.get(jobs[0].job_id, ()) if jobs else ())


def _is_stale(known: Horizon, jobs: Sequence[Job], gpus: Sequence[int], now_s: float) -> bool:
    age_s, left_s = now_s - known.made_s, known.ends_s - now_s
    changed = sum(map(abs, map(sub, gpus, known.gpus)))
    is_old = left_s <= 0 or age_s > tuning.RENEW_SHARE * left_s
    is_old |= changed > tuning.RENEW_SHARE * sum(known.gpus)
    return is_old or (age_s >= _RENEW_S and known.jobs != {job.job_id for job in jobs})


def _reserve(
    allocator: Allocator,
    queue: Sequence[Entry],
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


def _next_round_s(allocator: Allocator, queue: Sequence[Entry]) -> float | None:
    """Return when the next round is to begin if a new short job would wait too long for it."""
    round_, now_s = allocator.round, allocator.snapshot.now_s
    passed_s = round_.length_s - round_.left_s
    begins_in_s = max(0.0, tuning.LEAST_ROUND * round_.length_s - passed_s)
    spared_s = round_.left_s - begins_in_s
    if round_.may_move or spared_s <= 0:
        return None
    is_due = any(
        entry.left_s <= tuning.LEAST_ROUND * spared_s
        for entry in queue
        if entry.types
        and entry.job.job_id not in allocator.placed
        and entry.job.spec.submitted_s >= now_s - passed_s
    )
    return now_s + begins_in_s if is_due else None


class _TypeSelection:
    """Chooses a GPU type for each job of the queue, in two passes."""

    def __init__(
        self, kinds: Kinds, queue: Sequence[Entry], immovable: Set[JobId], shares: Shares | None
    ) -> None:
        self._kinds, self._queue, self._immovable = kinds, queue, immovable
        self._shares, self._allocator = shares, (allocator := kinds.allocator)
        self._room = [allocator.room(gpu_type) for gpu_type in allocator.gpu_types]
        # The type of each entry.
        self.chosen: list[TypeIndex | None] = [None] * len(queue)
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

        A non-preemptible job takes the type on which it is inserted. Without prices jobs ranked by
        work are left for `_share_types`, their number of GPUs is kept, and the forecast ignores
        them, since they may migrate.
        """
        queue, immovable, gpu_types = self._queue, self._immovable, self._allocator.gpu_types
        left = sum(self._room)
        forecast = Insertion(self._kinds, [e.job for e in queue] if immovable else [])
        later = []
        for position, (rank, _, _, job, types, _) in enumerate(queue):
            if left <= 0:
                break
            size = job.spec.num_gpus
            if job.job_id in immovable:
                first = forecast.reserve(job)
                types = () if first is None else (gpu_types.index(first),)
            elif not self._kinds.prices and rank == BY_WORK and types and size <= left:
                later.append(position)
                left -= size
                continue
            if (index := self._take(position, types)) is not None:
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
                    held=(gpu_types.index(held), entry.job.spec.restart_cost_s) if held else None,
                    is_first=not self._shares or self._shares.is_behind(entry.job),
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
