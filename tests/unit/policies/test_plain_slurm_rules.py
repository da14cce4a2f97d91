"""Rules that policy slurm follows as a real Slurm: which nodes, and when starts are planned."""

from __future__ import annotations

import math
from functools import partial

import pytest
from builders import a_cluster
from hypothesis import given
from hypothesis import strategies as st

from hadar_slurm.core.job import Shape
from hadar_slurm.lab.policies.slurm.selection import Nodes, Taken, take_any, take_nodes
from hadar_slurm.lab.policies.slurm.timeline import FutureRoom, HeldNodes, LimitEnd

SIX = "4xK80,4xK80,4xK80,8xV100,8xV100,8xV100"


def any_of(free: list[int], size: int, jobs_on: list[int] | None = None) -> dict[int, int] | None:
    """Return what --gpus=SIZE takes of nodes with these numbers of free GPUs."""
    nodes = Nodes.of(a_cluster(SIX))
    candidates = [at for at, count in enumerate(free) if count]
    found = take_any(candidates, size, nodes, room=free, jobs_on=jobs_on or [0] * len(free))
    return dict(found) if found else None


def test_a_node_with_enough_gpus_goes_before_several() -> None:
    """Of the lowest weight that has any, and of these the one with the most jobs."""
    assert any_of([1, 4, 4, 8, 8, 8], 3) == {1: 3}
    assert any_of([1, 4, 4, 8, 8, 8], 3, [3, 0, 1, 0, 0, 0]) == {2: 3}
    assert any_of([1, 0, 0, 8, 8, 8], 3) == {0: 1, 3: 2}


def test_of_one_weight_nodes_with_more_free_gpus_go_first() -> None:
    """Five of 2, 1 and 3: three, and two of the next; the node in between is left."""
    assert any_of([2, 1, 3, 8, 8, 8], 5) == {0: 2, 2: 3}
    assert any_of([2, 1, 3, 8, 8, 8], 6) == {0: 2, 1: 1, 2: 3}


def test_the_first_nodes_give_all_but_one_gpu_for_each_behind() -> None:
    """Ten of 4, 4 and 8: nodes give in their order, and the last at least one."""
    assert any_of([4, 4, 4, 8, 8, 8], 10) == {0: 4, 1: 4, 2: 2}
    assert any_of([1, 0, 1, 8, 8, 8], 9) == {0: 1, 2: 1, 3: 7}
    assert any_of([0, 0, 4, 2, 2, 2], 9) == {2: 4, 3: 2, 4: 2, 5: 1}
    assert any_of([1, 1, 1, 1, 1, 1], 7) is None


def test_newer_slurms_give_in_the_order_in_which_they_choose() -> None:
    """Eight of 2, 4 and 3: from 24.11 on the node that is chosen last gives less."""
    nodes, free = Nodes.of(a_cluster(SIX)), [2, 4, 3, 0, 0, 0]
    find = partial(take_any, range(3), 8, nodes, room=free, jobs_on=[0] * 6)
    assert find() == {0: 2, 1: 4, 2: 2}
    assert find(is_newer=True) == {0: 1, 1: 4, 2: 3}


def nodes_of(free: list[int], number: int, size: int, jobs_on: list[int] | None = None) -> Taken:
    """Return what -N NUMBER --gpus-per-node=SIZE takes."""
    nodes = Nodes.of(a_cluster(SIX))
    candidates = [at for at, count in enumerate(free) if count >= size]
    return take_nodes(candidates, Shape(number, size), nodes, jobs_on or [0] * len(free)) or {}


def test_several_nodes_come_from_the_run_that_fits_best() -> None:
    """One weight after the other; in the last run the node with the fewest idle CPUs."""
    assert nodes_of([4, 0, 4, 8, 8, 8], 2, 4) == {0: 4, 2: 4}
    assert nodes_of([4, 4, 0, 8, 8, 8], 3, 4, [0, 0, 0, 0, 0, 1]) == {0: 4, 1: 4, 5: 4}
    assert nodes_of([0, 0, 0, 8, 0, 8], 3, 4) == {}


@pytest.mark.parametrize(
    ("ends", "start"),
    [
        # A group of half a minute beyond the half minute in which the first ends.
        ((10.0, 55.0, 500.0), 55.0),
        ((10.0, 95.0, 500.0), 10.0),
        # It is held up by nodes that the job may not have no more than by those that it may.
        ((500.0, 525.0, 900.0), 525.0),
    ],
)
def test_a_later_start_is_the_last_end_of_a_group(ends: tuple[float, ...], start: float) -> None:
    """Any one node would do: the start is planned as late as the group ends."""
    room = FutureRoom([0, 0, 0], [0, 0, 0], 30.0, [[0], [1], [2]])
    for at, end_s in enumerate(ends):
        room.run(LimitEnd(end_s, 1 << at, {at: 1}))
    found = room.soonest(
        0b111, lambda free, jobs_on, mask: {free.index(1): 1} if any(free) else None
    )
    assert found is not None
    assert found[0] == start


def test_groups_grow() -> None:
    """Half a minute, a minute, two and so on from the first end, as far as needed."""
    room = FutureRoom([0] * 6, [0] * 6, 30.0, [[at] for at in range(6)])
    for at, end_s in enumerate((10.0, 70.0, 140.0, 145.0, 260.0, 270.0)):
        room.run(LimitEnd(end_s, 1 << at, {at: 1}))

    def start(number: int) -> float | None:
        found = room.soonest(0b111111, lambda free, *_: {0: 1} if sum(free) >= number else None)
        return found[0] if found else None

    assert [start(number) for number in range(1, 8)] == [10, 70, 145, 145, 270, 270, None]


def test_newer_slurms_test_a_later_start_by_what_ends_before_and_within() -> None:
    """From 24.11 on a start at 150 s counts all ends before it, and none after the time given."""
    room = FutureRoom([0] * 3, [0] * 3, 30.0, [[at] for at in range(3)])
    for at, end_s in enumerate((100.0, 140.0, 500.0)):
        room.run(LimitEnd(end_s, 1 << at, {at: 1}))

    def start(number: int, since_s: float, until_s: float = math.inf) -> float | None:
        found = room.soonest(
            0b111, lambda free, *_: {0: 1} if sum(free) >= number else None, since_s, until_s
        )
        return found[0] if found else None

    assert [start(number, 0.0) for number in (1, 2, 3)] == [140.0, 140.0, 500.0]
    assert [start(number, 150.0) for number in (1, 2, 3)] == [150.0, 150.0, 500.0]
    assert [start(number, 120.0, 400.0) for number in (1, 2, 3)] == [120.0, 140.0, None]


HOLDS = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 12), st.integers(1, 7)), max_size=6)


@given(HOLDS, st.integers(0, 30), st.integers(1, 12), st.integers(1, 7))
def test_nodes_are_held_for_their_time(
    holds: list[tuple[int, int, int]], since: int, lasts: int, nodes: int
) -> None:
    """As found by trying each second; a job may not end in the second in which a hold begins."""
    line = HeldNodes(0.0, 1000.0, 1.0, 0b111)
    for begin, length, held in holds:
        line.hold(float(begin), float(begin + length), held)

    def held_at(second: int) -> int:
        found = 0
        for begin, length, which in holds:
            found |= which if begin <= second < begin + length else 0
        return found

    seconds = range(since, since + lasts)
    assert line.is_held(float(since), float(since + lasts), nodes) == any(
        nodes & held_at(second) for second in seconds
    )
    mask, _ = line.usable(float(since), float(since + lasts))
    free = 0b111
    for second in (*seconds, since + lasts):
        free &= ~held_at(second)
    assert mask & 0b111 == free
