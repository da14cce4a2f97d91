"""A job that ends by hadard's USR1 is requeued, any other ended job is not: on a model of Slurm."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from fakes.fake_slurm import MOVE_WAIT_S, Asked, FakeJob, FakeSlurm
from fakes.fake_tools import FakeRunner, Killed

from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.job import Job
from hadar_slurm.core.throughput import ThroughputTable
from hadar_slurm.engine.actions import Outcome, Start, Status, Stop
from hadar_slurm.job_files import read_report
from hadar_slurm.jobspec.comment import encode
from hadar_slurm.jobspec.description import Description
from hadar_slurm.slurm.backend import SlurmBackend
from hadar_slurm.slurm.client.command_line import CommandLine
from hadar_slurm.slurm.enforce.claim import Claim
from hadar_slurm.slurm.enforce.ledger import FILE_NAME, Ledger
from hadar_slurm.slurm.enforce.readings import SAVED_AFTER_S
from hadar_slurm.slurm.enforce.stoppable import is_ended_by_us
from hadar_slurm.slurm.settings import BackendSettings

GRACE_S = 10.0


class Bench:
    """A cluster with one job that reports a USR1 handler, but ends by USR1."""

    def __init__(self, directory: Path) -> None:
        self.slurm = FakeSlurm("v100:4,v100:4", spool=directory / "spool")
        self.runner = FakeRunner(slurm=self.slurm)
        self.directory = directory
        described = Description(steps=100, gpus=2, throughputs={"v100": 1.0}, checkpoint=True)
        self.job: FakeJob = self.slurm.submit(
            Asked(per_job=(("", 2),)),
            comment=encode(described),
            work_s=10_000.0,
            steps=100,
            dies_of_usr1=True,
        )
        self.slurm.advance(5.0)
        self.begin_anew()
        self.gang = self.seen().allocation.gangs[0]

    def begin_anew(self) -> None:
        """Start or restart hadard."""
        self.backend = SlurmBackend(
            CommandLine(self.runner),
            ThroughputTable("none", {}),
            BackendSettings(spool=self.directory / "spool", grace_s=GRACE_S),
            Ledger(self.directory / FILE_NAME, lambda: self.slurm.now_s),
            now_s=lambda: self.slurm.now_s,
            sleep=self.slurm.advance,
        )

    @property
    def entry(self) -> Claim:
        """Return the job's entry in the ledger."""
        return Ledger(self.directory / FILE_NAME)[JobId(self.job.key)]

    def seen(self) -> Job:
        """Return the job as policies see it."""
        (job,) = self.backend.observe().jobs
        return job

    def stop(self) -> Outcome:
        """Let hadard stop the job."""
        seen = self.seen()
        (outcome,) = self.backend.apply([Stop(seen.job_id, 0, seen.allocation.gangs[0])])
        self.slurm.advance(1.0)
        return outcome

    def look(self) -> None:
        """Run a round without a plan."""
        self.backend.observe()
        self.backend.apply(())
        self.slurm.advance(1.0)

    def start_again(self) -> Job:
        """Start the job again, and return it as policies see it."""
        seen = self.seen()
        self.backend.apply([Start(seen.job_id, 0, self.gang)])
        self.slurm.advance(5.0)
        return self.seen()


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """Return a cluster of two nodes."""
    return Bench(tmp_path)


def test_a_job_that_our_signal_ends_is_requeued_and_signalled_no_more(bench: Bench) -> None:
    """The job is requeued once and not migrated again; output, snapshot and ledger say why."""
    bench.stop()
    assert (bench.job.state, bench.job.exit_status) == ("FAILED", 10)
    snapshot = bench.backend.observe()
    assert (snapshot.jobs, snapshot.ended) == ((), ())
    bench.look()
    assert (bench.job.state, bench.job.hold, bench.job.restarts) == ("PENDING", "user", 1)
    again = bench.start_again()
    assert not again.spec.can_checkpoint
    assert "USR1 from hadard ended its run 1" in again.remarks[-1]
    bench.look()
    assert len(bench.job.messages) == 1
    assert "ended run 1" in bench.job.messages[0]
    assert bench.stop().detail.startswith("not migrated")
    bench.slurm.advance(SAVED_AFTER_S * 3)
    for _ in range(2):
        bench.begin_anew()
        bench.look()
        bench.backend.wait(bench.slurm.now_s + 20.0)
        assert bench.entry.ended_run == 1
    assert bench.job.times_asked_to_save == 1


def test_the_next_hadard_requeues_what_the_last_has_ended(bench: Bench) -> None:
    """It also does so if hadard is killed after the signal, or just before the requeue."""

    was_signalled = False

    def die(argv: Sequence[str]) -> None:
        nonlocal was_signalled
        if was_signalled or "requeuehold" in argv:
            raise Killed
        was_signalled = argv[0] == "scancel"

    for act in (bench.stop, bench.look):
        bench.runner.before.append(die)
        with pytest.raises(Killed):
            act()
        bench.runner.before.clear()
        was_signalled = False
        bench.slurm.advance(2.0)
        bench.begin_anew()
    assert (bench.job.state, bench.entry.ended_run) == ("FAILED", 1)
    bench.look()
    assert (bench.job.state, bench.job.restarts, bench.entry.holds) == ("PENDING", 1, True)


@pytest.mark.parametrize(
    ("state", "status"), [("FAILED", 256), ("CANCELLED", 10), ("TIMEOUT", 10), ("COMPLETED", 0)]
)
def test_another_end_of_a_run_that_was_signalled_is_final(
    bench: Bench, state: str, status: int
) -> None:
    """Requeueing would restart a job that its owner has cancelled."""
    bench.stop()
    bench.job.state, bench.job.exit_status = state, status
    bench.look()
    assert (bench.job.state, bench.job.restarts) == (state, 0)


def test_a_death_of_usr1_that_was_not_ours_is_final(bench: Bench) -> None:
    """The owner sent USR1, without a signal of hadard or in a later run than hadard's."""
    bench.slurm.signal(bench.job)
    bench.slurm.advance(2.0)
    bench.look()
    assert (bench.job.state, bench.job.restarts) == ("FAILED", 0)
    row = bench.backend.slurm.queue()[JobId(bench.job.key)]
    ours = Claim(signalled_run=1, signalled_until_s=row.ended_s)
    assert is_ended_by_us(row, ours)
    assert is_ended_by_us(replace(row, exit_status=138 << 8), ours)
    assert not is_ended_by_us(row, Claim())
    assert not is_ended_by_us(replace(row, restarts=1), ours)
    assert not is_ended_by_us(replace(row, ended_s=row.ended_s + 10_000.0), ours)


def test_a_job_that_slurm_does_not_requeue_has_failed(bench: Bench) -> None:
    """The requeue is tried once; then the job counts as ended."""
    bench.stop()
    bench.job.may_requeue = False
    bench.look()
    (ended,) = bench.backend.observe().ended
    assert ended.job_id == bench.job.key
    bench.backend.apply(())
    assert bench.job.key not in Ledger(bench.directory / FILE_NAME)


def test_nothing_is_signalled_that_cannot_be_written_down(bench: Bench) -> None:
    """Otherwise a restarted hadard could not requeue the job if the signal ends it."""
    bench.seen()
    bench.backend.ledger.path = bench.directory / "nowhere" / FILE_NAME
    assert "cannot be written" in bench.stop().detail
    assert bench.job.times_asked_to_save == 0


def test_a_hadard_that_may_not_write_to_outputs_tries_it_once(bench: Bench) -> None:
    """If Slurm refuses the message, as for an operator's account, the job is not affected."""
    bench.stop()
    bench.look()
    bench.start_again()
    tried = []

    def refuse(argv: Sequence[str]) -> str | None:
        tried.extend([argv] if "notify" in argv else [])
        return "job notify failure: Invalid user id" if "notify" in argv else None

    bench.runner.before.append(refuse)
    for _ in range(3):
        bench.look()
    assert (len(tried), bench.job.state) == (1, "RUNNING")


def test_its_owners_hold_stays_on_a_job_that_our_signal_has_ended(bench: Bench) -> None:
    """The owner set it on the running job just before the signal ended the run."""
    bench.stop()
    bench.job.hold = "user"
    bench.look()
    assert (bench.job.state, bench.job.hold) == ("PENDING", "user")
    assert not bench.entry.holds


def test_a_job_that_slurm_may_not_requeue_is_not_signalled(bench: Bench) -> None:
    """It would save and wait, and Slurm would refuse its requeue in every round."""
    bench.slurm.update(bench.job, [("Requeue", "0")])
    seen = bench.seen()
    assert not seen.spec.can_checkpoint
    assert seen.remarks[-1].endswith("its owner does not allow Slurm to requeue it (Requeue=0)")
    assert bench.stop().status is Status.DEFERRED
    assert (bench.job.state, bench.job.times_asked_to_save) == ("RUNNING", 0)
    bench.slurm.update(bench.job, [("Requeue", "1")])
    assert bench.seen().spec.can_checkpoint


@pytest.mark.parametrize("before", ["squeue", "requeuehold"])
def test_a_job_whose_requeue_is_forbidden_as_it_saves_goes_on(bench: Bench, before: str) -> None:
    """It is asked once, its output says so once, and it trains on when its wait ends."""
    bench.job.dies_of_usr1 = False

    def forbid(argv: Sequence[str]) -> None:
        if bench.job.times_asked_to_save and before in argv:
            bench.slurm.update(bench.job, [("Requeue", "0")])

    bench.runner.before.append(forbid)
    assert bench.stop().status is not Status.DONE
    asked = bench.job.times_asked_to_save
    for _ in range(3):
        assert bench.stop().status is Status.DEFERRED
        bench.look()
    assert (bench.job.times_asked_to_save, len(bench.job.messages)) == (asked, 1)
    assert "It keeps its GPUs" in bench.job.messages[0]
    bench.slurm.advance(MOVE_WAIT_S)
    report = read_report(bench.directory / "spool", str(bench.job.number), owner_uid=os.geteuid())
    assert (bench.job.state, report and report.state) == ("RUNNING", "running")
