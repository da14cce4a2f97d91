"""The cost of averaging is a median, so that one slow average changes little."""

from __future__ import annotations

import pytest

from hadar_slurm.runtime.averaging.costs import Costs


def of(*made_s: float) -> Costs:
    """Return the costs after averages that took these times."""
    costs = Costs()
    for slot, seconds in enumerate(made_s, start=1):
        costs.now.save_s.append(1.0)
        costs.now.read_s.append(0.5)
        costs.now.load_s.append(0.25)
        costs.make(slot, seconds)
    return costs


@pytest.mark.parametrize(
    ("made_s", "total_s"),
    [
        ((), 0.0),
        ((3.0,), 4.75),
        ((60.0,), 61.75),
        ((60.0, 3.0), 4.75),
        ((3.0, 60.0), 4.75),
        ((3.0, 4.0, 60.0), 5.75),
        ((3.0, 60.0, 50.0), 51.75),
        ((60.0, 60.0, 60.0, 3.0, 3.0), 4.75),
    ],
)
def test_one_that_is_slow_is_left_out_and_two_in_three_count(
    made_s: tuple[float, ...], total_s: float
) -> None:
    """Each part costs its median in the newest three averages, the lower of two."""
    assert of(*made_s).total_s == total_s


def test_a_disk_that_stands_still_once_while_it_saves_changes_nothing() -> None:
    """Writing a contribution is a part of the cost, like averaging."""
    costs = of(3.0, 3.0)
    costs.now.save_s.append(60.0)
    assert costs.total_s == 4.75


def test_what_we_have_measured_counts_before_what_we_are_told() -> None:
    """A measured time has priority over the noted one; slot 0 is not an average."""
    costs = of(3.0)
    costs.take_over(1, 2.0)
    costs.take_over(0, 0.0)
    assert costs.now.made_s == {1: 3.0}
    costs.take_over(2, 2.0)
    assert costs.now.made_s == {1: 3.0, 2: 2.0}


def test_what_fails_has_not_taken_long() -> None:
    """A failed attempt is repeated, and its time is not recorded."""
    costs = Costs()
    with pytest.raises(OSError, match="full"), costs.measure(costs.now.save_s):
        raise OSError("full")
    assert not costs.now.save_s


def test_consolidations_with_the_optimisers_state_are_counted_apart() -> None:
    """They cost several times as much; before one was measured, that is estimated."""
    costs = of(3.0)
    assert costs.with_state_s == 4 * costs.total_s
    costs.is_with_state = True
    costs.make(2, 30.0)
    assert costs.total_s == 4.75
    assert costs.with_state_s == 30.0
    only = Costs(is_with_state=True)
    only.make(1, 5.0)
    assert only.total_s == 5.0
