"""Ways in which a job is not given back as it was submitted, found by HADAR_EXPLORE=1.

Each needs an owner who releases a job in the very moment between two commands of hadard's, a hadard
killed between two others right after, and one thing more. Mended, a test here fails, and goes to
test_daemon_machine.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from properties.test_daemon_machine import Daemon

RATES = {"v100": 4.0, "p100": 2.0, "k80": 1.0}


@pytest.fixture
def state() -> Iterator[Daemon]:
    daemon = Daemon()
    daemon.begin(version=(22, 5, 8))
    yield daemon
    daemon.teardown()


def submit(state: Daemon, name: str, *, is_held: bool) -> None:
    state.submit(
        is_held=is_held, is_later=0, name=name, partition="main", rates=RATES, saves=False,
        user="alice",
    )  # fmt: skip


@pytest.mark.xfail(strict=True, reason="hadar release leaves the pin of a job its owner holds")
def test_a_pinned_job_that_its_owner_holds_is_given_back(state: Daemon) -> None:
    submit(state, "per node, two", is_held=False)
    state.round_amid_releases(batch=1)
    state.killed(left=5)
    state.hold(number=0)
    state.released()


@pytest.mark.xfail(strict=True, reason="a hold that came when the job had started is forgotten")
def test_a_job_held_as_it_started_is_given_back_when_its_node_fails(state: Daemon) -> None:
    submit(state, "per node, two", is_held=False)
    submit(state, "any", is_held=True)
    state.round_amid_releases(batch=2)
    state.killed(left=5)
    state.node_fails(is_down=True, name="n1")
    state.released()
