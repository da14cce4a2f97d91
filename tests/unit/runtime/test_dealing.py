"""Intervals are as short as the cost of averaging allows, whatever the length of a round is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.torch
pytest.importorskip("torch", reason="needs PyTorch")

from hadar_slurm.handoff import Assignment, write_assignment  # noqa: E402
from hadar_slurm.runtime.averaging.modes import IntervalKind  # noqa: E402
from hadar_slurm.runtime.dealing import Dealer  # noqa: E402
from hadar_slurm.runtime.files.records import SlotEnd  # noqa: E402
from hadar_slurm.runtime.settings import Settings  # noqa: E402

LONG = SlotEnd(slot=3, total_steps=10_000, length_s=1000.0)
SPEEDS = {0: 2.0, 1: 1.0}


def quotas(end: SlotEnd) -> dict[int, int]:
    """Return the number of steps of each copy in the next interval."""
    return {copy: len(steps) for copy, steps in end.dealt.items()}


@pytest.mark.parametrize(("cost_s", "length_s"), [(0.0, 4.0), (0.1, 4.0), (15.0, 300.0)])
def test_a_round_of_hadard_does_not_set_the_length(
    tmp_path: Path, cost_s: float, length_s: float
) -> None:
    """Quotas for 360 s give the proportions; the cost gives the length, above the least one."""
    path = tmp_path / "assignment"
    write_assignment(path, Assignment(1, {0: 720, 1: 360, 7: 90}, 360.0))
    dealt = Dealer(Settings(slot_s=4.0, delay=0.0), path).deal(LONG, SPEEDS, cost_s)
    assert dealt.length_s == pytest.approx(length_s)
    assert quotas(dealt) == {0: 2 * length_s, 1: length_s}


def test_without_a_choice_of_the_user_intervals_last_some_seconds(tmp_path: Path) -> None:
    """The default is short, with and without an assignment; synchronous intervals take a minute."""
    path = tmp_path / "assignment"
    write_assignment(path, Assignment(1, {0: 720, 1: 360}, 360.0))
    for assignment in (None, path):
        dealer = Dealer(Settings(), assignment)
        assert 2.0 <= dealer.deal(LONG, SPEEDS, 0.0).length_s <= 5.0
        together = replace(dealer, kind=lambda end, here: IntervalKind.SYNCHRONOUS)
        assert together.deal(LONG, SPEEDS, 0.0).length_s == 60.0
        assert together.deal(LONG, SPEEDS, 10.0).length_s == pytest.approx(200.0)
        set_by_user = replace(together, settings=Settings(slot_s=7.0))
        assert set_by_user.deal(LONG, SPEEDS, 0.0).length_s == 7.0


def test_a_changed_assignment_is_followed_at_the_next_interval(tmp_path: Path) -> None:
    """Moves take place at the beginning of a round; intervals do not wait for it."""
    path = tmp_path / "assignment"
    dealer = Dealer(Settings(slot_s=10.0), path)
    write_assignment(path, Assignment(1, {0: 360, 1: 360}, 360.0))
    end = dealer.deal(LONG, SPEEDS, 0.0)
    assert quotas(end) == {0: 10, 1: 10}
    write_assignment(path, Assignment(2, {0: 720, 1: 0}, 360.0))
    after = dealer.deal(replace(end, slot=end.slot + 1, dealt={}), SPEEDS, 0.0)
    assert quotas(after) == {0: 20}


def test_the_slowest_copy_has_a_step_in_each_interval(tmp_path: Path) -> None:
    """Without one, its GPUs would be idle in every interval."""
    path = tmp_path / "assignment"
    write_assignment(path, Assignment(1, {0: 3600, 1: 36}, 360.0))
    dealt = Dealer(Settings(slot_s=2.0), path).deal(LONG, SPEEDS, 0.0)
    assert quotas(dealt) == {0: 100, 1: 1}
    assert dealt.length_s == pytest.approx(10.0)
    slow = Dealer(Settings(slot_s=2.0), None).deal(LONG, {0: 10.0, 1: 0.1}, 0.0)
    assert quotas(slow) == {0: 100, 1: 1}


def test_who_is_here_and_not_named_has_an_average_part(tmp_path: Path) -> None:
    """Slurm may start a copy without hadard; an assigned quota of 0 gives a copy no steps."""
    path = tmp_path / "assignment"
    write_assignment(path, Assignment(1, {0: 50, 1: 30, 3: 0}, 100.0))
    here = {**SPEEDS, 2: 0.0, 3: 0.0}
    dealer = Dealer(Settings(slot_s=100.0), path)
    assert quotas(dealer.deal(LONG, here, 0.0)) == {0: 50, 1: 30, 2: 40}


def test_without_an_assignment_speeds_fill_the_longer_slot() -> None:
    """A copy without a measured speed gets an average share."""
    dealt = Dealer(Settings(slot_s=10.0), None).deal(LONG, SPEEDS | {2: 0.0}, 2.0)
    assert dealt.length_s == pytest.approx(40.0)
    assert quotas(dealt) == {0: 80, 1: 40, 2: 60}


def test_quotas_without_a_length_are_left_as_they_are(tmp_path: Path) -> None:
    """An example is a replay, which has no clock."""
    path = tmp_path / "assignment"
    write_assignment(path, Assignment(1, {0: 5, 1: 3}, 0.0))
    dealt = Dealer(Settings(), path).deal(LONG, SPEEDS, 100.0)
    assert (dealt.length_s, quotas(dealt)) == (0.0, {0: 5, 1: 3})


@given(
    st.dictionaries(st.integers(0, 5), st.integers(1, 1000), min_size=1),
    st.integers(1, 500),
    st.floats(0, 1e6),
)
def test_no_more_is_dealt_than_is_left(
    tmp_path_factory: pytest.TempPathFactory, asked: dict[int, int], left: int, cost_s: float
) -> None:
    """The dealt steps are in proportion to the quotas, to within a step."""
    path = tmp_path_factory.mktemp("job") / "assignment"
    write_assignment(path, Assignment(1, asked, 10.0))
    end = SlotEnd(slot=0, total_steps=left, length_s=1e9)
    settings = Settings(slot_s=10.0, delay=0.0)
    dealt = quotas(Dealer(settings, path).deal(end, dict.fromkeys(asked, 0.0), cost_s))
    total = sum(dealt.values())
    assert total == min(left, round(sum(asked.values()) * max(1.0, cost_s / 0.05 / 10.0)))
    share = total / sum(asked.values())
    assert all(abs(dealt[copy] - steps * share) < 1 for copy, steps in asked.items())


def test_an_interval_beyond_a_minute_is_at_most_twice_as_long_as_the_last() -> None:
    """The limit protects from a disk that stalls; it does not apply to the configured length."""
    dealer = Dealer(Settings(slot_s=10.0, delay=0.0), None)
    lengths = []
    end = SlotEnd(slot=0, total_steps=10**6)
    for cost_s in (2.0, 60.0, 60.0, 60.0, 60.0, 60.0, 60.0, 0.1):
        end = dealer.deal(end, SPEEDS, cost_s)
        lengths.append(end.length_s)
    assert lengths == [40.0, 80.0, 160.0, 320.0, 640.0, 1200.0, 1200.0, 10.0]
    assert dealer.deal(end, SPEEDS, 60.0).length_s == 60.0
    longer = Dealer(Settings(slot_s=500.0), None)
    assert longer.deal(end, SPEEDS, 0.0).length_s == 500.0


@pytest.mark.parametrize("part", [0.0, -1.0, 1.5])
def test_a_part_that_is_none_is_refused(part: float) -> None:
    """A part of 0 would make intervals endless."""
    with pytest.raises(ValueError, match="cost_part must be above 0"):
        Settings(cost_part=part)


def test_the_optimisers_state_is_contributed_where_that_is_cheap_or_due(tmp_path: Path) -> None:
    """It is cheap if it takes its part of the shortest interval, and due every few intervals."""
    dealer = Dealer(Settings(slot_s=10.0, cost_part=0.05, optimiser_every=4), None)

    def is_asked(slot: int, with_state_s: float) -> bool:
        end = replace(LONG, slot=slot)
        return dealer.deal(end, SPEEDS, 0.1, with_state_s).with_state

    assert [is_asked(slot, 0.4) for slot in (1, 2, 3)] == [True, True, True]
    assert [is_asked(slot, 0.6) for slot in (1, 2, 3, 4)] == [False, False, True, False]
    # Not measured yet.
    assert not is_asked(0, 0.0)
    path = tmp_path / "assignment"
    write_assignment(path, Assignment(1, {0: 5, 1: 3}, 0.0))
    fixed = replace(dealer, assignment=path)
    assert fixed.deal(LONG, SPEEDS, 100.0, 400.0).with_state


def test_a_number_of_intervals_that_is_none_is_refused() -> None:
    """The state would never be written."""
    with pytest.raises(ValueError, match="optimiser_every must be 1 or more"):
        Settings(optimiser_every=0)


def test_copies_train_synchronously_after_they_had_one_state_of_the_optimiser() -> None:
    """Else equal gradients would move parameters apart; an interval of a step each does it."""
    dealer = Dealer(Settings(slot_s=10.0), None, lambda end, here: IntervalKind.SYNCHRONOUS)
    apart = replace(LONG, with_state=False, states=(2,))
    alone = replace(LONG, with_state=False, states=(2, 3))  # of a copy that was asked to save
    for end in (apart, alone):
        dealt = dealer.deal(end, SPEEDS, 0.1)
        assert not dealt.together
        assert quotas(dealt) == {0: 1, 1: 1}
        assert dealt.with_state
    assert dealer.deal(replace(LONG, states=(2, 3)), SPEEDS, 0.1).together
    assert dealer.deal(replace(LONG, slot=0), SPEEDS, 0.1).together
