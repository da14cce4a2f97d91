"""Intervals have the configured length, or more, to limit the part of time that averaging takes."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.torch
pytest.importorskip("torch", reason="needs PyTorch")

from hadar_slurm.handoff import Assignment, write_assignment  # noqa: E402
from hadar_slurm.runtime.averaging.slots import SlotEnd  # noqa: E402
from hadar_slurm.runtime.dealing import Dealer  # noqa: E402
from hadar_slurm.runtime.settings import Settings  # noqa: E402

LONG = SlotEnd(slot=3, total_steps=10_000, length_s=1000.0)
SPEEDS = {0: 2.0, 1: 1.0}


def quotas(end: SlotEnd) -> dict[int, int]:
    """Return the number of steps of each copy in the next interval."""
    return {copy: len(steps) for copy, steps in end.dealt.items()}


@pytest.mark.parametrize(("cost_s", "length_s"), [(0.0, 100.0), (5.0, 100.0), (15.0, 300.0)])
def test_an_assignment_is_scaled_to_what_a_consolidation_costs(
    tmp_path: Path, cost_s: float, length_s: float
) -> None:
    """An interval that is three times as long has quotas that are three times as large."""
    path = tmp_path / "assignment"
    write_assignment(path, Assignment(1, {0: 50, 1: 25, 7: 9}, 100.0))
    dealt = Dealer(Settings(cost_part=0.05), path).deal(LONG, SPEEDS, cost_s)
    assert dealt.length_s == pytest.approx(length_s)
    assert quotas(dealt) == {0: 50 * length_s / 100, 1: 25 * length_s / 100}


def test_who_is_here_and_not_named_has_an_average_part(tmp_path: Path) -> None:
    """Slurm may start a copy without hadard; an assigned quota of 0 gives a copy no steps."""
    path = tmp_path / "assignment"
    write_assignment(path, Assignment(1, {0: 50, 1: 30, 3: 0}, 100.0))
    here = {**SPEEDS, 2: 0.0, 3: 0.0}
    assert quotas(Dealer(Settings(), path).deal(LONG, here, 0.0)) == {0: 50, 1: 30, 2: 40}


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
    dealt = quotas(Dealer(Settings(), path).deal(end, dict.fromkeys(asked, 0.0), cost_s))
    total = sum(dealt.values())
    assert total == min(left, round(sum(asked.values()) * max(1.0, cost_s / 0.05 / 10.0)))
    share = total / sum(asked.values())
    assert all(abs(dealt[copy] - steps * share) < 1 for copy, steps in asked.items())


def test_a_slot_is_at_most_twice_as_long_as_the_last() -> None:
    """The limit protects from a disk that stalls; it does not apply to the configured length."""
    dealer = Dealer(Settings(slot_s=100.0), None)
    lengths = []
    end = SlotEnd(slot=0, total_steps=10**6)
    for cost_s in (60.0, 60.0, 60.0, 60.0, 60.0, 60.0, 1.0):
        end = dealer.deal(end, SPEEDS, cost_s)
        lengths.append(end.length_s)
    assert lengths == [100.0, 200.0, 400.0, 800.0, 1200.0, 1200.0, 100.0]
    longer = Dealer(Settings(slot_s=500.0), None)
    assert longer.deal(end, SPEEDS, 0.0).length_s == 500.0


@pytest.mark.parametrize("part", [0.0, -1.0, 1.5])
def test_a_part_that_is_none_is_refused(part: float) -> None:
    """A part of 0 would make intervals endless."""
    with pytest.raises(ValueError, match="cost_part must be above 0"):
        Settings(cost_part=part)
