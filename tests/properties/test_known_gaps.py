"""Known cases in which a job's request is not restored, found with HADAR_EXPLORE=1.

Each needs a hadard that is killed in the milliseconds between the two updates of a request, or a
lost ledger, and one more event. Once a case is fixed, its test here fails and moves to
test_daemon_machine.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

import pytest
from fakes.fake_slurm import FakeJob
from fakes.fake_tools import Killed
from properties.test_daemon_machine import RATES, Daemon


@pytest.fixture
def state() -> Iterator[Daemon]:
    daemon = Daemon()
    daemon.begin(version=(22, 5, 8))
    yield daemon
    daemon.teardown()


def cut(state: Daemon) -> FakeJob:
    """Return a held job, with hadard killed after clearing the request and before setting it."""

    def kill(argv: Sequence[str]) -> None:
        if any(word.startswith("NumNodes=") for word in argv):
            raise Killed

    state.submit("alice", "any", True, "main", False, 0, RATES)
    state.runner.before.append(kill)
    with suppress(Killed):
        state.one_round()
    state.daemon = state.new_daemon()
    [job] = state.fake.jobs
    if job.asked.all or not job.hold:
        raise RuntimeError(f"it is not cut in two: {job}")
    return job


@pytest.mark.xfail(
    raises=AssertionError, strict=True, reason="released by its owner before the reaper comes"
)
def test_a_job_cut_in_two_does_not_start_without_gpus(state: Daemon) -> None:
    job = cut(state)
    state.as_owner(job, "scontrol", "release", job.key)
    state.fake.advance(1.0)
    state.every_job_that_runs_has_all_its_gpus()


@pytest.mark.xfail(
    raises=AssertionError, strict=True, reason="it begins anew as a job that asked for no GPU"
)
def test_a_job_cut_in_two_gets_its_request_back_when_the_ledger_is_lost(state: Daemon) -> None:
    job = cut(state)
    state.ledger_lost()
    state.round()
    state.released()
    assert job.asked.all


@pytest.mark.xfail(
    raises=AssertionError, strict=True, reason="types that it named keep it from an untyped request"
)
def test_a_job_of_two_types_on_nodes_of_its_owners_goes_back_when_the_ledger_is_lost(
    state: Daemon,
) -> None:
    state.round()
    state.submit("alice", "two types", False, "main", False, 0, RATES)
    state.name_nodes(0, "n1")
    state.ledger_lost()
    state.released()
