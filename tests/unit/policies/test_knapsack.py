"""Exchanging jobs so that idle GPUs are used: against exhaustive search."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from hypothesis import event, given
from hypothesis import strategies as st

from hadar_slurm.policies.hadar.knapsack import Item, refit


def test_a_gang_of_two_makes_room_for_one_of_four() -> None:
    """18 of 20 GPUs are used; a gang of two is exchanged for a gang of four of similar worth."""
    taken = [Item(i, 4, 1.0) for i in range(4)] + [Item(4, 2, 0.51)]
    assert refit(taken, [Item(5, 4, 0.5)], 2, 0.01) == {0, 1, 2, 3, 5}


def test_a_much_shorter_job_stays() -> None:
    """A job that is almost done is not exchanged to use two more GPUs."""
    taken = [Item(i, 4, 1.0) for i in range(4)] + [Item(4, 2, 90.0)]
    assert refit(taken, [Item(5, 4, 0.5)], 2, 0.01) is None


def test_nothing_idle_nothing_to_do() -> None:
    """Without idle GPUs, or without a job too large for them, the queue's choice stands."""
    assert refit([Item(0, 2, 1.0)], [Item(1, 4, 5.0)], 0, 1.0) is None
    assert refit([Item(0, 2, 1.0)], [Item(1, 1, 5.0)], 2, 1.0) is None
    assert refit([], [Item(1, 4, 5.0)], 2, 1.0) is None


items = st.lists(st.tuples(st.integers(1, 6), st.integers(1, 50)), min_size=1, max_size=6)


@given(taken=items, waiting=items, room=st.integers(1, 6), tolerance=st.sampled_from((0.0, 0.2)))
def test_no_set_of_that_worth_uses_more(
    taken: Sequence[tuple[int, int]],
    waiting: Sequence[tuple[int, int]],
    room: int,
    tolerance: float,
) -> None:
    """The result is the best set: most GPUs first, then most worth."""
    held = [Item(i, gpus, float(worth)) for i, (gpus, worth) in enumerate(taken)]
    queue = [
        Item(len(held) + i, gpus, float(worth))
        for i, (gpus, worth) in enumerate(waiting)
        if gpus > room
    ]
    used, worth = sum(i.num_gpus for i in held), sum(i.worth for i in held)
    every = [*held, *queue]
    best = (used, worth)
    for size in range(len(every) + 1):
        for chosen in combinations(every, size):
            gpus, value = sum(i.num_gpus for i in chosen), sum(i.worth for i in chosen)
            if used < gpus <= used + room and value >= worth * (1 - tolerance) - 1e-9:
                best = max(best, (gpus, value)) if best[0] > used else (gpus, value)
    found = refit(held, queue, room, tolerance)
    event("traded" if found else "kept")
    if found is None:
        assert best[0] == used
    else:
        sums = [(i.num_gpus, i.worth) for i in every if i.position in found]
        assert (sum(g for g, _ in sums), sum(w for _, w in sums)) == best
