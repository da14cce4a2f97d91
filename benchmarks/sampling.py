"""How close sampled categories come to the optimum, and how much less work they are.

    python benchmarks/sampling.py [--instances 200] [--seed 2024]

On random instances of at most 15 workers and 4 jobs the optimum is found by full enumeration:
every way to give all workers out. Beside the mean JCT: Jain's fairness index of J_i over J_i with
an equal share of the cluster; the categories looked at and the allocations whose mean JCT was
worked out, against those that there are. A category counts if its market was solved, or an exchange
led there. Then how long a decision on 64 workers and 16 jobs takes.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

import numpy as np

from hadar_slurm.lab.policies.sharing import Counts, Market, jain, share


def an_instance(draw: np.random.Generator, *, workers: int, jobs: int, gpu_types: int) -> Market:
    """Return jobs with speeds that follow their GPU type, each in its own way."""
    cuts = np.sort(draw.choice(np.arange(1, workers), gpu_types - 1, replace=False))
    room = np.diff(np.concatenate(([0], cuts, [workers])))
    of_type = np.sort(draw.uniform(1.0, 10.0, gpu_types))[::-1]
    speeds = (
        of_type[None, :]
        * draw.lognormal(0.0, 0.4, (jobs, gpu_types))
        * draw.uniform(0.2, 5.0, (jobs, 1))
    )
    alone_s = 10.0 ** draw.uniform(3.0, 5.0, jobs)
    whole = np.full(jobs, workers)
    return Market(
        work=alone_s * speeds.mean(axis=1),
        speeds=speeds,
        units=np.ones(jobs, dtype=np.int64),
        most=whole,
        most_on=np.tile(whole[:, None], gpu_types),
        sync_s=alone_s * draw.uniform(0.0, 0.05, jobs),
        room=room,
    )


def enumerated(market: Market) -> tuple[Counts, float, int]:
    """Return the best of all ways to give all workers out, and how many there are.

    Workers of a type are alike, so a way is how many of each type every job has.
    """
    jobs = len(market.work)
    of_kind = [np.array(list(_parts(int(room), jobs))) for room in market.room]
    best, best_s, number = None, math.inf, 0
    # All but the last type one by one, the last type at once.
    for chosen in product(*of_kind[:-1]):
        first = np.array(chosen).reshape(-1, jobs)
        workers = first.sum(axis=0) + of_kind[-1]
        pace = (first * market.speeds[:, :-1].T).sum(axis=0) + of_kind[-1] * market.speeds[:, -1]
        number += int((workers >= 1).all(axis=1).sum())
        with np.errstate(divide="ignore"):
            jcts_s = market.work / pace + market.sync_s * (1.0 - 1.0 / np.maximum(workers, 1))
        mean_s = jcts_s.mean(axis=1)
        place = int(np.argmin(mean_s))
        if mean_s[place] < best_s:
            best_s = float(mean_s[place])
            best = np.vstack((first, of_kind[-1][place])).T
    assert best is not None
    return best, best_s, number


def _parts(total: int, number: int) -> Iterator[tuple[int, ...]]:
    """Yield the ways to write `total` as a sum of this many counts, each 0 or more."""
    if number == 1:
        yield (total,)
        return
    for first in range(total + 1):
        for rest in _parts(total - first, number - 1):
            yield (first, *rest)


def fairness(market: Market, counts: Counts) -> float:
    """Return Jain's index of each job's JCT over that with an equal share of every type."""
    jobs = len(market.work)
    equal_s = market.work / ((market.speeds * market.room).sum(axis=1) / jobs)
    return jain([float(x) for x in market.jcts_s(counts) / equal_s])


class Row(NamedTuple):
    """What sampling found on an instance, beside the optimum."""

    above_percent: float
    fairness: float
    fairness_of_optimum: float
    categories: int
    all_categories: int
    evaluations: int
    all_evaluations: int


def measured(number: int, seed: int) -> Iterator[tuple[bool, Row]]:
    """Yield what is found on random instances, and whether they have 15 workers and 4 jobs."""
    draw = np.random.default_rng(seed)
    for index in range(number):
        jobs = int(draw.integers(2, 5)) if index % 2 else 4
        workers = int(draw.integers(8, 16)) if index % 2 else 15
        market = an_instance(draw, workers=workers, jobs=jobs, gpu_types=int(draw.integers(2, 4)))
        best, best_s, ways = enumerated(market)
        found = share(market, seed=index)
        assert found is not None
        yield (
            workers == 15 and jobs == 4,
            Row(
                100.0 * (found.mean_s / best_s - 1.0),
                fairness(market, found.counts),
                fairness(market, best),
                found.categories,
                math.comb(workers - 1, jobs - 1),
                found.evaluations,
                ways,
            ),
        )


def main() -> None:
    """Print the figures as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--instances", type=int, default=200)
    parser.add_argument("--seed", type=int, default=2024)
    options = parser.parse_args()
    rows = list(measured(options.instances, options.seed))
    print(
        "| instances | above optimum, mean % | worst % | Jain | Jain of optimum | categories | of |"
        " evaluations | of |\n|---|---:|---:|---:|---:|---:|---:|---:|---:|"
    )
    for title, chosen in (
        ("all", [row for _, row in rows]),
        ("K=15, S=4", [row for is_largest, row in rows if is_largest]),
    ):
        mean = Row(*np.array(chosen, dtype=float).mean(axis=0))
        print(
            f"| {title}: {len(chosen)} | {mean.above_percent:.3f} |"
            f" {max(row.above_percent for row in chosen):.2f} | {mean.fairness:.3f} |"
            f" {mean.fairness_of_optimum:.3f} | {mean.categories:.1f} |"
            f" {mean.all_categories:.0f} | {mean.evaluations:.0f} | {mean.all_evaluations:,.0f} |"
        )
    draw = np.random.default_rng(options.seed + 1)
    times_s = []
    for index in range(10):
        market = an_instance(draw, workers=64, jobs=16, gpu_types=3)
        began = time.perf_counter()
        share(market, seed=index)
        times_s.append(time.perf_counter() - began)
    print(f"\n64 workers, 16 jobs: {max(times_s):.3f} s at most, {min(times_s):.3f} s at least.")


if __name__ == "__main__":
    main()
