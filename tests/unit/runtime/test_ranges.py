"""Steps are dealt so that each is trained once, with copies that join, leave and lose steps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hadar_slurm.handoff import shares
from hadar_slurm.runtime.files.ranges import Ranges, deal

STEPS = st.integers(0, 60)
SETS = st.frozensets(STEPS)


def as_ranges(steps: frozenset[int]) -> Ranges:
    """Return a set of steps as ranges."""
    return Ranges.of((step, step + 1) for step in steps)


@given(SETS, SETS, STEPS)
def test_ranges_are_sets_of_steps(one: frozenset[int], other: frozenset[int], count: int) -> None:
    """Equal sets have equal ranges."""
    mine, theirs = as_ranges(one), as_ranges(other)
    assert list(mine) == sorted(one)
    assert len(mine) == len(one)
    assert mine | theirs == as_ranges(one | other)
    assert mine - theirs == as_ranges(one - other)
    assert list(mine.first(count)) == sorted(one)[:count]


@pytest.mark.parametrize("pair", [(3, 2), (-1, 4)])
def test_what_is_no_range_is_refused(pair: tuple[int, int]) -> None:
    """Ranges may come from a damaged file."""
    with pytest.raises(ValueError, match="is no range"):
        Ranges.of([pair])


@given(
    st.integers(0, 10_000),
    st.dictionaries(st.integers(0, 7), st.floats(0.01, 1000.0), min_size=1),
)
def test_shares_add_up_and_copies_end_together(budget: int, speeds: dict[int, float]) -> None:
    """A copy's quota is within one step of its share."""
    quotas = shares(budget, speeds)
    assert sum(quotas.values()) == budget
    total = sum(speeds.values())
    assert all(abs(quotas[copy] - budget * speeds[copy] / total) < 1 for copy in speeds)


def test_a_copy_without_speed_gets_nothing() -> None:
    """Without any copy the result is empty."""
    assert shares(10, {0: 2.0, 1: 0.0, 4: 3.0}) == {0: 4, 1: 0, 4: 6}
    assert shares(10, {}) == {}


@given(st.data())
def test_every_step_is_done_once_while_copies_come_and_go(data: st.DataObject) -> None:
    """A contribution may be complete, partial or lost; lost steps are dealt again."""
    total = data.draw(st.integers(1, 200))
    done, everything = Ranges(), Ranges.of([(0, total)])
    for _ in range(400):
        if done == everything:
            break
        copies = data.draw(st.sets(st.integers(0, 4), min_size=1))
        quotas = {copy: data.draw(st.integers(0, 40)) for copy in copies}
        dealt = deal(everything - done, quotas)
        assert sum(map(len, dealt.values())) == min(len(everything - done), sum(quotas.values()))
        for copy in sorted(copies):
            kept = dealt[copy].first(data.draw(st.integers(0, 60)))
            assert not len(kept) - len(kept - done)
            before = len(done)
            done = done | kept
            assert len(done) == before + len(kept)
    for copy in range(total):
        done = done | deal(everything - done, {copy: 1})[copy]
    assert done == everything


def test_what_was_lost_is_handed_out_first() -> None:
    """They are dealt in the next interval, before new steps."""
    done = Ranges.of([(0, 10), (20, 30)])
    dealt = deal(Ranges.of([(0, 100)]) - done, {1: 4, 0: 8})
    assert dealt == {0: Ranges.of([(10, 18)]), 1: Ranges.of([(18, 20), (30, 32)])}
