"""A job that listens for no signal is requeued only when it loses little: on a model of Slurm."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from fakes.fake_slurm import Asked, FakeJob, FakeSlurm
from fakes.fake_tools import FakeRunner
from hypothesis import given
from hypothesis import strategies as st

from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.job import Job, Phase
from hadar_slurm.core.moves import why_not_requeued
from hadar_slurm.core.throughput import ThroughputTable
from hadar_slurm.engine.actions import Outcome, Start, Status, Stop
from hadar_slurm.handoff import ProgressReport, user_reports, write_report
from hadar_slurm.jobspec.comment import encode
from hadar_slurm.jobspec.description import Description
from hadar_slurm.slurm.backend import SlurmBackend
from hadar_slurm.slurm.client.command_line import CommandLine
from hadar_slurm.slurm.client.parse import QueueRow
from hadar_slurm.slurm.enforce.ledger import FILE_NAME, Ledger
from hadar_slurm.slurm.enforce.readings import SAVED_AFTER_S
from hadar_slurm.slurm.enforce.stoppable import bound_s, kept_part, measured_loss_s
from hadar_slurm.slurm.settings import BackendSettings

MOST_S = 1200.0
LIMIT_S = 36_000.0
COST_S = 30.0
DESCRIBED = Description(
    limit_s=LIMIT_S, gpus=2, workload="job:train.sh", checkpoint=True, restart_loss_s=MOST_S
)


class Bench:
    """A cluster with one job that saves at times; hadard reads only what `tells` reports."""

    def __init__(self, directory: Path, job: Description = DESCRIBED, **moves: str) -> None:
        self.slurm = FakeSlurm("v100:4,v100:4", spool=directory / "elsewhere")
        self.runner = FakeRunner(slurm=self.slurm)
        self.directory, self.moves = directory, moves
        self.job: FakeJob = self.slurm.submit(
            Asked(per_job=(("", 2),)), comment=encode(job), dies_of_usr1=True
        )
        self.slurm.advance(5.0)
        self.begin_anew()
        self.gang = self.seen().allocation.gangs[0]

    def begin_anew(self) -> None:
        """Start or restart hadard."""
        self.backend = SlurmBackend(
            CommandLine(self.runner),
            ThroughputTable("none", {}),
            BackendSettings(
                spool=self.directory / "spool", restart_cost_s=COST_S, moves=self.moves
            ),
            Ledger(self.directory / FILE_NAME, lambda: self.slurm.now_s),
            now_s=lambda: self.slurm.now_s,
            sleep=self.slurm.advance,
        )

    def seen(self) -> Job:
        """Return the job as policies see it."""
        (job,) = self.backend.observe().jobs
        return job

    def until_ran(self, seconds: float) -> Job:
        """Let the current run last this long, and return the job as policies see it."""
        self.slurm.advance(self.job.started_s + seconds - self.slurm.now_s)
        return self.seen()

    def tells(self, state: str = "running", *, saved_s_ago: float = 0.0) -> None:
        """Report a checkpoint of this run."""
        now_s = self.slurm.now_s
        report = ProgressReport(
            self.job.restarts, state, 7, time_s=now_s, listens=False, saved_s=now_s - saved_s_ago
        )
        own = user_reports(self.directory / "spool", os.geteuid())
        write_report(own, str(self.job.number), report)

    def stop(self) -> Outcome:
        """Let hadard stop the job."""
        seen = self.seen()
        (outcome,) = self.backend.apply([Stop(seen.job_id, 0, seen.allocation.gangs[0])])
        self.slurm.advance(1.0)
        return outcome

    def start_again(self) -> None:
        """Start the job again."""
        self.backend.apply([Start(self.seen().job_id, 0, self.gang)])
        self.slurm.advance(5.0)
        assert self.job.state == "RUNNING"

    @property
    def share_done(self) -> float:
        """Return the part of the job that is done, as policies see it."""
        job = self.seen()
        return job.progress.steps_done / job.spec.total_steps


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """Return a cluster of two nodes."""
    return Bench(tmp_path)


def test_a_silent_job_is_requeued_without_a_signal(bench: Bench) -> None:
    """It is never sent USR1, and is held until it starts again."""
    assert bench.until_ran(2 * MOST_S).spec.can_checkpoint
    assert bench.stop() == Outcome(
        Stop(JobId(bench.job.key), 0, bench.gang), Status.DONE, "requeued without a signal"
    )
    assert (bench.job.state, bench.job.hold, bench.job.restarts) == ("PENDING", "user", 1)
    assert bench.job.times_asked_to_save == 0


def test_a_job_released_by_its_owner_as_it_leaves_is_not_waited_for(bench: Bench) -> None:
    """Otherwise a user who releases jobs that hadard requeues would delay all others' starts."""
    bench.until_ran(2 * MOST_S)
    before_s = bench.slurm.now_s
    bench.slurm.later(0.1, lambda: bench.slurm.release(bench.job))
    outcome = bench.stop()
    assert (outcome.status, outcome.detail) == (Status.DEFERRED, "it is PENDING now")
    assert bench.slurm.now_s - before_s < 10.0
    assert bench.job.hold == ""


def test_a_silent_job_runs_for_twice_what_it_may_lose(bench: Bench) -> None:
    """Before, it stays, and its remark says why; its cost is the mean of what it may lose."""
    job = bench.until_ran(2 * MOST_S - 1.0)
    assert (job.phase, job.spec.can_checkpoint) == (Phase.RUNNING, False)
    why = "not migrated now: it has run for less than 40 min, twice what it may lose"
    assert job.remarks == (why,)
    outcome = bench.stop()
    assert (outcome.status, outcome.detail) == (Status.DEFERRED, why)
    assert bench.job.restarts == 0
    job = bench.until_ran(2 * MOST_S)
    remark = "it may be requeued without a signal, and then loses at most 20 min of work"
    assert (job.remarks, job.spec.restart_cost_s) == ((remark,), COST_S + MOST_S / 2)


def test_a_job_that_tells_its_checkpoints_is_stopped_after_one(bench: Bench) -> None:
    """Its cost is the work since the last one, and it stays when that is more than it may lose."""
    bench.until_ran(500.0)
    bench.tells(saved_s_ago=200.0)
    job = bench.seen()
    assert (job.spec.can_checkpoint, job.spec.restart_cost_s) == (True, COST_S + 200.0)
    bench.slurm.advance(101.0)
    assert "it has kept less in this run" in bench.seen().remarks[0]
    bench.until_ran(10_000.0)
    why = "it would lose 2.69 h since its last checkpoint, and may 20 min"
    assert bench.seen().remarks == (f"not migrated now: {why}",)
    bench.tells()
    assert bench.stop().status is Status.DONE
    bench.start_again()
    bench.until_ran(2 * MOST_S)
    assert not bench.seen().spec.can_checkpoint  # no checkpoint of this run
    bench.tells(saved_s_ago=MOST_S)
    assert bench.seen().spec.can_checkpoint


def test_the_time_of_this_run_counts_as_service(tmp_path: Path) -> None:
    """Also of a job whose steps are not known: a policy moves none that has trained little."""
    progress = Bench(tmp_path, replace(DESCRIBED, steps=10**6)).until_ran(6_000.0).progress
    assert progress.steps_done == 0
    assert progress.service_gpu_s == 2 * 6_000.0


def test_a_job_that_is_done_is_not_requeued(bench: Bench) -> None:
    bench.until_ran(5 * MOST_S)
    bench.tells("done")
    assert bench.seen().remarks == ("not migrated: it has reported that it is done",)


def test_what_a_silent_job_has_kept_counts_after_requeues(bench: Bench) -> None:
    """hadard remembers it across restarts; a requeue by others adds nothing."""
    bench.until_ran(7200.0)
    assert bench.share_done == pytest.approx(0.2, abs=1e-3)
    bench.stop()
    kept = pytest.approx((7200.0 - MOST_S) / LIMIT_S, abs=1e-3)
    assert bench.share_done == kept
    bench.begin_anew()
    bench.start_again()
    for _ in range(3):
        bench.slurm.advance(SAVED_AFTER_S)
        bench.backend.observe()
        bench.backend.wait(bench.slurm.now_s + 1.0)
    bench.begin_anew()
    ran_s = bench.slurm.now_s - bench.job.started_s
    assert bench.share_done == pytest.approx((6000.0 + ran_s) / LIMIT_S, abs=1e-3)
    bench.slurm.requeue(bench.job, hold=False)
    bench.slurm.advance(1.0)
    assert bench.share_done == kept


def test_the_command_of_a_stop_has_no_signal(bench: Bench) -> None:
    """A dry run shows the requeue alone."""
    stop = Stop(JobId(bench.job.key), 0, bench.gang)
    assert bench.backend.command_text(stop) == f"scontrol requeuehold {bench.job.key}"


PREEMPTIBLE = replace(DESCRIBED, checkpoint=False, exempt_s=300.0, restart_loss_s=3600.0)


def test_a_job_that_slurm_may_preempt_loses_what_the_site_allows_in_a_day(tmp_path: Path) -> None:
    """Of one that reports no checkpoint all of its run counts as lost."""
    bench = Bench(tmp_path, PREEMPTIBLE, default="preemptible")
    remarks = bench.until_ran(299.0).remarks
    assert remarks == ("not migrated now: it has run for less than 5 min, PreemptExemptTime",)
    job = bench.until_ran(3_600.0)
    assert (job.spec.can_checkpoint, job.spec.restart_cost_s) == (True, COST_S + 3_600.0)
    remarks = bench.until_ran(3_610.0).remarks
    assert remarks == ("not migrated now: it would lose 1 h, and may 1 h in a day",)
    bench.tells(saved_s_ago=600.0)
    assert bench.seen().spec.restart_cost_s == COST_S + 600.0
    assert bench.stop().status is Status.DONE
    assert (bench.job.restarts, bench.job.times_asked_to_save) == (1, 0)
    bench.start_again()
    (remark,) = bench.until_ran(900.0).remarks
    assert "ago, would lose 15 min, and may 1 h in a day" in remark
    bench.tells()
    bench.slurm.advance(900.0)
    bench.tells()
    assert bench.seen().spec.can_checkpoint


def test_a_grace_time_is_given(tmp_path: Path) -> None:
    """The job gets SIGTERM first, as from Slurm; one that fails of it is requeued once."""
    bench = Bench(tmp_path, replace(PREEMPTIBLE, signal="TERM@120"), default="preemptible")
    assert bench.until_ran(600.0).spec.can_checkpoint
    stop = Stop(JobId(bench.job.key), 0, bench.gang)
    assert "--signal=TERM" in bench.backend.command_text(stop)
    before_s = bench.slurm.now_s
    assert bench.stop().detail == "not saved within 120 s"
    assert 120.0 <= bench.slurm.now_s - before_s < 180.0
    bench.start_again()
    bench.slurm.advance(12 * 3_600.0)
    bench.tells()
    assert "did not save on TERM@120" in bench.seen().remarks[0]


@pytest.mark.parametrize("level", ["stated", "signals", "none"])
def test_the_site_may_forbid_it_again(tmp_path: Path, level: str) -> None:
    bench = Bench(tmp_path, PREEMPTIBLE, default=level)
    assert not bench.until_ran(600.0).spec.can_checkpoint


# The bound, for any times of checkpoints and of stops.


def row_of(description: Description, started_s: float, restarts: int) -> QueueRow:
    """Return a running job."""
    slurm = FakeSlurm("v100:4")
    slurm.submit(Asked(per_job=(("", 2),)), comment=encode(description))
    slurm.advance(5.0)
    (row,) = CommandLine(FakeRunner(slurm=slurm)).queue().values()
    return replace(row, started_s=started_s, restarts=restarts)


ROW = row_of(DESCRIBED, 0.0, 0)


@given(
    every_s=st.floats(1.0, 4 * MOST_S),
    tells=st.booleans(),
    wishes=st.lists(st.floats(1.0, 3 * MOST_S), min_size=1, max_size=60),
)
def test_a_run_keeps_as_much_as_it_loses(
    every_s: float, tells: bool, wishes: Sequence[float]
) -> None:
    """No requeue loses more than the bound, nor more than its run keeps.

    A job that saves less often than its owner says has to report it.
    """
    every_s = every_s if tells else min(every_s, MOST_S)
    now_s = started_s = 1e9
    restarts = 0
    report = None
    for wait_s in wishes:
        now_s += wait_s
        row = replace(ROW, started_s=started_s, restarts=restarts)
        saved_s = started_s + (now_s - started_s) // every_s * every_s
        if tells and saved_s > started_s:
            report = ProgressReport(restarts, "running", 1, saved_s=saved_s)
        is_known = not tells or report is not None
        if is_known and not why_not_requeued(
            bound_s(row), measured_loss_s(row, report, now_s), now_s - row.started_s
        ):
            assert now_s - saved_s <= MOST_S + 1e-3
            assert now_s - saved_s <= saved_s - started_s + 1e-3
            restarts, started_s = restarts + 1, now_s


@given(
    before=st.floats(0, 1),
    done=st.floats(0, 2),
    speed=st.floats(0, 1),
    saved_s=st.none() | st.floats(0, 1e9),
)
def test_what_is_kept_never_shrinks(
    before: float, done: float, speed: float, saved_s: float | None
) -> None:
    """The kept part is at least the one before, at most the whole."""
    report = None if saved_s is None else ProgressReport(0, "running", 1, saved_s=saved_s)
    assert before <= kept_part(before, done, speed, ROW, report, 1e9) <= 1.0
