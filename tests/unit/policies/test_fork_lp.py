"""The linear program of hadare: by hand, against the bound, and its worth values."""

from __future__ import annotations

import pytest
from builders import a_cluster, a_spec, some_rates
from hypothesis import given
from hypothesis import strategies as st

from hadar_slurm.core.cluster import GpuType
from hadar_slurm.errors import SolverError
from hadar_slurm.lab.study.bounds import forking_bound_s
from hadar_slurm.policies.hadare.fork_lp import ForkDemand, solve_forking
from hadar_slurm.policies.policy import SolverLimits

V100, K80 = GpuType("V100"), GpuType("K80")
PLENTY = {V100: 99, K80: 99}


def a_demand(
    *, gpus: int = 1, copies: int = 99, max_copies: int = 99, **alone_s: float
) -> ForkDemand:
    times = {GpuType(gpu_type): time_s for gpu_type, time_s in alone_s.items()}
    return ForkDemand(times, dict.fromkeys(times, copies), dict.fromkeys(times, gpus), max_copies)


def test_a_job_in_many_copies_takes_its_time_over_all_gpus() -> None:
    """600 s on one of three equal GPUs are 200 s on all three, and the type's worth is 1."""
    found = solve_forking([a_demand(V100=600.0)], {V100: 3})
    assert found.horizon_s == pytest.approx(200.0)
    assert found.worth == [{V100: 1.0}]


def test_each_job_goes_where_it_loses_least() -> None:
    """Both jobs are faster on the V100; the one that is slower on the K80 uses only the V100."""
    suffers, does_not = a_demand(V100=100.0, K80=1000.0), a_demand(V100=100.0, K80=200.0)
    found = solve_forking([suffers, does_not], {V100: 1, K80: 1})
    # A third of job 2 runs on the V100 after job 1: 100 + 100/3 s = 2/3 of 200 s.
    assert found.horizon_s == pytest.approx(400.0 / 3)
    assert found.worth[0] == pytest.approx({V100: 1.0, K80: 0.2})
    assert found.worth[1] == {V100: 1.0, K80: 1.0}


@pytest.mark.parametrize(
    ("limit", "expected_s"),
    [
        ({"copies": 2, "max_copies": 99}, 150.0),
        ({"copies": 99, "max_copies": 3}, 200.0),
        ({"copies": 1, "max_copies": 1}, 600.0),
    ],
    ids=["two a type", "three in all", "rigid"],
)
def test_a_job_has_no_more_copies_than_it_may(limit: dict[str, int], expected_s: float) -> None:
    """600 s in two copies on each of two types, in three copies in all, and in one copy."""
    found = solve_forking([a_demand(V100=600.0, K80=600.0, **limit)], PLENTY)
    assert found.horizon_s == pytest.approx(expected_s)
    # There are more GPUs than needed, so they are free.
    assert found.worth == [{V100: 1.0, K80: 1.0}]


def test_who_runs_nowhere_is_left_out() -> None:
    """A job without a type is ignored, and no jobs give an empty result."""
    found = solve_forking([a_demand(), a_demand(K80=50.0)], {V100: 1, K80: 1})
    assert found.horizon_s == pytest.approx(50.0)
    assert found.worth == [{}, {K80: 1.0}]
    assert solve_forking([a_demand()], {V100: 1}).horizon_s == 0.0
    assert solve_forking([], {}).worth == []


def test_no_time_is_an_error() -> None:
    """A time limit of 0 raises a SolverError."""
    limits = SolverLimits(time_limit_s=0.0)
    jobs = [a_demand(V100=100.0 + n, K80=150.0 - n, copies=1) for n in range(40)]
    with pytest.raises(SolverError):
        solve_forking(jobs, {V100: 2, K80: 2}, limits)


@given(
    jobs=st.lists(
        st.tuples(
            st.sampled_from((1, 2, 4)),
            st.integers(1, 10**6),
            st.floats(0.1, 100.0),
            st.floats(0.1, 100.0),
        ),
        min_size=1,
        max_size=8,
    ),
    max_copies=st.sampled_from((1, 2, 99)),
)
def test_the_horizon_is_the_forking_bound_where_copies_are_plenty(
    jobs: list[tuple[int, int, float, float]], max_copies: int
) -> None:
    """With enough copies the horizon is the forking bound, else longer; worth is in [0, 1]."""
    specs = [
        a_spec(str(n), gpus, steps=steps, throughputs=some_rates(V100=v100, K80=k80))
        for n, (gpus, steps, v100, k80) in enumerate(jobs)
    ]
    demands = [
        a_demand(
            gpus=spec.num_gpus,
            max_copies=max_copies,
            **{
                gpu_type: spec.total_steps / spec.throughputs.on(gpu_type, spec.num_gpus)
                for gpu_type in PLENTY
            },
        )
        for spec in specs
    ]
    found = solve_forking(demands, {V100: 8, K80: 4})
    bound_s = forking_bound_s(specs, a_cluster("4xV100,4xV100,4xK80"))
    assert found.horizon_s >= bound_s * (1 - 1e-6)
    if max_copies == 99:
        assert found.horizon_s == pytest.approx(bound_s, rel=1e-6)
    for worth in found.worth:
        assert all(0.0 <= value <= 1.0 for value in worth.values())
        assert max(worth.values()) == 1.0


def test_a_copy_takes_the_gpus_of_its_gang_on_each_type() -> None:
    """Two V100s and eight K80s hold two copies each; with gangs of one they would hold ten."""
    both = {"V100": 100.0, "K80": 100.0}
    of_one = ForkDemand(both, {"V100": 9, "K80": 9}, {"V100": 1, "K80": 1}, 20)
    by_type = of_one._replace(num_gpus={"V100": 1, "K80": 4})
    gpus = {GpuType("V100"): 2, GpuType("K80"): 8}
    assert solve_forking([of_one], gpus).horizon_s == pytest.approx(10.0)
    assert solve_forking([by_type], gpus).horizon_s == pytest.approx(25.0)
