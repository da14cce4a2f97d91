"""When a job must not be stopped.

A job that has not reported its USR1 handler would be killed by the signal. On a node that has not
reported to slurmctld, a requeued job would lose its GPUs.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from fakes.fake_slurm import Asked, FakeJob, FakeSlurm
from fakes.fake_tools import FakeRunner

from hadar_slurm.core.cluster import JobId, NodeName
from hadar_slurm.core.job import Phase
from hadar_slurm.core.throughput import ThroughputTable
from hadar_slurm.engine.actions import Outcome, Status, Stop
from hadar_slurm.engine.modes import Mode, Modes
from hadar_slurm.errors import SlurmError
from hadar_slurm.handoff import ProgressReport, user_reports, write_report
from hadar_slurm.jobspec.comment import encode
from hadar_slurm.jobspec.description import Description, digest
from hadar_slurm.slurm.backend import SlurmBackend
from hadar_slurm.slurm.client.command_line import CommandLine
from hadar_slurm.slurm.client.updates import Requeue, Update
from hadar_slurm.slurm.enforce.claim import Claim, State
from hadar_slurm.slurm.enforce.ledger import FILE_NAME, Ledger
from hadar_slurm.slurm.settings import BackendSettings

GRACE_S = 60.0


@pytest.fixture
def slurm(tmp_path: Path) -> FakeSlurm:
    """Return a model of Slurm whose jobs keep their reports where hadard does not read them."""
    return FakeSlurm("v100:4", spool=tmp_path / "elsewhere")


@pytest.fixture
def job(slurm: FakeSlurm) -> FakeJob:
    """Return a described job that runs."""
    described = Description(steps=100, gpus=2, throughputs={"v100": 1.0}, checkpoint=True)
    comment = encode(described)
    job = slurm.submit(Asked(per_job=(("", 2),)), comment=comment, work_s=10_000.0, steps=100)
    slurm.advance(5.0)
    assert job.state == "RUNNING"
    return job


def backend_of(slurm: FakeSlurm, directory: Path) -> SlurmBackend:
    """Return hadard's backend."""
    settings = BackendSettings(spool=directory / "spool", grace_s=GRACE_S, modes=Modes(Mode.HOLD))
    return SlurmBackend(
        CommandLine(FakeRunner(slurm=slurm)),
        ThroughputTable("none", {}),
        settings,
        Ledger(directory / FILE_NAME),
        now_s=lambda: slurm.now_s,
        sleep=slurm.advance,
    )


def phase(slurm: FakeSlurm, directory: Path) -> Phase:
    """Return the phase in which policies see the job."""
    (seen,) = backend_of(slurm, directory).observe().jobs
    return seen.phase


def test_without_a_report_a_job_is_starting_for_as_long_as_it_may_take_to_save(
    slurm: FakeSlurm, job: FakeJob, tmp_path: Path
) -> None:
    """After the grace period it counts as running, and is not migrated: USR1 could kill it."""
    assert phase(slurm, tmp_path) is Phase.STARTING
    slurm.advance(GRACE_S)
    (seen,) = backend_of(slurm, tmp_path).observe().jobs
    assert (seen.phase, seen.spec.can_checkpoint) == (Phase.RUNNING, False)
    assert seen.remarks == ("not migrated: it has not said in this run that it listens for USR1",)


def test_a_report_of_this_run_shows_that_a_job_is_up(
    slurm: FakeSlurm, job: FakeJob, tmp_path: Path
) -> None:
    """A report of an earlier run does not."""
    spool = tmp_path / "spool"
    write_report(
        user_reports(spool, os.geteuid()),
        str(job.number),
        ProgressReport(restart=3, state="running", steps_done=7),
    )
    assert phase(slurm, tmp_path) is Phase.STARTING
    write_report(
        user_reports(spool, os.geteuid()),
        str(job.number),
        ProgressReport(restart=0, state="running", steps_done=7),
    )
    assert phase(slurm, tmp_path) is Phase.RUNNING


def says_it_listens(job: FakeJob, directory: Path) -> None:
    """Write a report of the job's current run."""
    report = ProgressReport(restart=job.restarts, state="running", steps_done=7)
    write_report(user_reports(directory / "spool", os.geteuid()), str(job.number), report)


def stop(slurm: FakeSlurm, job: FakeJob, directory: Path) -> Outcome:
    """Let hadard stop the job."""
    backend = backend_of(slurm, directory)
    (seen,) = backend.observe().jobs
    (outcome,) = backend.apply([Stop(seen.job_id, 0, seen.allocation.gangs[0])])
    return outcome


def test_a_job_is_not_requeued_before_its_node_has_reported(
    slurm: FakeSlurm, job: FakeJob, tmp_path: Path
) -> None:
    """Slurm 22.05.8 would never give it GPUs again; it does not even get USR1."""
    says_it_listens(job, tmp_path)
    slurm.nodes["n1"].has_reported = False
    outcome = stop(slurm, job, tmp_path)
    assert (outcome.status, job.state, job.times_asked_to_save) == (Status.DEFERRED, "RUNNING", 0)
    assert "has not reported to slurmctld" in outcome.detail
    slurm.nodes["n1"].has_reported = True
    assert stop(slurm, job, tmp_path).status is Status.DONE


def test_a_job_whose_node_falls_silent_while_it_saves_is_not_requeued(
    slurm: FakeSlurm, job: FakeJob, tmp_path: Path
) -> None:
    """slurmctld was restarted meanwhile."""
    says_it_listens(job, tmp_path)
    backend = backend_of(slurm, tmp_path)
    (seen,) = backend.observe().jobs

    def advance(seconds: float) -> None:
        slurm.nodes["n1"].has_reported = False
        slurm.advance(seconds)

    backend.sleep = advance
    (outcome,) = backend.apply([Stop(seen.job_id, 0, seen.allocation.gangs[0])])
    assert (outcome.status, job.state) == (Status.DEFERRED, "RUNNING")
    assert job.times_asked_to_save > 0


class Lying(CommandLine):
    """Says that jobs are requeued, and requeues none."""

    def change(self, changes: Sequence[Update]) -> list[SlurmError | None]:
        """Make the changes, unless they are requeues."""
        is_lie = any(isinstance(change, Requeue) for change in changes)
        return [None] * len(changes) if is_lie else super().change(changes)


def test_a_requeue_without_effect_does_not_hold_up_the_round(
    slurm: FakeSlurm, job: FakeJob, tmp_path: Path
) -> None:
    """Slurm shows a requeued job as pending or completing at once; the next round decides again."""
    says_it_listens(job, tmp_path)
    backend = backend_of(slurm, tmp_path)
    backend.slurm = Lying(FakeRunner(slurm=slurm))
    (seen,) = backend.observe().jobs
    begun_s = slurm.now_s
    (outcome,) = backend.apply([Stop(seen.job_id, 0, seen.allocation.gangs[0])])
    assert (outcome.status, job.state) == (Status.DEFERRED, "RUNNING")
    assert slurm.now_s < begun_s + GRACE_S + 1.0


@pytest.mark.parametrize("is_ours", [False, True])
def test_a_job_does_not_return_at_once_to_the_node_that_failed_under_it(
    tmp_path: Path, is_ours: bool
) -> None:
    """Slurm may still be ending the last run there, and would end the new one with it."""
    slurm = FakeSlurm("v100:4,v100:4", spool=tmp_path / "elsewhere")
    comment = encode(Description(steps=100, gpus=2, throughputs={"v100": 1.0}, checkpoint=True))
    pinned = Asked(nodes=("n2",), per_node=(("v100", 2),))
    job = slurm.submit(pinned, comment=comment, work_s=10_000.0, steps=100)
    slurm.advance(5.0)
    entry = Claim(state=State.HELD, pinned=(NodeName("n2"),), requeued=int(is_ours))
    Ledger(tmp_path / FILE_NAME).note({JobId(job.key): entry})
    slurm.requeue(job, hold=True)

    def allowed() -> frozenset[str] | None:
        (seen,) = backend_of(slurm, tmp_path).observe().jobs
        return seen.allowed_nodes

    slurm.advance(10.0)
    assert (job.state, job.hold) == ("PENDING", "user")
    assert allowed() == (None if is_ours else frozenset(["n1"]))
    slurm.advance(10.0)
    assert allowed() is None


@pytest.mark.parametrize("steered", [digest(["n9"]), 0])
def test_a_job_that_slurm_starts_at_once_is_managed_also_if_nodes_are_excluded(
    slurm: FakeSlurm, tmp_path: Path, steered: int
) -> None:
    """Also with nodes that its owner excludes."""
    described = Description(steps=100, gpus=2, throughputs={"v100": 1.0}, steered=steered)
    asked = Asked(per_job=(("", 2),))
    job = slurm.submit(asked, comment=encode(described), work_s=10_000.0, excluded=("n9",))
    slurm.advance(5.0)
    assert job.state == "RUNNING"
    backend = backend_of(slurm, tmp_path)
    backend.ledger.adopt()
    assert [seen.job_id for seen in backend.observe().jobs] == [job.key]
