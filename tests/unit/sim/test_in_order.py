"""Values of jobs are always in the jobs' canonical order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hadar_slurm.core.cluster import JobId, natural_key
from hadar_slurm.sim.in_order import InOrder


@given(steps=st.lists(st.tuples(st.integers(0, 120), st.booleans(), st.integers())))
def test_values_are_those_of_a_sorted_mapping(steps: list[tuple[int, bool, int]]) -> None:
    """After any puts and drops; dropping a job that is not there changes nothing."""
    found, expected = InOrder[int](), dict[JobId, int]()
    for number, is_put, value in steps:
        job_id = JobId(str(number))
        if is_put:
            found.put(job_id, value)
            expected[job_id] = value
        else:
            found.drop(job_id)
            expected.pop(job_id, None)
        in_order = sorted(expected, key=natural_key)
        assert found.ids == in_order
        assert list(found.copy().items()) == [(job_id, expected[job_id]) for job_id in in_order]
