"""A known case in which a job's request is not restored, found with HADAR_EXPLORE=1.

It needs a hadard that is killed in the milliseconds between the two updates of a request, and one
more event. Once it is fixed, its test here fails and moves to test_daemon_machine.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from properties.test_daemon_machine import Daemon, cut


@pytest.fixture
def state() -> Iterator[Daemon]:
    daemon = Daemon()
    daemon.begin(version=(22, 5, 8))
    yield daemon
    daemon.teardown()


@pytest.mark.xfail(
    raises=AssertionError, strict=True, reason="released by its owner before the reaper comes"
)
def test_a_job_cut_in_two_does_not_start_without_gpus(state: Daemon) -> None:
    job = cut(state)
    state.as_owner(job, "scontrol", "release", job.key)
    state.fake.advance(1.0)
    state.every_job_that_runs_has_all_its_gpus()
