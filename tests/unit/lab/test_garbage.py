"""What one run of `hadar simulate` leaves behind."""

from __future__ import annotations

import gc

import pytest

from hadar_slurm.lab.garbage import rare_collections


def test_garbage_is_collected_as_before_after_a_simulation(
    request: pytest.FixtureRequest,
) -> None:
    """Collections are rare during the simulation only, also where it fails."""
    at_start = gc.get_threshold()
    request.addfinalizer(lambda: gc.set_threshold(*at_start))
    # An earlier test may have run hadard, which collects as rarely.
    gc.set_threshold(700, 10, 10)
    before = gc.get_threshold()
    with rare_collections():
        assert gc.get_threshold()[0] > before[0]
    assert gc.get_threshold() == before
    with pytest.raises(ValueError, match="fails"), rare_collections():
        raise ValueError("the simulation fails")
    assert gc.get_threshold() == before
