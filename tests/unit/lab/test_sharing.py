"""Shares of workers among jobs: by hand, and against exhaustive search."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest

from hadar_slurm.lab.policies.sharing import (
    Market,
    composition,
    exchanged,
    jain,
    share,
    solve_category,
    square_root_rule,
)


def a_market(
    speeds: list[list[float]],
    work: list[float],
    room: list[int],
    *,
    units: list[int] | None = None,
    most: list[int] | None = None,
    sync_s: list[float] | None = None,
) -> Market:
    """Return a market with no limit on workers by type, by default."""
    jobs, gpu_types = len(work), len(room)
    whole = most or [sum(room)] * jobs
    return Market(
        work=np.array(work),
        speeds=np.array(speeds),
        units=np.array(units or [1] * jobs),
        most=np.array(whole),
        most_on=np.tile(np.array(whole)[:, None], gpu_types),
        sync_s=np.array(sync_s or [0.0] * jobs),
        room=np.array(room),
    )


def test_completion_times_by_hand() -> None:
    """120 steps at 10 + 2 x 1 steps/s take 10 s; synchronising three workers adds 2/3 of 6 s."""
    market = a_market([[10.0, 1.0]], [120.0], [1, 2], sync_s=[6.0])
    assert market.jcts_s(np.array([[1, 2]])) == pytest.approx([14.0])
    assert market.jcts_s(np.array([[1, 0]])) == pytest.approx([12.0])
    assert np.isinf(market.jcts_s(np.array([[0, 0]]))).all()


def test_equal_workers_are_shared_by_the_square_root() -> None:
    """Work of 100 and 400 has weights 10 and 20: 3 and 6 of 9 workers.

    It is optimal: 100/3 + 400/6 = 100; 2 and 7 give 107.1, 4 and 5 give 105.
    """
    market = a_market([[1.0], [1.0]], [100.0, 400.0], [9])
    assert square_root_rule(market) == pytest.approx([10.0, 20.0])
    assert list(composition(market, square_root_rule(market))) == [3, 6]
    found = share(market, seed=0)
    assert found is not None
    assert found.counts.tolist() == [[3], [6]]
    assert found.mean_s == pytest.approx(50.0)


def test_a_type_goes_to_whom_it_speeds_up_most() -> None:
    """One worker each: job 1 is ten times as fast on the fast type, job 2 equally fast on both."""
    market = a_market([[10.0, 1.0], [1.0, 1.0]], [100.0, 100.0], [1, 1])
    found = solve_category(market, np.array([1, 1]))
    assert found is not None
    assert found.counts.tolist() == [[1, 0], [0, 1]]


def test_total_speed_is_not_the_aim() -> None:
    """The matching minimises the mean JCT; it does not maximise the total speed.

    Speeds sum to 101 if the large job has the fast type and to 52 otherwise; the mean JCT is
    (10 + 1)/2 s then and (20 + 0.5)/2 s otherwise.
    """
    market = a_market([[100.0, 50.0], [2.0, 1.0]], [1000.0, 1.0], [1, 1])
    found = share(market, seed=0)
    assert found is not None
    assert found.mean_s == pytest.approx(5.5)
    swapped = a_market([[100.0, 50.0], [2.0, 1.0]], [100.0, 100.0], [1, 1])
    found = share(swapped, seed=0)
    assert found is not None
    # 1 + 100 s against 2 + 50 s: the slow job gets the fast type, although it adds less speed.
    assert found.counts.tolist() == [[0, 1], [1, 0]]


def test_nobody_has_more_than_it_may_or_what_it_cannot_use() -> None:
    """Gangs of two on five GPUs make two workers; no worker is on a type of 0 steps/s."""
    market = a_market([[1.0, 0.0], [1.0, 2.0]], [100.0, 1.0], [5, 2], units=[2, 1], most=[4, 1])
    found = share(market, seed=0)
    assert found is not None
    assert found.counts.tolist() == [[2, 0], [0, 1]]


def test_no_solution_is_none() -> None:
    """Two jobs that train only on the same single GPU have no solution."""
    assert share(a_market([[1.0, 0.0], [1.0, 0.0]], [1.0, 1.0], [1, 1]), seed=0) is None


def test_talking_keeps_a_job_small() -> None:
    """Two workers take 5 s plus 30 s of synchronisation instead of 10 s, so the job keeps one."""
    market = a_market([[1.0], [1.0]], [10.0, 1000.0], [6], sync_s=[60.0, 0.0])
    found = share(market, seed=0)
    assert found is not None
    assert found.counts.tolist() == [[1], [5]]


@pytest.mark.parametrize("seed", range(12))
def test_it_is_near_the_best_of_all_ways_to_give_workers_out(seed: int) -> None:
    """The mean JCT is within 2.04 % of the optimum by exhaustive search."""
    draw = np.random.default_rng(seed)
    jobs, workers = int(draw.integers(2, 4)), int(draw.integers(4, 9))
    speeds = draw.uniform(1.0, 10.0, (jobs, workers))
    market = a_market(
        speeds.tolist(),
        (10.0 ** draw.uniform(1.0, 3.0, jobs)).tolist(),
        [1] * workers,
        sync_s=draw.uniform(0.0, 0.5, jobs).tolist(),
    )
    best_s = min(
        float(market.jcts_s(np.array(counts)).mean()) for counts in _every_way(jobs, workers)
    )
    found = share(market, seed=seed)
    assert found is not None
    assert found.mean_s == pytest.approx(float(market.jcts_s(found.counts).mean()))
    assert (found.counts.sum(axis=0) <= market.room).all()
    assert best_s * (1 - 1e-9) <= found.mean_s <= best_s * 1.0204


@pytest.mark.parametrize("seed", range(20))
def test_it_is_near_the_best_of_all_ways_with_workers_of_several_sizes(seed: int) -> None:
    """The same for workers of 1, 2 or 4 GPUs on two types; None only if there is no solution."""
    draw = np.random.default_rng(seed)
    jobs = int(draw.integers(2, 4))
    market = a_market(
        draw.uniform(1.0, 10.0, (jobs, 2)).tolist(),
        (10.0 ** draw.uniform(1.0, 3.0, jobs)).tolist(),
        draw.integers(2, 8, 2).tolist(),
        units=draw.choice([1, 2, 4], jobs).tolist(),
    )
    numbers = [range(int(room) // int(unit) + 1) for unit in market.units for room in market.room]
    ways = (np.array(way).reshape(jobs, 2) for way in product(*numbers))
    fitting = (way for way in ways if (market.units @ way <= market.room).all())
    best_s = min(float(market.jcts_s(way).mean()) for way in fitting)
    found = share(market, seed=seed)
    assert (found is not None) == np.isfinite(best_s)
    if found is not None:
        assert (market.units @ found.counts <= market.room).all()
        assert best_s * (1 - 1e-9) <= found.mean_s <= best_s * 1.0204


def test_a_fast_worker_is_exchanged_for_several_slow_ones() -> None:
    """Job 1 takes 10 s with the fast worker, 33.3 s with six slow ones; job 2 83.3 s, then 25 s.

    Exchanging one for one gives 220 s in all, giving one slow worker away 109.5 s: both are worse.
    """
    market = a_market([[10.0, 0.5], [40.0, 2.0]], [100.0, 1000.0], [1, 6])
    found, passed = exchanged(market, np.array([[1, 0], [0, 6]]))
    assert found.counts.tolist() == [[0, 6], [1, 0]]
    assert found.mean_s == pytest.approx((100 / 3 + 25) / 2)
    assert passed == {(6, 1)}


def test_one_worker_of_two_gpus_is_exchanged_for_two_of_one() -> None:
    """Only job 1 is faster on the other type: its 100 s become 10 s."""
    market = a_market([[10.0, 1.0], [1.0, 1.0]], [100.0, 100.0], [2, 2], units=[2, 1])
    found, _ = exchanged(market, np.array([[0, 1], [2, 0]]))
    assert found.counts.tolist() == [[1, 0], [0, 2]]


def test_idle_gpus_are_taken() -> None:
    """A job exchanges its slow worker for an idle fast one."""
    market = a_market([[10.0, 1.0]], [100.0], [1, 1], most=[1])
    found, _ = exchanged(market, np.array([[0, 1]]))
    assert found.counts.tolist() == [[1, 0]]


def test_so_many_markets_are_solved() -> None:
    """With `categories=1` one category is solved: that of the square-root rule, or `held`."""
    market = a_market([[1.0], [1.0]], [100.0, 400.0], [9], most=[9, 9])
    found = share(market, seed=0, categories=1)
    assert found is not None
    assert found.categories == 1
    found = share(market, seed=0, categories=1, held=np.array([4, 5]))
    assert found is not None
    # 4 and 5 are examined first; one transfer then leads to 3 and 6.
    assert found.categories == 2
    assert found.counts.tolist() == [[3], [6]]


def _every_way(jobs: int, workers: int) -> Iterator[list[list[int]]]:
    for owners in product(range(jobs), repeat=workers):
        if len(set(owners)) == jobs:
            yield [[int(owner == job) for owner in owners] for job in range(jobs)]


def test_the_same_seed_gives_the_same_share() -> None:
    """The result depends only on the market and the seed."""
    market = a_market([[3.0, 1.0], [2.0, 1.5], [1.0, 1.0]], [50.0, 70.0, 200.0], [4, 5])
    first, again = share(market, seed=3), share(market, seed=3)
    assert first is not None
    assert again is not None
    assert first.counts.tolist() == again.counts.tolist()


def test_jains_index() -> None:
    """1 if all values are equal, 1/n if all but one are 0; 9 / (2 x 5) for 1 and 2."""
    assert jain([4.0, 4.0, 4.0]) == pytest.approx(1.0)
    assert jain([1.0, 0.0]) == pytest.approx(0.5)
    assert jain([1.0, 2.0]) == pytest.approx(0.9)
