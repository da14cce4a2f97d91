"""Lower bounds on the TTD and on the mean JCT of a workload, for any schedule.

Notation: job j has the gang size g_j, arrives at a_j and takes d_jr seconds alone on GPU type r
(its steps divided by its throughput there); type r has c_r GPUs. A schedule trains job j for x_jr
seconds on type r. Every bound also holds for gangs that mix types: a mixed gang is as fast as its
slowest type, hence no faster than the mean of its types, weighted by their GPUs, which the programs
below assume. Restart costs, rounds, placement and failures only make a schedule slower.

**TTD.** The linear program: min T such that every job is done (sum_r x_jr / d_jr >= 1), every type
has the time (sum_j g_j x_jr <= c_r T) and no job trains longer than T (sum_r x_jr <= T). Without
the last rows the program also bounds schedules that fork jobs onto several gangs. With arrivals,
the jobs that arrive at or after a need their own T after a; the bound is the largest a + T over all
arrivals a, less the first arrival.

**Mean JCT.** Prices p_r >= 0 of a GPU-second with sum_r c_r p_r = 1 make the cluster a single
machine: a second of it is worth at most 1, and job j cannot be done for less than b_j = min_r p_r
g_j d_jr. So a schedule of the cluster is a preemptive schedule of jobs of size b_j on one machine
of speed 1, for which shortest remaining time first has the least mean completion time (Schrage
1968). With equal prices p_r = 1 / sum c this is the *squashed area* bound. It holds for any prices;
cutting planes find those that maximise it.

Without forking there is a better bound. Let M_j be the mean time at which job j makes its progress.
It cannot progress faster than 1 / m_j, m_j = min_r d_jr, so it ends at M_j + m_j / 2 or later; and
on the single machine the sum of all M_j is least when the available job of the smallest size is
served first, preemptively (Goemans 1997; for gangs without arrivals it is the hybrid bound of Turek
and others 1994). So mean JCT >= mean(M_j - a_j) + mean(m_j) / 2; trivially also mean JCT >=
mean(m_j).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from operator import add

import numpy as np
from numpy.typing import ArrayLike

from hadar_slurm.core.cluster import Cluster, JobId
from hadar_slurm.core.job import JobSpec
from hadar_slurm.lab.policies.a_srpt import Machine
from hadar_slurm.policies.policy import SolverLimits
from hadar_slurm.policies.solver import Floats, LinearProgram, Method, solve_lp

# Relative gap at which no further linear program is solved.
_CLOSE = 1e-5
_LIMITS = SolverLimits(time_limit_s=300.0)
# Above this number of jobs the interior point method is faster.
_MANY_JOBS = 1000
# Cutting planes for the best prices: enough for a gap of about 1e-5.
_MAX_CUTS = 40
_CUT_GAP = 1e-4


@dataclass(frozen=True, slots=True)
class Bounds:
    """Lower bounds in seconds; infinite where a job runs on no GPU type of the cluster."""

    # For one gang per job at a time.
    ttd_gang_s: float
    # For any number of copies per job.
    ttd_forking_s: float
    # The squashed area, for every schedule.
    mean_jct_s: float
    # The highest bound, for one gang per job at a time.
    mean_jct_gang_s: float


def bounds(specs: Sequence[JobSpec], cluster: Cluster, *, counts_spread: bool = False) -> Bounds:
    """Return all bounds of a workload.

    With `counts_spread` a gang over several nodes has a measured throughput of its own, which in
    some published tables is *above* that within a node; the bound then uses the higher one. Without
    it gangs have the throughput within a node, as in Gavel's rules.
    """
    work = _Work.of(specs, cluster, counts_spread)
    if not (work.arrival_s.size and work.is_possible):
        return Bounds(*[math.inf if work.arrival_s.size else 0.0] * 4)
    squashed_s, gang_s = _mean_jcts_s(work)
    return Bounds(_ttd_s(work, is_gang=True), _ttd_s(work, is_gang=False), squashed_s, gang_s)


def forking_bound_s(specs: Sequence[JobSpec], cluster: Cluster) -> float:
    """Return a lower bound on the TTD in seconds, for any number of copies per job."""
    return _ttd_s(_Work.of(specs, cluster), is_gang=False)


@dataclass(frozen=True, slots=True)
class _Work:
    """A workload as arrays, jobs in order of arrival."""

    # (jobs,)
    arrival_s: Floats
    # (jobs, types) d_jr, inf where the job does not run.
    alone_s: Floats
    # (jobs, types) g_j d_jr / c_r: seconds of all GPUs of the type.
    share: Floats
    # (types,) c_r.
    gpus: Floats

    @classmethod
    def of(cls, specs: Sequence[JobSpec], cluster: Cluster, counts_spread: bool = False) -> _Work:
        types = cluster.gpus_by_type
        ordered = sorted(specs, key=lambda spec: spec.submitted_s)
        times = [[_alone_s(spec, name, counts_spread) for name in types] for spec in ordered]
        alone_s = np.array(times).reshape(len(ordered), len(types))
        gangs = np.array([spec.num_gpus for spec in ordered], dtype=float)
        gpus = np.array(list(types.values()), dtype=float)
        arrival_s = np.array([spec.submitted_s for spec in ordered], dtype=float)
        return cls(arrival_s, alone_s, gangs[:, None] * alone_s / gpus, gpus)

    @property
    def is_possible(self) -> bool:
        """Whether every job runs somewhere."""
        return bool(np.isfinite(self.alone_s).any(axis=1).all())


def _alone_s(spec: JobSpec, gpu_type: str, counts_spread: bool) -> float:
    throughput = spec.throughputs.on(gpu_type, spec.num_gpus)
    if counts_spread and spec.num_gpus > 1:
        throughput = max(throughput, spec.throughputs.on(gpu_type, spec.num_gpus, is_spread=True))
    return spec.total_steps / throughput if throughput > 0 else math.inf


def _ttd_s(work: _Work, *, is_gang: bool) -> float:
    """Return the largest a + T over the arrivals, solving only the suffixes that may attain it.

    Any feasible solution bounds the T of every suffix of the jobs from above, any prices bound it
    from below. The suffix with the highest upper bound is solved, which improves both bounds of
    many others, until no other suffix can exceed the best one.
    """
    if not work.arrival_s.size:
        return 0.0
    if not work.is_possible:
        return math.inf
    arrivals, firsts = np.unique(work.arrival_s, return_index=True)
    above = np.full(len(arrivals), math.inf)
    done, best = np.zeros_like(work.alone_s), 0.0
    while True:
        here = int(np.argmax(arrivals + above))
        if arrivals[here] + above[here] <= best * (1 + _CLOSE):
            return best - float(arrivals[0])
        first = int(firsts[here])
        suffix = _Work(work.arrival_s[first:], work.alone_s[first:], work.share[first:], work.gpus)
        done[first:], prices, waits = _solve(suffix, is_gang=is_gang)
        above = np.minimum(above, _above(work, done, is_gang=is_gang)[firsts])
        above[here] = -math.inf
        below = _below(suffix, prices, waits, is_gang=is_gang)[firsts[here:] - first]
        best = max(best, float((arrivals[here:] + below).max()))


def _above(work: _Work, done: Floats, *, is_gang: bool) -> Floats:
    """Return for each suffix the T of a solution; `done` (jobs, types) are fractions of jobs."""
    above: Floats = _from_end(np.add, done * _finite(work.share)).max(axis=1)
    alone_s = (done * _finite(work.alone_s)).sum(axis=1)
    return np.maximum(above, _from_end(np.maximum, alone_s)) if is_gang else above


def _below(work: _Work, prices: Floats, waits: Floats, *, is_gang: bool) -> Floats:
    """Return for each suffix a bound on T, from prices of types and of the rows x <= T.

    By weak duality it holds for any prices >= 0, regardless of the solver's tolerances.
    """
    price = prices * _finite(work.share) + waits[:, None] * _finite(work.alone_s)
    worth = np.where(np.isfinite(work.alone_s), price, math.inf).min(axis=1)
    scale = prices.sum() + _from_end(np.add, waits)
    below = _from_end(np.add, worth) / np.where(scale > 0, scale, math.inf)
    return np.maximum(below, _from_end(np.maximum, work.alone_s.min(axis=1))) if is_gang else below


def _solve(work: _Work, *, is_gang: bool) -> tuple[Floats, Floats, Floats]:
    """Return each job's fractions by type (sum 1), and prices >= 0 of types and rows x <= T."""
    num_jobs, num_types = work.alone_s.shape
    jobs, gpu_types = np.nonzero(np.isfinite(work.alone_s))
    alone_s = work.alone_s[jobs, gpu_types]
    unit_s, num_parts = float(alone_s.mean()), len(jobs)
    parts = np.arange(num_parts)
    # Columns: fraction of each job on each type, then T. Rows: jobs, types, x <= T.
    blocks: list[tuple[ArrayLike, ArrayLike, ArrayLike]] = [
        (jobs, parts, 1.0),
        (num_jobs + gpu_types, parts, work.share[jobs, gpu_types] / unit_s),
        (num_jobs + np.arange(num_types), num_parts, -1.0),
    ]
    if is_gang:
        first = num_jobs + num_types
        blocks.append((first + jobs, parts, alone_s / unit_s))
        blocks.append((first + np.arange(num_jobs), num_parts, -1.0))
    limits = np.zeros(num_types + (num_jobs if is_gang else 0))
    program = LinearProgram.of(
        np.append(np.zeros(num_parts), 1.0),
        blocks,
        row_lower=np.append(np.ones(num_jobs), limits - math.inf),
        row_upper=np.append(np.full(num_jobs, math.inf), limits),
    )
    method = Method.INTERIOR if num_jobs > _MANY_JOBS else Method.CHOOSE
    found = solve_lp(program, method=method, limits=_LIMITS)
    done = np.zeros((num_jobs, num_types))
    done[jobs, gpu_types] = np.maximum(found.x[:-1], 0.0)
    done /= done.sum(axis=1, keepdims=True)
    paid = np.maximum(-found.duals[num_jobs:], 0.0)
    waits = paid[num_types:] if is_gang else np.zeros(num_jobs)
    return done, paid[:num_types], waits


def _finite(times_s: Floats) -> Floats:
    return np.where(np.isfinite(times_s), times_s, 0.0)


def _from_end(combine: np.ufunc, values: Floats) -> Floats:
    """Return the cumulative sums or maxima from the end."""
    return np.asarray(combine.accumulate(values[::-1])[::-1])


def _mean_jcts_s(work: _Work) -> tuple[float, float]:
    """Return the bounds on the mean JCT: for every schedule, and without forking."""
    own_s = float(work.alone_s.min(axis=1).mean())
    found = []
    for prices in (np.full(len(work.gpus), 1.0), _best_prices(work)):
        sizes = _sizes(work, prices)
        found.append(_least_mean_jct_s(work.arrival_s, sizes))
        found.append(_least_mean_progress_s(work.arrival_s, sizes) + own_s / 2)
    return found[0], max(own_s, *found)


def _sizes(work: _Work, prices: Floats) -> Floats:
    """Return b_j, in seconds of the whole cluster, at prices per GPU in any unit."""
    worth = prices * work.gpus
    cost = np.where(np.isfinite(work.share), worth * _finite(work.share), math.inf)
    return np.asarray(cost.min(axis=1) / worth.sum())


def _best_prices(work: _Work) -> Floats:
    """Return prices per GPU that maximise the mean M of the jobs without arrivals.

    With the sizes b in ascending order, mean M is the mean of (n - i - 1/2) b_i: the minimum over
    all orders of a linear function of b, and b is the minimum of linear functions of the prices.
    So mean M is concave in the prices, and its tangents are cutting planes.
    """
    num_jobs, num_types = work.share.shape
    jobs = np.arange(num_jobs)
    share = _finite(work.share)

    def value(worth: Floats) -> tuple[float, Floats]:
        """Return mean M and its gradient; `worth` is c_r p_r and sums to 1."""
        cost = np.where(np.isfinite(work.share), worth * share, math.inf)
        gpu_type = cost.argmin(axis=1)
        sizes = cost[jobs, gpu_type]
        weight = np.empty(num_jobs)
        weight[np.argsort(sizes, kind="stable")] = (num_jobs - jobs - 0.5) / num_jobs
        slope = np.zeros(num_types)
        np.add.at(slope, gpu_type, weight * share[jobs, gpu_type])
        return float(weight @ sizes), slope

    return _highest(value, work.gpus / work.gpus.sum()) / work.gpus


def _highest(value: Callable[[Floats], tuple[float, Floats]], start: Floats) -> Floats:
    """Return a point of the unit simplex that nearly maximises a concave function (Kelley)."""
    best, best_point, point, num = -math.inf, start, start, len(start)
    slopes: list[Floats] = []
    for _ in range(_MAX_CUTS):
        height, slope = value(point)
        if height > best:
            best, best_point = height, point
        slopes.append(slope)
        unit = max(float(np.abs(slopes).max()), 1e-300)
        # Columns: the point, then the height; a row a tangent (all pass through 0), then the sum.
        cuts = np.column_stack([np.array(slopes) / -unit, np.ones(len(slopes))])
        matrix = np.vstack([cuts, np.append(np.ones(num), 0.0)])
        rows, columns = np.indices(matrix.shape).reshape(2, -1)
        program = LinearProgram.of(
            np.append(np.zeros(num), -1.0),
            [(rows, columns, matrix.ravel())],
            row_lower=np.append(np.full(len(slopes), -math.inf), 1.0),
            row_upper=np.append(np.zeros(len(slopes)), 1.0),
        )
        found = solve_lp(program, method=Method.SIMPLEX)
        if -found.objective * unit <= best * (1 + _CUT_GAP):
            break
        point = np.maximum(found.x[:num], 0.0)
        point = point / point.sum()
    return best_point


def _least_mean_jct_s(arrival_s: Floats, sizes: Floats) -> float:
    """Return the mean JCT of shortest remaining first on one machine of speed 1."""
    jobs = enumerate(zip(arrival_s.tolist(), sizes.tolist(), strict=True))
    arrivals = [(came_s, JobId(str(number)), size) for number, (came_s, size) in jobs]
    ended_s = Machine().run(arrivals, math.inf).ended_s
    return (reduce(add, ended_s.values()) - float(arrival_s.sum())) / len(sizes)


def _least_mean_progress_s(arrival_s: Floats, sizes: Floats) -> float:
    """Return mean (M_j - a_j) of smallest size first, preemptive, on one machine of speed 1."""
    total_s = now_s = 0.0
    # By total size; `left_s` changes.
    waiting: list[tuple[float, int]] = []
    left_s: list[float] = sizes.tolist()
    for index, (came_s, until_s) in enumerate(pairwise([*arrival_s.tolist(), math.inf])):
        now_s = max(now_s, came_s)
        heapq.heappush(waiting, (left_s[index], index))
        while waiting and now_s < until_s:
            whole_s, job = waiting[0]
            run_s = min(left_s[job], until_s - now_s)
            if whole_s > 0:
                total_s += run_s / whole_s * (now_s + run_s / 2)
            left_s[job] -= run_s
            now_s += run_s
            if left_s[job] <= 0:
                heapq.heappop(waiting)
    return (total_s - float(arrival_s.sum())) / len(sizes)
