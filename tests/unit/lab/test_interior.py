"""The interior point method: correct optimum, interior solution, and infeasible programs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hadar_slurm.errors import SolverError
from hadar_slurm.lab.policies.interior import Floats, Inside, ShareProgram, solve_inside
from hadar_slurm.policies.solver import LinearProgram, Method, solve_lp

positive = st.floats(0.01, 100.0)


@st.composite
def programs(draw: st.DrawFn) -> ShareProgram:
    """Make random programs: speeds, some of them 0, and types of various sizes."""
    jobs, gpu_types = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    throughputs = np.array(
        draw(st.lists(positive, min_size=jobs * gpu_types, max_size=jobs * gpu_types))
    )
    throughputs = throughputs.reshape(jobs, gpu_types)
    if gpu_types > 1:
        # Every job trains on the first type.
        throughputs[:, 1:] *= np.array(
            draw(
                st.lists(
                    st.booleans(), min_size=jobs * (gpu_types - 1), max_size=jobs * (gpu_types - 1)
                )
            )
        ).reshape(jobs, gpu_types - 1)
    gangs = draw(st.lists(st.sampled_from((1.0, 2.0, 4.0, 8.0)), min_size=jobs, max_size=jobs))
    capacity = draw(
        st.lists(st.sampled_from((1.0, 4.0, 20.0)), min_size=gpu_types, max_size=gpu_types)
    )
    return ShareProgram(
        np.array(gangs), np.array(capacity), throughputs=throughputs, has_level=True
    )


def by_simplex(program: ShareProgram) -> float:
    """Return the optimal level computed by the simplex method."""
    assert program.throughputs is not None
    jobs, gpu_types = program.throughputs.shape
    size, infinite = jobs * gpu_types, np.inf
    job, gpu_type = np.divmod(np.arange(size), gpu_types)
    rows = np.concatenate([job, np.arange(jobs), jobs + gpu_type, jobs + gpu_types + job])
    columns = np.concatenate([np.arange(size), np.full(jobs, size), np.arange(size)])
    columns = np.concatenate([columns, np.arange(size)])
    values = np.concatenate(
        [program.throughputs.ravel(), -np.ones(jobs), program.gangs[job], np.ones(size)]
    )
    found = solve_lp(
        LinearProgram(
            cost=np.append(np.zeros(size), -1.0),
            rows=rows.astype(np.int32),
            columns=columns.astype(np.int32),
            values=values,
            row_lower=np.append(np.zeros(jobs), np.full(gpu_types + jobs, -infinite)),
            row_upper=np.concatenate([np.full(jobs, infinite), program.capacity, np.ones(jobs)]),
            lower=np.zeros(size + 1),
            upper=np.full(size + 1, infinite),
        ),
        method=Method.SIMPLEX,
    )
    return -found.objective


def assert_feasible(program: ShareProgram, found: Inside) -> None:
    shares, tiny = found.shares, 1e-6
    assert shares.min() >= 0
    assert (shares.sum(axis=1) <= 1 + tiny).all()
    assert (program.gangs @ shares <= program.capacity * (1 + tiny)).all()
    if program.throughputs is not None:
        needs = 0.0 if program.needs is None else program.needs
        reached = (program.throughputs * shares).sum(axis=1)
        assert (reached >= (needs + found.level) * (1 - tiny)).all()


@given(program=programs())
def test_the_optimum_is_that_of_the_simplex_method(program: ShareProgram) -> None:
    """The level equals that of the simplex method, and all constraints hold."""
    found = solve_inside(program)
    assert_feasible(program, found)
    assert found.level == pytest.approx(by_simplex(program), rel=1e-6)


def two_equal_jobs(**more: Floats) -> ShareProgram:
    """Return two one-GPU jobs on a type of one GPU and a type of two."""
    return ShareProgram(np.ones(2), np.array([1.0, 2.0]), **more)


def test_where_all_is_optimal_the_answer_is_inside() -> None:
    """All shares and all slacks are well above 0: the solution is not a corner."""
    program = two_equal_jobs(throughputs=np.array([[4.0, 1.0], [4.0, 1.0]]), needs=np.ones(2))
    shares = solve_inside(program).shares
    assert shares.min() > 0.05
    assert shares.sum(axis=1).max() < 0.95
    assert shares[:, 0].sum() < 0.95


def test_jobs_alike_get_the_very_same_shares() -> None:
    """Equal jobs get bitwise equal shares, so that ties between them are ties."""
    shares = solve_inside(two_equal_jobs(cost=np.array([[-4.0, -1.0], [-4.0, -1.0]]))).shares
    assert (shares[0] == shares[1]).all()
    assert shares[0] == pytest.approx([0.5, 0.5], abs=1e-6)


def test_what_cannot_be_is_an_error() -> None:
    """Two jobs need 3 steps/s each, and the only GPU provides 4 in all."""
    throughputs, needs = np.array([[4.0], [4.0]]), np.array([3.0, 3.0])
    with pytest.raises(SolverError, match="no shares satisfy"):
        solve_inside(ShareProgram(np.ones(2), np.ones(1), throughputs=throughputs, needs=needs))
