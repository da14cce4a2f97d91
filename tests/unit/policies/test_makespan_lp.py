"""The makespan program: cases by hand, its prices, and the bound from another program."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from builders import a_cluster, a_spec, some_rates
from hypothesis import given
from hypothesis import strategies as st

from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.job import JobSpec
from hadar_slurm.lab.study.bounds import bounds
from hadar_slurm.policies.hadar.makespan_lp import Demand, Horizon, find_horizon
from hadar_slurm.policies.policy import SolverLimits

KINDS = ("K80", "V100")


def demand(job_id: str, gpus: int, steps: float, *throughputs: float) -> Demand:
    return Demand(JobId(job_id), (gpus, throughputs), gpus, steps, tuple(throughputs))


def horizon(demands: Sequence[Demand], *capacity: int, now_s: float = 0.0) -> Horizon:
    return find_horizon(demands, capacity, now_s, SolverLimits())


def test_one_job_alone_sets_the_horizon_and_gpus_cost_nothing() -> None:
    """With more GPUs than jobs, a GPU costs nothing."""
    found = horizon([demand("1", 1, 1000, 10.0)], 2, now_s=50.0)
    assert found.ends_s == pytest.approx(150.0)
    assert found.prices == pytest.approx((0.0,))
    assert found.planned[JobId("1")].seconds == pytest.approx((100.0,))
    assert found.planned[JobId("1")].left_s(500) == pytest.approx(50.0)


def test_on_full_gpus_a_gpu_second_is_worth_its_share_of_the_horizon() -> None:
    """Three jobs of 10 s on two GPUs take 15 s; one GPU-second less saves half a second."""
    found = horizon([demand(str(i), 1, 100, 10.0) for i in range(3)], 2)
    assert found.ends_s == pytest.approx(15.0)
    assert found.prices == pytest.approx((0.5,))


def test_two_types_and_two_jobs() -> None:
    """Job 1 needs the V100; job 2 gains little from it and uses it for 20 s."""
    found = horizon([demand("1", 1, 1000, 0.0, 10.0), demand("2", 1, 1000, 8.0, 10.0)], 1, 1)
    assert found.ends_s == pytest.approx(120.0)
    assert found.planned[JobId("1")].seconds == pytest.approx((0.0, 100.0))
    assert found.planned[JobId("2")].seconds == pytest.approx((100.0, 20.0), rel=1e-4)


jobs = st.lists(
    st.tuples(
        st.sampled_from((1, 2, 4)),
        st.integers(10, 100_000),
        st.sampled_from((0.5, 1.0, 4.0)),
        st.sampled_from((1.0, 2.0, 10.0)),
    ),
    min_size=1,
    max_size=12,
)


@given(jobs=jobs)
def test_the_horizon_is_the_bound_on_the_total_time(
    jobs: Sequence[tuple[int, int, float, float]],
) -> None:
    """Grouping short jobs changes nothing, and the program of the bounds agrees."""
    specs: list[JobSpec] = [
        a_spec(str(i), gpus, steps=steps, throughputs=some_rates(K80=slow, V100=fast))
        for i, (gpus, steps, slow, fast) in enumerate(jobs)
    ]
    demands = [
        demand(
            s.job_id, s.num_gpus, s.total_steps, *(s.throughputs.on(k, s.num_gpus) for k in KINDS)
        )
        for s in specs
    ]
    found = horizon(demands, 4, 8)
    least_s = bounds(specs, a_cluster("4xK80,4xV100,4xV100")).ttd_gang_s
    assert found.ends_s == pytest.approx(least_s, rel=1e-6)
    assert all(price >= 0 for price in found.prices)
    for job_id, planned in found.planned.items():
        assert sum(planned.seconds) <= found.ends_s * (1 + 1e-5), job_id
