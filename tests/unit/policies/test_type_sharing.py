"""The sharing of GPU types by regret."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from random import Random

import pytest

from hadar_slurm.policies.hadar.type_sharing import Worth, share_types, worths

HOUR_S = 3600.0
FAST, SLOW = 0, 1


def worth(left_s: float, *speeds: float, num_gpus: int = 1, **running: float) -> list[Worth]:
    """Return the worths of all types to a job."""
    held, restart_s = running.get("held"), running.get("restart_s", 0.0)
    types, own = range(len(speeds)), None if held is None else (int(held), restart_s)
    return worths(speeds, types, num_gpus, left_s, held=own)


def shared(jobs: Sequence[list[Worth]], free: list[int], sizes: Sequence[int]) -> list[int | None]:
    """Return the type that each job gets of `free` GPUs."""
    found: list[int | None] = [None] * len(jobs)

    def take(position: int, gpu_type: int) -> bool:
        if free[gpu_type] < sizes[position]:
            return False
        free[gpu_type] -= sizes[position]
        found[position] = gpu_type
        return True

    share_types(jobs, take, lambda gpu_type: free[gpu_type] == 0)
    return found


def test_a_job_of_five_minutes_is_not_made_forty() -> None:
    """The week-long job gains more from the fast type, in relation to its speed elsewhere."""
    short, long = worth(300.0, 1.0, 0.125), worth(168 * HOUR_S, 1.0, 0.1)
    assert shared([long, short], [1, 1], [1, 1]) == [SLOW, FAST]


def test_of_equal_lengths_the_job_that_gains_more_gets_the_fast_type() -> None:
    """Comparative advantage decides between them, whatever the order."""
    hardly, gains = worth(HOUR_S, 1.0, 0.9), worth(HOUR_S, 1.0, 0.1)
    assert shared([hardly, gains], [1, 1], [1, 1]) == [SLOW, FAST]
    assert shared([gains, hardly], [1, 1], [1, 1]) == [FAST, SLOW]


@pytest.mark.parametrize(("left_s", "moves"), [(1000.0, False), (100_000.0, True)])
def test_a_running_job_moves_if_it_pays_with_three_restarts(left_s: float, moves: bool) -> None:
    """1.1 times the speed saves 91 s of 1,000 s, and 9,091 s of 100,000 s; a restart takes 50 s."""
    best = worth(left_s, 1.0, 1 / 1.1, held=SLOW, restart_s=50.0)[0]
    assert (best[1] == FAST) is moves


def test_a_job_that_runs_on_one_type_only_gets_it() -> None:
    """The short job would gain a little from the fast type, the long one can use no other."""
    short, long = worth(60.0, 1.0, 0.9), worth(168 * HOUR_S, 1.0)
    assert shared([short, long], [1, 1], [1, 1]) == [SLOW, FAST]


def test_one_type_only_counts_by_its_worth_where_it_is_not_first() -> None:
    """A longer job waits for the only type that it may have; a shorter one gets it."""
    other = worth(HOUR_S, 1.0, 0.5)
    longer, shorter = ([*worths((1.0,), (FAST,), 1, s, is_first=False)] for s in (6e4, 60.0))
    assert shared([longer, other], [1, 1], [1, 1]) == [None, FAST]
    assert shared([shorter, other], [1, 1], [1, 1]) == [FAST, SLOW]


def test_a_gang_without_room_takes_its_next_type_or_none() -> None:
    """The gang of four has the largest regret, but fits the slow type only."""
    gang, single = worth(60.0, 1.0, 0.1, num_gpus=4), worth(HOUR_S, 1.0, 0.5)
    assert shared([gang, single], [2, 4], [4, 1]) == [SLOW, FAST]
    assert shared([gang, single], [2, 2], [4, 1]) == [None, FAST]


def test_with_two_types_the_sum_of_worths_is_the_greatest() -> None:
    """Brute force finds no better assignment of single GPUs."""
    draw = Random(3).random
    for _ in range(50):
        jobs = [worth(60.0 + HOUR_S * draw(), draw(), draw()) for _ in range(6)]
        found = shared(jobs, [3, 3], [1] * 6)
        by_type = [dict((index, value) for value, index in job) for job in jobs]
        sums = [
            sum(values[index] for values, index in zip(by_type, types, strict=True))
            for types in {*permutations([FAST] * 3 + [SLOW] * 3)}
        ]
        ours = sum(v[i] for v, i in zip(by_type, found, strict=True) if i is not None)
        assert None not in found
        assert ours == pytest.approx(max(sums))
