"""How many GPUs of which type each of several jobs should train on at once, for the least mean JCT.

Source: "Sampling-based multi-job placement" (IEEE TPDS 35(6), 2024): proportional workload
assignment, categories of feasible solutions, matching markets inside them, categories sampled
instead of listed. Its abstract is published openly, the bodies of its algorithms are not; the parts
below have its names and are our reconstruction.

* *Proportional workload.* Workers of one job get samples in proportion to their speeds, so all end
  together: job i on workers of speeds rho has done in work_i / sum rho. K_i workers that talk to
  each other (a ring all-reduce) cost sync_i (K_i - 1) / K_i seconds on top. J_i is the sum.
* *Category.* All solutions with the same numbers of workers (K_1, ..., K_S), each at least 1: what
  is talked is then fixed, and only sum work_i / R_i matters, R_i being job i's speed in all. (Ours:
  a job has fewer where the types on which it trains run out.)
* *Matching market.* Inside a category, a worker of type r is worth work_i rho_ir / R_i^2 to job i:
  what it takes off J_i, to first order. Prices that make every type wanted as often as it is there
  are the duals of the assignment program; its corner is the matching. R_i and the matching follow
  each other for a few turns. (Valuing a worker by its speed alone, as elsewhere, maximises total
  speed, which is something else.)
* *Exchanges* (ours). Types differ in speed, so a fast worker is worth several slow ones, and the
  next better solution is often many workers away: with one V100 and eight K80s, jobs of 1, 6 and 2
  workers may have to become jobs of 6, 1 and 2. No swap, nor any gift of one worker, goes there
  without a loss on the way. So jobs exchange one worker of a type for up to eight of another, or
  give it away, whatever that does to the category, as long as it helps; then the market of the
  category that was reached is solved, and so on in turns.
* *Sampling.* The best numbers for equal workers are K_i ~ sqrt(weight_i), weight_i = work_i / mean
  rho_i, by Lagrange multipliers. All that was said begins there, and again at categories drawn
  around it (job prioritising). The best of the ends is taken.

Ours: workers are counted by GPU type, which loses nothing where those of a type are alike; and a
worker may be a gang of several GPUs. Where such sizes differ the assignment program is solved in
whole numbers; the linear one would leave parts of gangs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hadar_slurm.errors import SolverError
from hadar_slurm.policies.policy import SolverLimits
from hadar_slurm.policies.solver import Floats, LinearProgram, solve_lp

Counts = NDArray[np.int64]

# The markets of so many categories are solved.
CATEGORIES = 6
# How far from the square-root rule they are drawn: the spread of the logarithm of a weight.
_SPREAD = 0.35
# More turns gave the same shares: what they would change, exchanges do.
_TURNS = 3
_MAX_EXCHANGES = 200
# So many workers of a slow type may be worth one of a fast one.
_MOST_FOR_ONE = 8
_NOTHING = 1e-9


@dataclass(frozen=True)
class Market:
    """Jobs and workers; arrays by job, or by job and GPU type.

    `work` in steps; `speeds` of one worker in steps/s, 0 where the job cannot train; `units` are
    the GPUs of one worker; `most` workers a job may have at all, `most_on` on each type; `sync_s`
    what talking costs at most. `room` has the GPUs of each type.
    """

    work: Floats
    speeds: Floats
    units: Counts
    most: Counts
    most_on: Counts
    sync_s: Floats
    room: Counts

    def jcts_s(self, counts: Counts) -> Floats:
        """Return J of each job, also of several allocations at once; infinite without workers."""
        workers = counts.sum(axis=-1)
        pace = (counts * self.speeds).sum(axis=-1)
        with np.errstate(divide="ignore"):
            train_s = np.where(pace > 0, self.work / np.maximum(pace, 1e-300), math.inf)
        return np.asarray(train_s + self.sync_s * (1.0 - 1.0 / np.maximum(workers, 1)))


class Share(NamedTuple):
    """A solution: workers by job and type, the mean JCT, and what it took to find it.

    `categories` were looked at: their market was solved, or an exchange led there. For
    `evaluations` allocations the mean JCT was worked out.
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
    """Return the best solution of a sample of categories; None if there is none at all.

    The markets of so many `categories` are solved. `held`, workers by job now, is the first of
    them if it is a category.
    """
    best: Share | None = None
    solved: set[tuple[int, ...]] = set()
    looked_at: set[tuple[int, ...]] = set()
    evaluations = 0
    for start in _drawn(market, seed, 3 * categories, held):
        here, kappa = None, start
        while tuple(kappa) not in solved and len(solved) < categories:
            solved.add(tuple(kappa))
            matched = solve_category(market, kappa, limits)
            if matched is None:
                break
            evaluations += matched.evaluations
            if here is not None and matched.mean_s >= here.mean_s * (1 - _NOTHING):
                break
            here, passed = exchanged(market, matched.counts)
            evaluations += here.evaluations
            looked_at |= passed
            kappa = here.counts.sum(axis=1)
        if here is not None and (best is None or here.mean_s < best.mean_s * (1 - _NOTHING)):
            best = here
    return best and Share(best.counts, best.mean_s, len(solved | looked_at), evaluations)


def solve_category(
    market: Market, kappa: Counts, limits: SolverLimits | None = None
) -> Share | None:
    """Return a good solution with these numbers of workers; None if the market has none."""
    runs = market.speeds > 0
    mean_speed = market.speeds.sum(axis=1) / np.maximum(runs.sum(axis=1), 1)
    pace = kappa * mean_speed
    best: Share | None = None
    before: Counts | None = None
    evaluations = 0
    for _ in range(_TURNS):
        values = market.work[:, None] * market.speeds / np.maximum(pace, 1e-300)[:, None] ** 2
        counts = _match(market, kappa, values, limits)
        if counts is None or (before is not None and np.array_equal(counts, before)):
            break
        before = counts
        mean_s = float(market.jcts_s(counts).mean())
        evaluations += 1
        if best is None or mean_s < best.mean_s:
            best = Share(counts, mean_s, 1, evaluations)
        pace = (counts * market.speeds).sum(axis=1)
    return best and best._replace(evaluations=evaluations)


def square_root_rule(market: Market) -> Floats:
    """Return weights in proportion to which jobs should have workers, were these all alike."""
    runs = market.speeds > 0
    mean_speed = market.speeds.sum(axis=1) / np.maximum(runs.sum(axis=1), 1)
    return np.asarray(
        np.sqrt(market.work / (np.maximum(mean_speed, 1e-300) * np.maximum(market.units, 1)))
    )


def composition(market: Market, weights: Floats) -> Counts:
    """Return numbers of workers in proportion to weights: 1 at least, no job above its most.

    As many GPUs as there are are given out, one worker after the other to the job that is furthest
    below its part.
    """
    kappa = np.ones(len(weights), dtype=np.int64)
    left = int(market.room.sum()) - int(market.units.sum())
    while left > 0:
        may = (kappa < market.most) & (market.units <= left)
        if not may.any():
            break
        job = int(np.argmax(np.where(may, weights / (kappa + 0.5), -math.inf)))
        kappa[job] += 1
        left -= int(market.units[job])
    return kappa


def _drawn(market: Market, seed: int, number: int, held: Counts | None) -> Iterator[Counts]:
    """Yield what is held, the category of the square-root rule, then others drawn near it."""
    if held is not None and (held >= 1).all() and (held <= market.most).all():
        yield held
    weights = square_root_rule(market)
    yield composition(market, weights)
    draw = np.random.default_rng(seed)
    for _ in range(number):
        yield composition(market, weights * np.exp(draw.normal(0.0, _SPREAD, len(weights))))


def exchanged(market: Market, counts: Counts) -> tuple[Share, set[tuple[int, ...]]]:
    """Return counts after all exchanges that help, the best first, and the categories passed.

    Two parties, of which one may be nobody with the idle GPUs, exchange a lot of one type for
    none, one or several of another. A lot is as many GPUs as some job's worker has: jobs with
    smaller workers give or get several of them.
    """
    counts, passed, tried = counts.copy(), set(), 0
    deals = _deals(len(market.room))
    sizes = [
        np.where(lot % market.units == 0, lot // market.units, 0)
        for lot in sorted({int(unit) for unit in market.units})
    ]
    for _ in range(_MAX_EXCHANGES):
        found = [_best_exchange(market, counts, size, deals) for size in sizes]
        tried += sum(exchange.tried for exchange in found)
        best = min(found, key=lambda exchange: exchange.change_s)
        if best.change_s >= -_NOTHING * float(market.jcts_s(counts).sum()):
            break
        counts += best.more
        passed.add(tuple(counts.sum(axis=1)))
    return Share(counts, float(market.jcts_s(counts).mean()), len(passed), tried), passed


class _Exchange(NamedTuple):
    """What an exchange does to the sum of J, and to counts; how many it is the best of."""

    change_s: float
    more: Counts
    tried: int


def _best_exchange(market: Market, counts: Counts, size: Counts, deals: Counts) -> _Exchange:
    """Return the best of all exchanges of a lot; `size` are a job's workers in it.

    0 where a lot is no whole number of workers.
    """
    first, second = (_changes_s(market, counts, size, way * deals) for way in (1, -1))
    may, can = np.isfinite(first), np.isfinite(second)
    tried = int((may.sum(axis=1) * can.sum(axis=1) - (may & can).sum(axis=1)).sum())
    # Nobody deals with itself: whoever is the best second party has the next best as its own.
    lowest, next_best = np.partition(second, 1, axis=1)[:, :2].T[:, :, None]
    change_s = first + np.where(second > lowest, lowest, next_best)
    deal, giver = divmod(int(np.argmin(change_s)), change_s.shape[1])
    second[deal, giver] = math.inf
    taker = int(np.argmin(second[deal]))
    more = np.zeros((len(counts) + 1, counts.shape[1]), dtype=np.int64)
    workers = np.append(size, 0)
    more[giver] += workers[giver] * deals[deal]
    more[taker] -= workers[taker] * deals[deal]
    return _Exchange(float(change_s[deal, giver]), more[:-1], tried)


def _deals(num_kinds: int) -> Counts:
    """Return what the first party of each deal gets of each type, in lots; the second gives it."""
    one = np.eye(num_kinds, dtype=np.int64)
    deals = list(-one)
    for gives, gets in product(range(num_kinds), repeat=2):
        # One for one is the same deal from either side.
        least = 2 if gives > gets else 1
        if gives != gets:
            deals += [n * one[gets] - one[gives] for n in range(least, _MOST_FOR_ONE + 1)]
    return np.array(deals)


def _changes_s(market: Market, counts: Counts, size: Counts, deals: Counts) -> Floats:
    """Return what each deal would do to each job's J, infinite where the job cannot have it.

    By deal and job, in seconds; the last column is nobody's, for whom it is 0. `size` are a job's
    workers in a lot, 0 where lots are not whole workers.
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
    """Return the matching of most value: an optimum of the assignment program."""
    num_jobs, num_kinds = market.speeds.shape
    cells = np.arange(num_jobs * num_kinds)
    job, gpu_type = np.divmod(cells, num_kinds)
    upper = np.where(market.speeds > 0, np.minimum(market.most_on, kappa[:, None]), 0)
    scale = max(float(values.max(initial=0.0)), 1e-300)
    try:
        found = solve_lp(
            LinearProgram(
                cost=-values.ravel() / scale,
                rows=np.concatenate((job, num_jobs + gpu_type)).astype(np.int32),
                columns=np.concatenate((cells, cells)).astype(np.int32),
                values=np.concatenate((np.ones(len(cells)), market.units[job].astype(float))),
                # One worker at least; less than kappa where the types that a job needs run out.
                row_lower=np.concatenate((np.ones(num_jobs), np.zeros(num_kinds))),
                row_upper=np.concatenate((kappa.astype(float), market.room.astype(float))),
                lower=np.zeros(len(cells)),
                upper=upper.ravel().astype(float),
                # Where all workers are of one GPU a corner is whole by itself.
                integer=None if (market.units == 1).all() else np.ones(len(cells), dtype=bool),
            ),
            limits=limits,
        )
    except SolverError:
        return None
    return np.rint(found.x).astype(np.int64).reshape(num_jobs, num_kinds)


def jain(values: Sequence[float]) -> float:
    """Return Jain's fairness index: 1 when all values are equal, 1/n when one has everything."""
    total, squares = sum(values), sum(value * value for value in values)
    return total * total / (len(values) * squares) if squares > 0 else 1.0
