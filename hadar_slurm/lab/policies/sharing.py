"""The numbers of GPUs of each type on which each job should train, for the least mean JCT.

Source: "Sampling-based multi-job placement" (IEEE TPDS 35(6), 2024). Only its abstract is openly
available; the parts below use its names and are our reconstruction.

* *Proportional workload.* Workers of one job get samples in proportion to their throughputs rho:
  job i trains for work_i / sum rho. The communication of K_i workers (a ring all-reduce) adds
  sync_i (K_i - 1) / K_i seconds. J_i is the sum.
* *Category.* All solutions with the same numbers of workers (K_1, ..., K_S), each at least 1. Only
  sum work_i / R_i matters in it, R_i being job i's total throughput. (Our addition: a job has fewer
  workers where the types on which it trains run out.)
* *Matching market.* Inside a category, a worker of type r is worth work_i rho_ir / R_i^2 to job i:
  its reduction of J_i, to first order. Prices at which demand for every type equals supply are the
  duals of the assignment program; its corner is the matching. R_i and the matching alternate for a
  few iterations. (Valuing a worker by its throughput alone would maximise total throughput.)
* *Exchanges* (our addition). A fast worker is worth several slow ones, so single transfers do not
  reach better solutions: with one V100 and eight K80s, jobs of 1, 6 and 2 workers may have to
  become jobs of 6, 1 and 2. So jobs exchange one worker of a type for up to eight of another, or
  transfer it, across categories, as long as it helps; then the new category's market is solved.
* *Sampling.* The best numbers for equal workers are K_i ~ sqrt(weight_i), weight_i = work_i / mean
  rho_i, by Lagrange multipliers. The search starts there, and again at categories drawn around it
  (job prioritising). The best result is used.

Our additions: workers are counted by GPU type, which is exact for identical GPUs of a type; a
worker may be a gang. Where gang sizes differ, the assignment program is solved in integers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hadar_slurm.errors import SolverError
from hadar_slurm.policies.policy import SolverLimits
from hadar_slurm.policies.solver import Floats, LinearProgram, solve_lp

Counts = NDArray[np.int64]

# Number of categories whose market is solved.
CATEGORIES = 6
# Standard deviation of the logarithm of a weight around the square-root rule.
_SPREAD = 0.35
# More iterations gave the same shares after the exchanges.
_TURNS = 3
_MAX_EXCHANGES = 200
# Number of workers of a slow type that one exchange may give for one of a fast type.
_MOST_FOR_ONE = 8
_NOTHING = 1e-9


@dataclass(frozen=True)
class Market:
    """Jobs and workers."""

    # (jobs,) steps.
    work: Floats
    # (jobs, types) steps/s of one worker, 0 where the job cannot train.
    speeds: Floats
    # (jobs,) GPUs of one worker.
    units: Counts
    # (jobs,) maximum number of workers.
    most: Counts
    # (jobs, types) maximum number of workers on the type.
    most_on: Counts
    # (jobs,) upper bound of the communication in seconds.
    sync_s: Floats
    # (types,) GPUs.
    room: Counts

    @property
    def mean_speeds(self) -> Floats:
        """Return the mean over the types on which the job trains, (jobs,)."""
        runs = self.speeds > 0
        return np.asarray(self.speeds.sum(axis=1) / np.maximum(runs.sum(axis=1), 1))

    def jcts_s(self, counts: Counts) -> Floats:
        """Return J of each job in seconds, inf without workers; `counts` (..., jobs, types)."""
        workers = counts.sum(axis=-1)
        pace = (counts * self.speeds).sum(axis=-1)
        with np.errstate(divide="ignore"):
            train_s = np.where(pace > 0, self.work / np.maximum(pace, 1e-300), math.inf)
        return np.asarray(train_s + self.sync_s * (1.0 - 1.0 / np.maximum(workers, 1)))


class Share(NamedTuple):
    """A solution: `counts` (jobs, types) of workers, its mean JCT, and the effort to find it.

    `categories` were solved or reached by an exchange; `evaluations` are mean JCTs computed.
    """

    counts: Counts
    mean_s: float
    categories: int
    evaluations: int


def share(
    market: Market,
    *,
    seed: int,
    categories: int = CATEGORIES,
    held: Counts | None = None,
    limits: SolverLimits | None = None,
) -> Share | None:
    """Return the best solution of a sample of `categories` categories; None if there is none.

    The first one is `held`, the present workers by job, if it is a category.
    """
    best: Share | None = None
    solved, reached, evaluations = set[tuple[int, ...]](), set[tuple[int, ...]](), 0
    for start in _drawn(market, seed, 3 * categories, held):
        here, kappa = None, start
        while tuple(kappa) not in solved and len(solved) < categories:
            solved.add(tuple(kappa))
            matched = solve_category(market, kappa, limits)
            if matched is None:
                break
            evaluations += matched.evaluations
            if here and matched.mean_s >= here.mean_s * (1 - _NOTHING):
                break
            here, passed = exchanged(market, matched.counts)
            evaluations += here.evaluations
            reached |= passed
            kappa = here.counts.sum(axis=1)
        if here and (best is None or here.mean_s < best.mean_s * (1 - _NOTHING)):
            best = here
    return best and Share(best.counts, best.mean_s, len(solved | reached), evaluations)


def solve_category(
    market: Market, kappa: Counts, limits: SolverLimits | None = None
) -> Share | None:
    """Return the best matching with `kappa` workers by job; None if the market has none."""
    pace = kappa * market.mean_speeds
    found: list[Share] = []
    for turn in range(1, _TURNS + 1):
        values = market.work[:, None] * market.speeds / np.maximum(pace, 1e-300)[:, None] ** 2
        counts = _match(market, kappa, values, limits)
        if counts is None or (found and np.array_equal(counts, found[-1].counts)):
            break
        found.append(Share(counts, float(market.jcts_s(counts).mean()), 1, turn))
        pace = (counts * market.speeds).sum(axis=1)
    best = min(found, key=lambda share: share.mean_s, default=None)
    return best and best._replace(evaluations=len(found))


def square_root_rule(market: Market) -> Floats:
    """Return weights (jobs,): the optimal proportions of identical workers."""
    speeds = np.maximum(market.mean_speeds, 1e-300)
    return np.asarray(np.sqrt(market.work / (speeds * np.maximum(market.units, 1))))


def composition(market: Market, weights: Floats) -> Counts:
    """Return numbers of workers in proportion to weights, each from 1 to the job's maximum.

    All GPUs are assigned, one worker at a time to the job that is furthest below its proportion.
    """
    kappa = np.ones(len(weights), dtype=np.int64)
    left = int(market.room.sum()) - int(market.units.sum())
    while left > 0 and (may := (kappa < market.most) & (market.units <= left)).any():
        job = int(np.argmax(np.where(may, weights / (kappa + 0.5), -math.inf)))
        kappa[job] += 1
        left -= int(market.units[job])
    return kappa


def _drawn(market: Market, seed: int, number: int, held: Counts | None) -> Iterator[Counts]:
    """Yield the present category, that of the square-root rule, and others drawn near it."""
    if held is not None and (held >= 1).all() and (held <= market.most).all():
        yield held
    weights = square_root_rule(market)
    yield composition(market, weights)
    draw = np.random.default_rng(seed)
    for _ in range(number):
        yield composition(market, weights * np.exp(draw.normal(0.0, _SPREAD, len(weights))))


def exchanged(market: Market, counts: Counts) -> tuple[Share, set[tuple[int, ...]]]:
    """Return counts after all exchanges that help, best first, and the categories reached.

    Two jobs, or a job and the idle GPUs, exchange a lot of one type for none, one or several of
    another. A lot has the size of some job's worker; it is several workers of smaller jobs.
    """
    counts, passed, tried, deals = counts.copy(), set(), 0, _deals(len(market.room))
    lots = np.unique(market.units)
    sizes = [np.where(lot % market.units == 0, lot // market.units, 0) for lot in lots]
    for _ in range(_MAX_EXCHANGES):
        found = [_best_exchange(market, counts, size, deals) for size in sizes]
        tried += sum(compared for _, _, compared in found)
        change_s, more, _ = min(found, key=lambda exchange: exchange[0])
        if change_s >= -_NOTHING * float(market.jcts_s(counts).sum()):
            break
        counts += more
        passed.add(tuple(counts.sum(axis=1)))
    return Share(counts, float(market.jcts_s(counts).mean()), len(passed), tried), passed


def _best_exchange(
    market: Market, counts: Counts, size: Counts, deals: Counts
) -> tuple[float, Counts, int]:
    """Return the best exchange: change of the sum of J, of counts, number of exchanges compared.

    `size` is a lot in workers by job, 0 where not a whole number.
    """
    first, second = (_changes_s(market, counts, size, way * deals) for way in (1, -1))
    may, can = np.isfinite(first), np.isfinite(second)
    tried = int((may.sum(axis=1) * can.sum(axis=1) - (may & can).sum(axis=1)).sum())
    # A party cannot deal with itself: the best second party gets the next best one.
    lowest, next_best = np.partition(second, 1, axis=1)[:, :2].T[:, :, None]
    change_s = first + np.where(second > lowest, lowest, next_best)
    deal, giver = divmod(int(np.argmin(change_s)), change_s.shape[1])
    second[deal, giver] = math.inf
    taker = int(np.argmin(second[deal]))
    more = np.zeros((len(counts) + 1, counts.shape[1]), dtype=np.int64)
    workers = np.append(size, 0)
    more[giver] += workers[giver] * deals[deal]
    more[taker] -= workers[taker] * deals[deal]
    return float(change_s[deal, giver]), more[:-1], tried


def _deals(num_types: int) -> Counts:
    """Return by deal the lots of each type that the first party gets from the second."""
    one = np.eye(num_types, dtype=np.int64)
    deals = list(-one)
    for gives, gets in permutations(range(num_types), 2):
        # One for one is the same deal from either side.
        least = 2 if gives > gets else 1
        deals += [n * one[gets] - one[gives] for n in range(least, _MOST_FOR_ONE + 1)]
    return np.array(deals)


def _changes_s(market: Market, counts: Counts, size: Counts, deals: Counts) -> Floats:
    """Return the change of J in seconds, (deals, jobs + 1), inf where the deal is impossible.

    The last column is that of the idle GPUs: 0 or inf. `size` is as in `_best_exchange`.
    """
    more = deals[:, None, :] * size[:, None]
    after = counts + more
    most_on = np.where(market.speeds > 0, market.most_on, 0)
    may = ((after >= 0) & ((after <= most_on) | (more <= 0))).all(axis=2) & (size > 0)
    workers = after.sum(axis=2)
    may &= (workers >= 1) & ((workers <= market.most) | (more.sum(axis=2) <= 0))
    change_s = np.full((len(deals), len(counts) + 1), math.inf)
    change_s[:, :-1][may] = (market.jcts_s(np.maximum(after, 0)) - market.jcts_s(counts))[may]
    lot = int((size * market.units).max())
    idle = market.room - (counts * market.units[:, None]).sum(axis=0)
    change_s[(idle + lot * deals >= 0).all(axis=1), -1] = 0.0
    return change_s


def _match(
    market: Market, kappa: Counts, values: Floats, limits: SolverLimits | None
) -> Counts | None:
    """Return the matching of greatest value: an optimum of the assignment program."""
    num_jobs, num_types = market.speeds.shape
    cells = np.arange(num_jobs * num_types)
    job, gpu_type = np.divmod(cells, num_types)
    upper = np.where(market.speeds > 0, np.minimum(market.most_on, kappa[:, None]), 0)
    program = LinearProgram.of(
        -values.ravel() / max(float(values.max(initial=0.0)), 1e-300),
        [(job, cells, 1.0), (num_jobs + gpu_type, cells, market.units[job])],
        # At least one worker; fewer than kappa where the types that a job needs run out.
        row_lower=np.append(np.ones(num_jobs), np.zeros(num_types)),
        row_upper=np.append(kappa, market.room).astype(float),
        bounds=(None, upper.ravel().astype(float)),
        # With single-GPU workers a corner of the linear program is integral.
        integer=None if (market.units == 1).all() else np.ones(len(cells), dtype=bool),
    )
    try:
        found = solve_lp(program, limits=limits)
    except SolverError:
        return None
    return np.rint(found.x).astype(np.int64).reshape(num_jobs, num_types)


def jain(values: Sequence[float]) -> float:
    """Return Jain's fairness index: 1 if all values are equal, 1/n if all but one are 0."""
    total, squares = sum(values), sum(value * value for value in values)
    return total * total / (len(values) * squares) if squares > 0 else 1.0
