"""The optima of the benchmarks equal those of exhaustive search without pruning."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from hadar_slurm.lab.policies.hare import RoundJob, plan_offline

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture
def hare(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return benchmarks/hare.py as a module."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import hare

    return hare


@pytest.fixture
def sampling(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return benchmarks/sampling.py as a module."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import sampling

    return sampling


def test_the_best_order_by_hand(hare: ModuleType) -> None:
    """10 s of weight 1 and 20 s of weight 5 on one GPU: 5 x 20 + 30 = 130, not 10 + 5 x 30."""
    jobs = [RoundJob((10.0,), (0.0,), 1, 1), RoundJob((20.0,), (0.0,), 1, 1, weight=5.0)]
    assert hare.optimum_s(jobs, 1e9) == 130.0


@pytest.mark.parametrize("seed", range(15))
def test_branch_and_bound_finds_what_trying_everything_finds(hare: ModuleType, seed: int) -> None:
    """The optimum of up to five tasks on two GPUs is exact; the planner is never below it."""
    draw = np.random.default_rng(seed)
    while True:
        jobs, _ = hare.an_instance(draw, jobs=int(draw.integers(2, 4)), gpus=2, most_tasks=2)
        if sum(job.rounds * job.tasks for job in jobs) <= 5:
            break
    best_s = _tried(jobs, [(0, 0, job.arrival_s, 0.0) for job in jobs], [0.0, 0.0])
    assert hare.optimum_s(jobs, 1e9) == pytest.approx(best_s)
    assert plan_offline(jobs).weighted_s(jobs) >= best_s * (1 - 1e-9)


def _tried(
    jobs: list[RoundJob], stand: list[tuple[int, int, float, float]], free_s: list[float]
) -> float:
    """Return the least sum over every sequence of tasks and every GPU for each of them.

    For each job: rounds done, tasks started in the round, their earliest start, the last end.
    """
    if all(done == job.rounds for job, (done, *_) in zip(jobs, stand, strict=True)):
        return sum(
            job.weight * (ready_s - job.arrival_s)
            for job, (_, _, ready_s, _) in zip(jobs, stand, strict=True)
        )
    best_s = float("inf")
    for n, job in enumerate(jobs):
        done, begun, ready_s, end_s = stand[n]
        if done == job.rounds:
            continue
        for gpu in range(len(free_s)):
            trained_s = max(free_s[gpu], ready_s) + job.train_s[gpu]
            last_s = max(end_s, trained_s + job.sync_s[gpu])
            is_whole = begun + 1 == job.tasks
            after = (
                (done + 1, 0, last_s, last_s) if is_whole else (done, begun + 1, ready_s, last_s)
            )
            best_s = min(
                best_s,
                _tried(
                    jobs,
                    [after if i == n else old for i, old in enumerate(stand)],
                    [trained_s if m == gpu else old for m, old in enumerate(free_s)],
                ),
            )
    return best_s


@pytest.mark.parametrize("seed", range(6))
def test_counting_by_type_misses_no_way_to_give_workers_out(
    sampling: ModuleType, seed: int
) -> None:
    """Six workers, two or three jobs: the optimum equals that over all owners of all workers."""
    draw = np.random.default_rng(seed)
    jobs = int(draw.integers(2, 4))
    market = sampling.an_instance(draw, workers=6, jobs=jobs, gpu_types=2)
    types = np.repeat([0, 1], market.room)
    least_s = float("inf")
    for owners in product(range(jobs), repeat=6):
        counts = np.zeros((jobs, 2), dtype=np.int64)
        np.add.at(counts, (np.array(owners), types), 1)
        if (counts.sum(axis=1) >= 1).all():
            least_s = min(least_s, float(market.jcts_s(counts).mean()))
    counts, best_s, number = sampling.enumerated(market)
    assert best_s == pytest.approx(least_s)
    assert float(market.jcts_s(counts).mean()) == pytest.approx(least_s)
    assert number > 0


def test_sampling_is_near_the_optimum_with_a_twentieth_of_the_work(sampling: ModuleType) -> None:
    """Up to 15 workers and 4 jobs: at most 2.04 % above the optimum, 0.05 % on average.

    The work is counted in categories and in evaluations. On the 44th instance, exchanges of single
    workers alone end 3.6 % above the optimum.
    """
    rows = [row for _, row in sampling.measured(50, 2024)]
    above = [row.above_percent for row in rows]
    assert max(above) <= 2.04
    assert sum(above) <= 0.05 * len(rows)
    for done, all_there_is in (
        ("categories", "all_categories"),
        ("evaluations", "all_evaluations"),
    ):
        sums = [sum(getattr(row, name) for row in rows) for name in (done, all_there_is)]
        assert 20 * sums[0] <= sums[1], done
