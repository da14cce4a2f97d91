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
  each other for a few turns, then workers are swapped in pairs while that helps. (Valuing a worker
  by its speed alone, as elsewhere, maximises total speed, which is something else.)
* *Sampling.* The best numbers for equal workers are K_i ~ sqrt(weight_i), weight_i = work_i / mean
  rho_i, by Lagrange multipliers. Half of the categories are drawn around that (job prioritising),
  the others are neighbours of the best so far: one job gives a worker to another (ours).

Ours: workers are counted by GPU type, which loses nothing where those of a type are alike; and a
worker may be a gang of several GPUs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hadar_slurm.errors import SolverError
from hadar_slurm.policies.lp import Floats, LinearProgram, SolverLimits, solve_lp

Counts = NDArray[np.int64]

# So many categories are drawn. Of the 364 of 15 workers and 4 jobs that is less than a twentieth.
CATEGORIES = 16
# How far from the square-root rule they are drawn: the spread of the logarithm of a weight.
_SPREAD = 0.35
# More turns gave the same shares: what they would change, swaps do.
_TURNS = 3
_MAX_SWAPS = 200
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
        """Return J of each job; infinite for one without workers."""
        workers = counts.sum(axis=1)
        pace = (counts * self.speeds).sum(axis=1)
        with np.errstate(divide="ignore"):
            train_s = np.where(pace > 0, self.work / np.maximum(pace, 1e-300), math.inf)
        return np.asarray(train_s + self.sync_s * (1.0 - 1.0 / np.maximum(workers, 1)))


class Share(NamedTuple):
    """A solution: workers by job and type, the mean JCT, and what it took to find it.

    `categories` were looked at, and for `evaluations` allocations the mean JCT was worked out.
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

    `held`, workers by job now, is looked at first if it is a category.
    """
    best: Share | None = None
    evaluations = 0
    known: set[tuple[int, ...]] = set()

    def look_at(kappa: Counts) -> bool:
        """Solve a category that is new and fits; say whether it is the best so far."""
        nonlocal best, evaluations
        key = tuple(int(count) for count in kappa)
        if key in known or int((kappa * market.units).sum()) > int(market.room.sum()):
            return False
        known.add(key)
        found = solve_category(market, kappa, limits)
        if found is None:
            return False
        evaluations += found.evaluations
        if best is not None and found.mean_s >= best.mean_s * (1 - _NOTHING):
            return False
        best = found
        return True

    if held is not None and (held >= 1).all() and (held <= market.most).all():
        look_at(held)
    for kappa in _drawn(market, seed, 2 * categories):
        if 2 * len(known) >= categories:
            break
        look_at(kappa)
    is_better = best is not None
    while best is not None and is_better:
        nearby, tried = _transfers(market, best.counts)
        evaluations += tried
        is_better = False
        for kappa in nearby:
            if len(known) >= categories or is_better:
                break
            is_better = look_at(kappa)
    return best and best._replace(categories=len(known), evaluations=evaluations)


def solve_category(
    market: Market, kappa: Counts, limits: SolverLimits | None = None
) -> Share | None:
    """Return a good solution with these numbers of workers; None if the market has none."""
    runs = market.speeds > 0
    mean_speed = market.speeds.sum(axis=1) / np.maximum(runs.sum(axis=1), 1)
    pace = kappa * mean_speed
    best: Counts | None = None
    best_s, evaluations = math.inf, 0
    before: Counts | None = None
    for _ in range(_TURNS):
        values = market.work[:, None] * market.speeds / np.maximum(pace, 1e-300)[:, None] ** 2
        counts = _match(market, kappa, values, limits)
        if counts is None or (before is not None and np.array_equal(counts, before)):
            break
        before = counts
        mean_s = float(market.jcts_s(counts).mean())
        evaluations += 1
        if mean_s < best_s:
            best, best_s = counts, mean_s
        pace = (counts * market.speeds).sum(axis=1)
    if best is None:
        return None
    best, tried = _swapped(market, best)
    return Share(best, float(market.jcts_s(best).mean()), 1, evaluations + tried)


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


def _drawn(market: Market, seed: int, number: int) -> Iterator[Counts]:
    """Yield the category of the square-root rule, then others drawn near it."""
    weights = square_root_rule(market)
    yield composition(market, weights)
    draw = np.random.default_rng(seed)
    for _ in range(number):
        yield composition(market, weights * np.exp(draw.normal(0.0, _SPREAD, len(weights))))


def _transfers(market: Market, counts: Counts) -> tuple[list[Counts], int]:
    """Return categories with a worker given by one job to another, and how many gifts were tried.

    Or to nobody, where talking costs more than it brings. The most promising first, by what the
    gift would do with all others left where they are.
    """
    now_s = market.jcts_s(counts)
    workers, pace = counts.sum(axis=1), (counts * market.speeds).sum(axis=1)

    def with_more(more: int) -> Floats:
        """Return the change of each J_i if the job had a worker of a type more, or less."""
        after = pace[:, None] + more * market.speeds
        talk_s = market.sync_s * (1.0 - 1.0 / np.maximum(workers + more, 1))
        with np.errstate(divide="ignore"):
            train_s = np.where(after > 0, market.work[:, None] / np.maximum(after, 1e-300), np.inf)
        return np.asarray(train_s + talk_s[:, None] - now_s[:, None])

    gives = (counts > 0) & (workers > 1)[:, None]
    takes = (market.speeds > 0) & (counts < market.most_on) & (workers < market.most)[:, None]
    loss = np.where(gives, with_more(-1), math.inf)
    gain = np.where(takes, with_more(1), math.inf)
    change = (loss[:, None, :] + gain[None, :, :]).min(axis=2)
    change[market.units[:, None] != market.units[None, :]] = math.inf
    # A gift to oneself stands for one to nobody.
    np.fill_diagonal(change, np.where(loss < 0, loss, math.inf).min(axis=1))
    nearby = []
    for place in np.argsort(change, axis=None, kind="stable"):
        giver, taker = divmod(int(place), len(change))
        if not math.isfinite(change[giver, taker]):
            break
        kappa = workers.copy()
        kappa[giver] -= 1
        kappa[taker] += giver != taker
        nearby.append(kappa)
    return nearby, int(gives.sum() + takes.sum())


def _match(
    market: Market, kappa: Counts, values: Floats, limits: SolverLimits | None
) -> Counts | None:
    """Return the matching of most value: an optimum of the assignment program, made whole."""
    num_jobs, num_kinds = market.speeds.shape
    cells = np.arange(num_jobs * num_kinds)
    job, kind = np.divmod(cells, num_kinds)
    upper = np.where(market.speeds > 0, np.minimum(market.most_on, kappa[:, None]), 0)
    scale = max(float(values.max(initial=0.0)), 1e-300)
    try:
        found = solve_lp(
            LinearProgram(
                cost=-values.ravel() / scale,
                rows=np.concatenate((job, num_jobs + kind)).astype(np.int32),
                columns=np.concatenate((cells, cells)).astype(np.int32),
                values=np.concatenate((np.ones(len(cells)), market.units[job].astype(float))),
                # One worker at least; less than kappa where the types that a job needs run out.
                row_lower=np.concatenate((np.ones(num_jobs), np.zeros(num_kinds))),
                row_upper=np.concatenate((kappa.astype(float), market.room.astype(float))),
                lower=np.zeros(len(cells)),
                upper=upper.ravel().astype(float),
            ),
            limits=limits,
        )
    except SolverError:
        return None
    return _made_whole(market, values, upper, found.x.reshape(num_jobs, num_kinds))


def _made_whole(market: Market, values: Floats, upper: Counts, matched: Floats) -> Counts | None:
    """Return a matching with the workers that a corner has in parts, each where it is worth most.

    Corners are whole where all workers are of one size.
    """
    counts = np.floor(matched + 1e-6).astype(np.int64)
    left = market.room - (counts * market.units[:, None]).sum(axis=0)
    missing = np.ceil(matched.sum(axis=1) - 1e-6).astype(np.int64) - counts.sum(axis=1)
    for job in sorted(np.flatnonzero(missing), key=lambda job: -int(market.units[job])):
        for _ in range(int(missing[job])):
            may = (left >= market.units[job]) & (counts[job] < upper[job])
            if may.any():
                kind = int(np.argmax(np.where(may, values[job], -math.inf)))
                counts[job, kind] += 1
                left[kind] -= market.units[job]
    return counts if (counts.sum(axis=1) >= 1).all() else None


def _swapped(market: Market, counts: Counts) -> tuple[Counts, int]:
    """Return counts after all swaps and moves of one worker that help, and how many were tried."""
    counts, tried = counts.copy(), 0
    sizes = sorted({int(unit) for unit in market.units})
    for _ in range(_MAX_SWAPS):
        before = market.jcts_s(counts)
        # change[i, r, q]: what it does to J_i that one worker of job i goes from type r to q.
        pace = (counts * market.speeds).sum(axis=1)
        after = pace[:, None, None] - market.speeds[:, :, None] + market.speeds[:, None, :]
        talk_s = before - market.work / np.maximum(pace, 1e-300)
        may = (counts > 0)[:, :, None] & ((market.speeds > 0) & (counts < market.most_on))[
            :, None, :
        ]
        may &= ~np.eye(counts.shape[1], dtype=bool)[None]
        train_s = market.work[:, None, None] / np.maximum(after, 1e-300)
        change = np.where(may, train_s + (talk_s - before)[:, None, None], math.inf)
        tried += int(may.sum())
        left = market.room - (counts * market.units[:, None]).sum(axis=0)
        best = -_NOTHING * float(before.sum())
        steps: tuple[tuple[int, int, int], ...] = ()
        for size in sizes:
            of_size = np.where((market.units == size)[:, None, None], change, math.inf)
            who, least = of_size.argmin(axis=0), of_size.min(axis=0)
            alone = np.where((left >= size)[None, :], least, math.inf)
            both = least + least.T
            for gains, is_swap in ((alone, False), (both, True)):
                place = int(np.argmin(gains))
                kind, to = divmod(place, counts.shape[1])
                if gains[kind, to] < best:
                    best = float(gains[kind, to])
                    steps = ((int(who[kind, to]), kind, to),)
                    if is_swap:
                        steps += ((int(who[to, kind]), to, kind),)
        if not steps:
            break
        for job, kind, to in steps:
            counts[job, kind] -= 1
            counts[job, to] += 1
    return counts, tried


def jain(values: Sequence[float]) -> float:
    """Return Jain's fairness index: 1 when all values are equal, 1/n when one has everything."""
    total, squares = sum(values), sum(value * value for value in values)
    return total * total / (len(values) * squares) if squares > 0 else 1.0
