"""Policy `hadar-paper`: Hadar's round decision in its primal-dual form, selection by ILP.

Source: Hadar, IPDPS'24 (doi 10.1109/ipdps57955.2024.00066) and arXiv 2503.10918. Every job has
candidate gangs; a candidate's payoff is mu = U_j(f_j - a_j) - priced GPUs, with the restart inside
f_j; a job runs iff its best payoff is positive. Differences from the paper:

* The dual subroutine is an ILP (PuLP) over all jobs at once, at most one candidate per job; the
  paper admits jobs one after the other. Prices rise with use inside the ILP (prices.py).
* Two stages: the ILP chooses shape and GPU types, packing chooses nodes. Constraints on pieces
  (how many nodes can still give c GPUs of a type) make most choices packable.
* Jobs rejected by price, or whose chosen gang found no nodes, fill what is left (work
  conservation). Jobs stay in place unless repacking all is worth more, restarts included.
* Of a long queue the ILP sees the jobs worth most per GPU, up to a few times the GPUs, since the
  solver's time grows faster than the queue. Among many candidates its gap is 1 % at least.
* Without a solution in time, candidates are taken greedily at rising prices, the paper's own
  sequential form. The journal counts it as `solver_fallback`.

Each round is planned from scratch and jobs may be preempted, so the competitive ratio 2 alpha of
the paper's non-preemptive model is not claimed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import accumulate, groupby

import pulp

from hadar_slurm.core.cluster import GpuType, JobId, Slot
from hadar_slurm.core.gang import Allocation
from hadar_slurm.core.job import Job, Phase
from hadar_slurm.core.plan import Plan, WaitReason
from hadar_slurm.core.snapshot import Round, Snapshot
from hadar_slurm.errors import SolverError
from hadar_slurm.placement.eligibility import Eligibility
from hadar_slurm.policies.hadar_paper.candidates import Candidate, CandidateSource
from hadar_slurm.policies.hadar_paper.packing import Packing, pack
from hadar_slurm.policies.hadar_paper.prices import ExponentialPrice, exponential_prices
from hadar_slurm.policies.hadar_paper.utility import UTILITIES, Appraisal
from hadar_slurm.policies.policy import PolicyOptions, SolverLimits
from hadar_slurm.policies.solver import solve

# Price steps per GPU type in the ILP; more did not change the plans at the sizes tried.
_PRICE_STEPS = 16
# Breaks ties between equal candidates by order: a share of their value below any real difference.
_TIE = 1e-7
# HiGHS treats objectives closer than 1e-6 (its absolute gap) as equal, and beside a job that is
# almost done all others are worth that little.
_SCALE = 1e4

# Among 4,400 candidates HiGHS needs 0.3 s for a gap of 1 % and 1.1 s for one of 0.1 %.
_MANY = 1_000
_GAP_OF_MANY = 0.01
# Gangs in the ILP, in multiples of the GPUs that can be taken.
_CONTENDERS = 3

Candidates = Mapping[JobId, Sequence[Candidate]]
Prices = Mapping[GpuType, ExponentialPrice]


@dataclass(frozen=True, slots=True)
class HadarPaper:
    """The policy; `utility` is a name in `utility.UTILITIES`."""

    utility: str = "throughput"
    limits: SolverLimits = field(default_factory=SolverLimits)
    name: str = "hadar-paper"

    def plan(self, snapshot: Snapshot, round_: Round) -> Plan:
        """Return which jobs run in `round_`, and on which GPUs."""
        reach = Eligibility(snapshot)
        free = reach.capacity()
        appraisal = Appraisal.of(snapshot, UTILITIES[self.utility])
        source = CandidateSource(reach, appraisal, free)
        stay = (
            job
            for job in snapshot.plannable
            if job.is_pinned_in_place or (job.phase is Phase.RUNNING and not round_.may_move)
        )
        pinned = pack(reach, free, (c for job in stay for c in source.in_place(job)))
        movable = [job for job in snapshot.plannable if job.job_id not in pinned.placed]
        units = _units_by_type(pinned.free)
        prices = exponential_prices(movable, appraisal, units)
        rest = CandidateSource(reach, appraisal, pinned.free)
        open_ = {job.job_id: rest.of(job) for job in movable}
        chosen, figures = self._select(open_, prices, pinned.free)
        packing = _best_packing(reach, pinned, chosen, open_)
        for job_id in _by_worth(open_):
            if job_id not in packing.placed:
                next(filter(packing.place, open_[job_id]), None)
        left = _units_by_type(packing.free)
        figures |= {f"price.{k}": price.at(units[k] - left[k]) for k, price in prices.items()}
        figures["value"] = packing.value
        selected = {candidate.job.job_id for candidate in chosen}
        waiting = {
            job.job_id: _wait_reason(snapshot, appraisal, open_, selected, job)
            for job in snapshot.jobs
            if not job.phase.is_final and job.job_id not in packing.placed
        }
        gangs = {k: Allocation.rigid(gang) for k, (_, gang) in packing.placed.items()}
        return Plan.of(gangs, waiting, figures)

    def _select(
        self, candidates: Candidates, prices: Prices, free: Mapping[Slot, int]
    ) -> tuple[list[Candidate], dict[str, float]]:
        """Return at most one candidate per job, by ILP or else greedily, and its figures."""
        if not any(candidates.values()):
            return [], {"candidates": 0.0}
        contenders = _contenders(candidates, sum(free.values()))
        figures = {"candidates": float(sum(len(listed) for listed in contenders.values()))}
        try:
            chosen, is_optimal = _select_by_ilp(contenders, prices, free, self.limits)
        except SolverError:
            return _select_greedily(contenders, prices, free), figures | {"solver_fallback": 1.0}
        return chosen, figures | {"solver_fallback": 0.0, "solver_optimal": float(is_optimal)}


def _units_by_type(free: Mapping[Slot, int]) -> Counter[GpuType]:
    units: Counter[GpuType] = Counter()
    for slot, count in free.items():
        units[slot.gpu_type] += count
    return units


def _by_worth(candidates: Candidates) -> list[JobId]:
    """Return the jobs that have candidates, the most valuable per GPU first."""
    best = {job_id: listed[0] for job_id, listed in candidates.items() if listed}
    return sorted(best, key=lambda job_id: -best[job_id].value / best[job_id].job.spec.num_gpus)


def _contenders(candidates: Candidates, num_gpus: int) -> dict[JobId, Sequence[Candidate]]:
    """Return the candidates of the jobs worth most per GPU, enough of them for `num_gpus`."""
    order = _by_worth(candidates)
    sizes = (candidates[job_id][0].job.spec.num_gpus for job_id in order)
    ahead = zip(order, accumulate(sizes, initial=0), strict=False)
    chosen = {job_id for job_id, gpus in ahead if gpus < _CONTENDERS * num_gpus}
    return {job_id: candidates[job_id] for job_id in candidates if job_id in chosen}


def _select_by_ilp(
    candidates: Candidates, prices: Prices, free: Mapping[Slot, int], limits: SolverLimits
) -> tuple[list[Candidate], bool]:
    """Maximise utility minus priced GPUs; return the choice and whether it is optimal.

    max sum_c value_c x_c - sum_{r,u} k_r(u) y_{r,u}
    s.t. sum_{c of j} x_c <= 1;  sum_c usage_{c,r} x_c <= sum_u y_{r,u};  0 <= y_{r,u} <= units_u;
         pieces of c GPUs of type r <= pieces the nodes can give, for every piece size c.

    As prices are above 0, only used GPUs are paid.
    """
    problem = pulp.LpProblem("hadar_round", pulp.LpMaximize)
    flat = [c for listed in candidates.values() for c in listed]
    taken = [(problem.add_variable(f"x{i}", cat=pulp.LpBinary), c) for i, c in enumerate(flat)]
    gain = [(v, _SCALE * c.value * (1 - _TIE * i / len(flat))) for i, (v, c) in enumerate(taken)]
    cost: list[tuple[pulp.LpVariable, float]] = []
    balances = []
    for gpu_type, price in sorted(prices.items()):
        paid = []
        for index, segment in enumerate(price.segments(_PRICE_STEPS)):
            gpus = problem.add_variable(f"y_{len(cost)}_{index}", 0, segment.gpus)
            cost.append((gpus, -_SCALE * segment.price))
            paid.append((gpus, -1))
        used = [(v, c.usage[gpu_type]) for v, c in taken if gpu_type in c.usage]
        balances.append(pulp.LpAffineExpression([*used, *paid]) <= 0)
    problem += pulp.LpAffineExpression([*gain, *cost])
    for _, of_job in groupby(taken, key=lambda pair: pair[1].job.job_id):
        problem += pulp.lpSum([variable for variable, _ in of_job]) <= 1
    for constraint in balances:
        problem += constraint
    for pieces, most in _piece_limits(taken, free):
        problem += pulp.LpAffineExpression(pieces) <= most
    gap = max(limits.gap, _GAP_OF_MANY) if len(flat) > _MANY else limits.gap
    is_optimal = solve(problem, replace(limits, gap=gap))
    return [c for v, c in taken if (v.value() or 0.0) > 0.5], is_optimal


def _piece_limits(
    taken: Sequence[tuple[pulp.LpVariable, Candidate]], free: Mapping[Slot, int]
) -> Iterator[tuple[list[tuple[pulp.LpVariable, int]], int]]:
    """Yield, per (type, piece size), the candidates' use and the number of such pieces.

    A piece of s GPUs holds floor(s / c) pieces of c, and a node with n free GPUs gives
    floor(n / c): necessary for any packing, and for powers of two on empty nodes sufficient.
    """
    sizes: defaultdict[GpuType, set[int]] = defaultdict(set)
    for gpu_type, size in (chunk for _, candidate in taken for chunk in candidate.chunks):
        sizes[gpu_type].add(size)
    for gpu_type, size in ((k, size) for k, wanted in sizes.items() for size in wanted):
        used = [
            (v, sum(n * (piece // size) for (k, piece), n in c.chunks.items() if k == gpu_type))
            for v, c in taken
        ]
        given = sum(n // size for slot, n in free.items() if slot.gpu_type == gpu_type)
        yield [(variable, count) for variable, count in used if count], given


def _select_greedily(
    candidates: Candidates, prices: Prices, free: Mapping[Slot, int]
) -> list[Candidate]:
    """Admit jobs one after the other at the current price, as the paper does."""
    units, left = _units_by_type(free), _units_by_type(free)
    chosen = []

    def payoff(candidate: Candidate) -> float:
        usage = candidate.usage.items()
        return candidate.value - sum(
            n * prices[k].at(units[k] - left[k]) for k, n in usage if k in prices
        )

    for job_id in _by_worth(candidates):
        fitting = [c for c in candidates[job_id] if all(left[k] >= n for k, n in c.usage.items())]
        best = max(fitting, key=payoff, default=None)
        if best is not None and payoff(best) > 0:
            chosen.append(best)
            left.subtract(best.usage)
    return chosen


def _best_packing(
    reach: Eligibility, pinned: Packing, chosen: Sequence[Candidate], candidates: Candidates
) -> Packing:
    """Pack around the jobs that stay, or repack all where that is worth more."""
    moved = []
    for old in chosen:
        others = candidates[old.job.job_id] if old.present is not None else ()
        alike = (c for c in others if c.present is None and c.types == old.types)
        moved.append(next(alike, old))
    packings = (pack(reach, pinned.free, choice) for choice in (chosen, moved))
    best = max(packings, key=lambda packing: packing.value)
    best.placed.update(pinned.placed)
    return best


def _wait_reason(
    snapshot: Snapshot, appraisal: Appraisal, candidates: Candidates, selected: Set[JobId], job: Job
) -> WaitReason:
    if not job.phase.is_plannable:
        return WaitReason.STOPPING
    if job.spec.throughputs.best(snapshot.cluster.gpus_by_type, job.spec.num_gpus) <= 0:
        return WaitReason.NO_THROUGHPUT
    if any(candidate.present is None for candidate in candidates[job.job_id]):
        return WaitReason.INSUFFICIENT if job.job_id in selected else WaitReason.OUTBID
    # Whether the job could start if nothing else ran and every node took work.
    empty = replace(snapshot, cluster=snapshot.cluster.all_open(), jobs=(), occupied=())
    source = CandidateSource(Eligibility(empty), appraisal, empty.cluster.capacity)
    fits = any(candidate.present is None for candidate in source.of(job))
    return WaitReason.INSUFFICIENT if fits else WaitReason.INFEASIBLE


def make(options: PolicyOptions) -> HadarPaper:
    """Return the policy (entry point); a word for it is its utility, as in `hadar-paper:jct`."""
    (utility,) = options.words or ("throughput",)
    name = ":".join(("hadar-paper", *UTILITIES.keys() & options.words))
    return HadarPaper(utility=utility, limits=options.limits, name=name)
