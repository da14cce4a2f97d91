"""Shares of a batch: whole samples, by measured speed, so that a step is as short as it can be."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.torch
pytest.importorskip("torch", reason="needs PyTorch")

from hadar_slurm.runtime.synchronous.shares import (  # noqa: E402
    Pace,
    longest_s,
    ranges,
    split,
    split_among_all,
)

RATES = st.dictionaries(st.integers(0, 40), st.sampled_from([0.0, 0.2, 0.5, 1.0, 3.7]), min_size=1)


@given(st.integers(1, 5000), RATES, st.integers(1, 4))
def test_each_sample_is_in_one_share(batch_size: int, rates: dict[int, float], least: int) -> None:
    """Shares cut the batch into consecutive parts, with `least` samples in each that has any."""
    for shares in (split(batch_size, rates, least), split_among_all(batch_size, rates, least)):
        assert shares.keys() == rates.keys()
        assert all(count == 0 or count >= min(least, batch_size) for count in shares.values())
        cut = [number for part in ranges(shares).values() for number in part]
        assert cut == list(range(batch_size))


@given(st.integers(1, 9), st.lists(st.sampled_from([0.2, 0.5, 1.0, 2.0]), min_size=1, max_size=4))
def test_no_other_shares_make_a_shorter_step(batch_size: int, speeds: list[float]) -> None:
    """All ways to cut a small batch were tried."""
    rates = dict(enumerate(speeds))
    best = min(
        longest_s(dict(enumerate(counts)), rates)
        for counts in product(range(batch_size + 1), repeat=len(speeds))
        if sum(counts) == batch_size
    )
    assert longest_s(split(batch_size, rates), rates) == pytest.approx(best)


def test_a_copy_that_would_delay_the_others_has_no_share() -> None:
    """With 8 samples, the copy of speed 0.2 would need 5 s for one and the others 3 s for all."""
    rates = dict(enumerate((1.0, 1.0, 0.5, 0.5, 0.2)))
    assert split(8, rates) == {0: 3, 1: 3, 2: 1, 3: 1, 4: 0}
    assert split(32, rates) == {0: 10, 1: 10, 2: 5, 3: 5, 4: 2}
    assert split_among_all(8, rates)[4] == 1
    assert split_among_all(3, rates) == {0: 1, 1: 1, 2: 1, 3: 0, 4: 0}


def noted(pace: Pace, speeds: dict[int, float], steps: int) -> list[list[int]]:
    """Return the copies to be left out whenever shares were due to be looked at."""
    found = []
    for _ in range(steps):
        counts = pace.shares(32)
        train_s = {copy: count / speeds[copy] for copy, count in counts.items()}
        if pace.note(counts, train_s, [0.25, 0.5]):
            found.append(pace.replace())
    return found


def test_shares_follow_measured_speeds() -> None:
    """They stay while that gains little, so that batches that were loaded ahead are used."""
    pace = Pace({0: 0.0, 1: 0.0})
    assert pace.shares(32) == {0: 16, 1: 16}
    assert noted(pace, {0: 3.0, 1: 1.0}, 3) == [[]]
    assert pace.shares(32) == {0: 24, 1: 8}
    noted(pace, {0: 2.95, 1: 1.05}, 30)
    assert pace.shares(32) == {0: 24, 1: 8}
    assert pace.steps_per_s() == pytest.approx({0: 2.95 / 32, 1: 1.05 / 32}, rel=0.05)
    assert pace.shares(64) == {0: 47, 1: 17}
    assert pace.costs_s()[0] == 0.25


def test_a_copy_that_is_far_too_slow_is_left_out() -> None:
    """A step without it is shorter than one in which it trains a single sample."""
    pace = Pace({0: 0.0, 1: 0.0})
    assert noted(pace, {0: 40.0, 1: 0.5}, 24) == [[], [], [], [1]]


def test_a_copy_that_was_delayed_once_is_not_left_out() -> None:
    """It stays with a small share, and its next measurement gives it a larger one."""
    pace = Pace({0: 0.0, 1: 0.0})
    assert noted(pace, {0: 40.0, 1: 40.0}, 12) == [[], [], []]
    assert noted(pace, {0: 40.0, 1: 0.5}, 12) == [[]]
    assert pace.shares(32) == {0: 31, 1: 1}
    assert noted(pace, {0: 40.0, 1: 40.0}, 24) == [[]]
    assert pace.shares(32) == {0: 16, 1: 16}


def test_one_step_says_nothing_of_the_cost() -> None:
    """The median of several counts."""
    pace = Pace({0: 1.0, 1: 1.0})
    noted(pace, {0: 1.0, 1: 1.0}, 3)
    assert pace.costs_s() == (0.0, 0.0)
    noted(pace, {0: 1.0, 1: 1.0}, 3)
    assert pace.costs_s() == (0.25, 16.0)


def test_batch_statistics_need_two_samples() -> None:
    """A copy with BatchNorm trains two samples at least in each part of its share."""
    pace = Pace({0: 100.0, 1: 1.0}, least=2)
    assert pace.shares(32, parts=2) == {0: 28, 1: 4}


def test_a_copy_without_samples_trains_some_that_do_not_count() -> None:
    """As many as a layer of batch statistics needs, in each part."""
    pace = Pace(dict.fromkeys(range(3), 10.0), least=2)
    assert [pace.part(copy, 3) for copy in range(3)] == [
        (slice(0, 3), 3),
        (slice(2), 0),
        (slice(2), 0),
    ]
    assert pace.part(0, 12) == (slice(0, 4), 4)
    assert pace.part(2, 4, parts=2) == (slice(4), 0)
