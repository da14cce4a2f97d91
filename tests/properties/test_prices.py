"""The price of a GPU type: from U_min on an empty type to U_max on a full one."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import snapshots

from hadar_slurm.core.snapshot import Snapshot
from hadar_slurm.policies.hadar_paper.prices import ExponentialPrice, exponential_prices
from hadar_slurm.policies.hadar_paper.utility import UTILITIES, Appraisal

worths = st.floats(1e-9, 1.0)
prices = st.builds(
    lambda one, other, capacity: ExponentialPrice(min(one, other), max(one, other), capacity),
    worths,
    worths,
    st.integers(1, 200),
)


@given(price=prices)
def test_the_price_runs_from_u_min_to_u_max(price: ExponentialPrice) -> None:
    """k(0) = U_min and k(c) = U_max, and the price is constant beyond both ends."""
    assert price.at(0) == pytest.approx(price.u_min)
    assert price.at(price.capacity) == pytest.approx(price.u_max)
    assert price.at(-1) == price.at(0)
    assert price.at(price.capacity + 1) == price.at(price.capacity)


@given(price=prices, one=st.floats(0, 1), other=st.floats(0, 1))
def test_the_price_never_falls_with_use(price: ExponentialPrice, one: float, other: float) -> None:
    """More use never lowers the price."""
    less, more = sorted((one * price.capacity, other * price.capacity))
    assert price.at(less) <= price.at(more) * (1 + 1e-12)


@given(price=prices, share=st.floats(0, 1))
def test_the_price_is_exponential(price: ExponentialPrice, share: float) -> None:
    """The logarithm of the price is linear in the share of the type in use."""
    line = (1 - share) * math.log(price.u_min) + share * math.log(price.u_max)
    assert math.log(price.at(share * price.capacity)) == pytest.approx(line)


@given(price=prices, most=st.integers(1, 20))
def test_the_steps_cover_the_capacity(price: ExponentialPrice, most: int) -> None:
    """There are at most `most` steps, with the capacity as total units, and prices never fall."""
    steps = list(price.segments(most))
    assert 1 <= len(steps) <= most
    assert sum(step.gpus for step in steps) == pytest.approx(price.capacity)
    assert all(step.gpus > 0 for step in steps)
    costs = [step.price for step in steps]
    assert all(a <= b * (1 + 1e-12) for a, b in pairwise(costs))
    assert price.u_min * (1 - 1e-9) <= costs[0]
    assert costs[-1] <= price.u_max * (1 + 1e-9)


@given(price=prices)
def test_a_step_costs_what_its_middle_costs(price: ExponentialPrice) -> None:
    """With one step per unit, the first GPU costs k(1/2) and the last k(c - 1/2)."""
    steps = list(price.segments(price.capacity))
    assert [step.gpus for step in steps] == pytest.approx([1.0] * price.capacity)
    assert steps[0].price == pytest.approx(price.at(0.5))
    assert steps[-1].price == pytest.approx(price.at(price.capacity - 0.5))


@pytest.mark.parametrize("utility", UTILITIES)
@given(snapshot=snapshots())
def test_every_type_that_a_job_runs_on_has_a_price(utility: str, snapshot: Snapshot) -> None:
    """The types on which some job runs, and no others, have a price: 0 < U_min <= U_max <= 1."""
    appraisal = Appraisal.of(snapshot, UTILITIES[utility])
    capacity = snapshot.cluster.gpus_by_type
    found = exponential_prices(snapshot.plannable, appraisal, capacity)
    assert set(found) == {
        gpu_type
        for gpu_type in capacity
        if any(
            job.spec.throughputs.on(gpu_type, job.spec.num_gpus) > 0 for job in snapshot.plannable
        )
    }
    for gpu_type, price in found.items():
        assert 0 < price.u_min <= price.u_max <= 1
        assert price.capacity == capacity[gpu_type]
