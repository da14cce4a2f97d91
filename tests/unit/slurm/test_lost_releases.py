"""A hold whose release slurmctld lost is hadard's; a new hold is the owner's."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from fakes.fake_slurm import Asked, FakeSlurm
from fakes.fake_tools import FakeRunner

from hadar_slurm.core.cluster import JobId, NodeName
from hadar_slurm.slurm.client.command_line import CommandLine
from hadar_slurm.slurm.client.protocol import Site
from hadar_slurm.slurm.control.ledger import FILE_NAME, Claim, Ledger
from hadar_slurm.slurm.control.lost_releases import SAVED_AFTER_S, as_seen, lost_releases

JOB = JobId("1")


@dataclass(frozen=True)
class Booted(CommandLine):
    """A Slurm whose slurmctld started at a given time."""

    booted_s: float = 0.0

    def site(self) -> Site:
        """Return the identity of this Slurm, with the time of its start."""
        return replace(super().site(), booted_s=self.booted_s)


class Watch:
    """A clock that a test sets."""

    now_s = 1000.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now_s


@pytest.fixture
def watch() -> Watch:
    """Return a clock at 1000 s."""
    return Watch()


@pytest.fixture
def ledger(tmp_path: Path, watch: Watch) -> Ledger:
    """Return a ledger in which the slurmctld started at 900 s released job 1 at 1000 s."""
    ledger = Ledger(tmp_path / FILE_NAME, watch)
    ledger.booted_s = 900.0
    ledger.record_intended_holds({JOB: ()})
    ledger.note({JOB: replace(ledger[JOB], is_held=False)})
    return ledger


def held_again(booted_s: float) -> Booted:
    """Return a Slurm that shows job 1 under a user's hold."""
    slurm = FakeSlurm("v100:4")
    slurm.submit(Asked(per_job=(("", 2),)), hold="user")
    return Booted(FakeRunner(slurm=slurm), booted_s)


# A backup controller may have started long before it takes over.
@pytest.mark.parametrize("booted_s", [1001.0, 5000.0, 200.0])
def test_another_slurmctld_may_have_forgotten_a_release(ledger: Ledger, booted_s: float) -> None:
    """After a change of slurmctld, the hold counts as hadard's, so that it can be released."""
    slurm = held_again(booted_s)
    ledger.note(lost_releases(slurm, ledger, slurm.queue()))
    assert ledger[JOB] == Claim(is_held=True)


@pytest.mark.parametrize("booted_s", [900.0, 0.0])
def test_a_hold_under_the_same_slurmctld_is_the_owners_for_good(
    ledger: Ledger, booted_s: float
) -> None:
    """It stays so after slurmctld restarts, and also if the start of slurmctld is not known."""
    slurm = held_again(booted_s)
    ledger.note(lost_releases(slurm, ledger, slurm.queue()))
    assert ledger[JOB] == Claim()
    slurm = held_again(2000.0)
    assert lost_releases(slurm, ledger, slurm.queue()) == {}


def test_a_daemon_that_comes_days_later_takes_no_owners_hold(ledger: Ledger, watch: Watch) -> None:
    """A hadard that starts long after the release takes a hold for the owner's."""
    for later_s, is_ours in ((300.0, True), (3 * 86_400.0, False)):
        watch.now_s = 1000.0 + later_s
        again = Ledger(ledger.path, watch)
        slurm = held_again(watch.now_s - 100.0)
        (found,) = lost_releases(slurm, again, slurm.queue()).values()
        assert found.is_held is is_ours


def test_what_slurm_holds_itself_is_not_ours(ledger: Ledger) -> None:
    """A node could not launch the job; an operator has to check it."""
    slurm = held_again(1001.0)
    row = replace(slurm.queue()[JOB], reason="launch_failed_requeued_held")
    assert lost_releases(slurm, ledger, {JOB: row}) == {}


def test_what_was_saved_is_not_forgotten(ledger: Ledger) -> None:
    """A minute after its release a job's hold can only be the owner's."""
    slurm = held_again(1001.0)
    row = slurm.queue()[JOB]
    free = replace(row, priority=1, reason="Resources")
    seen = as_seen(ledger[JOB], free, 1000.0 + SAVED_AFTER_S - 1)
    assert seen == ledger[JOB]
    # An entry must not stay uncertain because the clock was set back.
    for now_s in (1000.0 + SAVED_AFTER_S, 900.0):
        assert as_seen(ledger[JOB], free, now_s) == Claim()
    ledger.note({JOB: as_seen(ledger[JOB], free, 1000.0 + SAVED_AFTER_S)})
    assert lost_releases(slurm, ledger, {JOB: row}) == {}
    assert as_seen(ledger[JOB], row, 1000.0 + SAVED_AFTER_S) == ledger[JOB]


def test_the_pin_of_a_running_job_is_kept(ledger: Ledger) -> None:
    """A pin shows later that hadard chose the nodes."""
    pinned = replace(ledger[JOB], pinned=(NodeName("n1"),))
    row = held_again(900.0).queue()[JOB]
    running = replace(
        row, state="RUNNING", priority=1, request=replace(row.request, nodes=(NodeName("n1"),))
    )
    assert as_seen(pinned, running, 2000.0) == Claim(pinned=(NodeName("n1"),))


def test_a_requeue_on_its_way_is_still_ours(ledger: Ledger) -> None:
    """The requeue may have timed out while the job still runs; its entry stays."""
    ledger.record_intended_requeues({JOB: 2})
    row = held_again(900.0).queue()[JOB]
    running = replace(row, state="RUNNING", priority=1, restarts=2)
    assert as_seen(ledger[JOB], running, 2000.0) == Claim(is_held=True, requeued=3)
    assert Ledger(ledger.path)[JOB] == Claim(is_held=True, requeued=3)
    # The requeue is complete, and the job runs again.
    assert not as_seen(ledger[JOB], replace(running, restarts=3), 2000.0).is_held
    waiting = replace(row, state="PENDING", priority=1, reason="Resources", restarts=2)
    assert not as_seen(ledger[JOB], waiting, 2000.0).is_held


def test_the_time_of_a_release_is_on_disk_and_a_new_hold_ends_it(ledger: Ledger) -> None:
    """It is read again after a restart of hadard."""
    again = Ledger(ledger.path)
    assert again[JOB] == Claim(released_s=1000.0, booted_s=900.0)
    again.record_intended_holds({JOB: ()})
    assert again[JOB] == Claim(is_held=True, asked_when_held=())


def test_a_hold_that_came_as_the_job_started_is_not_gone(ledger: Ledger) -> None:
    """The entry stays until Slurm shows the job without the hold."""
    ledger.record_intended_holds({JOB: ()})
    row = replace(held_again(900.0).queue()[JOB], state="RUNNING")
    assert as_seen(ledger[JOB], row, 2000.0) == ledger[JOB]
    assert not as_seen(ledger[JOB], replace(row, priority=1), 2000.0).is_held
