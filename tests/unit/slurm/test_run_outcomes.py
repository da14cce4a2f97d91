"""Jobs that fail soon after their start teach hadard GPU types to avoid: on a model of Slurm."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from builders import a_gang
from fakes.fake_slurm import Asked, FakeJob, FakeSlurm
from fakes.fake_tools import FakeRunner, Killed

from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.gpu_types import Needs
from hadar_slurm.core.job import Job
from hadar_slurm.core.throughput import ThroughputTable
from hadar_slurm.core.type_failures import EARLY_S
from hadar_slurm.engine.actions import Start
from hadar_slurm.handoff import ProgressReport, user_reports, write_report
from hadar_slurm.jobspec.comment import encode
from hadar_slurm.jobspec.description import Description
from hadar_slurm.slurm.backend import SlurmBackend
from hadar_slurm.slurm.client.command_line import CommandLine
from hadar_slurm.slurm.enforce.ledger import FILE_NAME, Ledger
from hadar_slurm.slurm.settings import BackendSettings
from hadar_slurm.state.learned_changes import forget
from hadar_slurm.state.throughput_store import Profile

FAILED = 1 << 8


class Bench:
    """A cluster of a V100, a P100 and an A100 node; unheld jobs start on the first that is free."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.spool = directory / "spool"
        self.profile_path = directory / "profile.sqlite"
        self.slurm = FakeSlurm("v100:4,p100:4,a100:4", spool=directory / "elsewhere")
        self.runner = FakeRunner(slurm=self.slurm)
        self.begin_anew()

    def begin_anew(self) -> None:
        """Start or restart hadard."""
        self.backend = SlurmBackend(
            CommandLine(self.runner),
            ThroughputTable("none", {}),
            BackendSettings(spool=self.spool, grace_s=5.0),
            Ledger(self.directory / FILE_NAME, lambda: self.slurm.now_s),
            profile=Profile(self.profile_path, lambda: self.slurm.now_s),
            now_s=lambda: self.slurm.now_s,
            sleep=self.slurm.advance,
        )

    def submit(self, *, hold: str = "", **said: object) -> FakeJob:
        """Submit a job that starts at once, on the V100s, or one that waits for hadard."""
        user = str(said.pop("user", "alice"))
        usual: dict[str, object] = {"limit_s": 3600.0, "gpus": 2, "workload": "job:train.sh"}
        described = Description(is_held=bool(hold), **{**usual, **said})  # type: ignore[arg-type]
        job = self.slurm.submit(
            Asked(per_job=(("", described.gpus),)), comment=encode(described), user=user, hold=hold
        )
        self.slurm.advance(1.0)
        assert {name for _, name in job.gpus} == (set() if hold else {"v100"})
        return job

    def look(self) -> tuple[Job, ...]:
        """Run a round without a plan."""
        snapshot = self.backend.observe()
        self.backend.apply(())
        self.slurm.advance(1.0)
        return snapshot.jobs

    def end(self, job: FakeJob, state: str = "FAILED", *, after_s: float = 10.0) -> None:
        """Let a job end after a while, with rounds before and after."""
        self.look()
        self.slurm.advance(after_s)
        job.exit_status = job.exit_status or (0 if state == "COMPLETED" else FAILED)
        self.slurm.end(job, state)
        self.slurm.advance(5.0)
        self.look()

    def report(self, job: FakeJob, steps_done: int, steps_per_s: float = 0.0) -> None:
        """Write a report of a job's present run."""
        told = ProgressReport(
            job.restarts, "running", steps_done, steps_per_s, time_s=self.slurm.now_s
        )
        write_report(user_reports(self.spool, os.geteuid()), str(job.number), told)

    def allowed(self, **said: object) -> set[str]:
        """Return the GPU types that a new job of the same workload may have."""
        job = self.submit(hold="user", **said)
        found = self.seen(job)
        self.slurm.cancel(job)
        rates = found.spec.throughputs
        return {
            name for name in ("v100", "p100", "a100") if rates.on(name, found.spec.num_gpus) > 0
        }

    def seen(self, job: FakeJob) -> Job:
        """Return a job as policies see it."""
        return next(each for each in self.backend.observe().jobs if each.job_id == job.key)


ALL = {"v100", "p100", "a100"}


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.mark.parametrize("state", ["FAILED", "OUT_OF_MEMORY"])
def test_an_early_failure_bars_the_type_for_its_workload(bench: Bench, state: str) -> None:
    """For the same user's jobs of that name and gang, with a remark that says why."""
    bench.end(bench.submit(), state)
    assert bench.allowed() == {"a100"}
    assert bench.allowed(user="ben") == ALL
    assert bench.allowed(workload="job:other.sh") == ALL
    assert bench.allowed(gpus=1) == ALL
    assert bench.allowed(needs=Needs(types=("v100", "a100"))) == {"v100", "a100"}
    bench.begin_anew()
    assert bench.allowed() == {"a100"}


@pytest.mark.parametrize(
    ("state", "status", "after_s"),
    [
        ("CANCELLED", FAILED, 10.0),
        ("TIMEOUT", FAILED, 10.0),
        ("NODE_FAIL", FAILED, 10.0),
        ("COMPLETED", 0, 10.0),
        ("FAILED", FAILED, EARLY_S),
        ("FAILED", 10, 10.0),
        ("FAILED", 138 << 8, 10.0),
        ("FAILED", 15, 10.0),
    ],
)
def test_other_ends_bar_nothing(bench: Bench, state: str, status: int, after_s: float) -> None:
    """Neither another state, nor a long run, nor a signal of hadard or the owner."""
    job = bench.submit()
    job.exit_status = status
    bench.end(job, state, after_s=after_s)
    assert bench.allowed() == ALL


def test_a_run_that_has_reported_its_speed_has_run(bench: Bench) -> None:
    """Steps of a checkpoint alone do not show that."""
    job = bench.submit()
    bench.report(job, 700)
    bench.end(job)
    assert bench.allowed() == {"a100"}
    other = {"workload": "job:other.sh"}
    job = bench.submit(**other)
    bench.report(job, 700, 5.0)
    bench.end(job)
    bench.begin_anew()
    assert bench.allowed(**other) == ALL


def test_a_workload_that_has_run_on_a_type_keeps_it(bench: Bench) -> None:
    """Five minutes are enough, in a run that still goes on."""
    job = bench.submit()
    bench.slurm.advance(EARLY_S)
    bench.end(bench.submit())
    assert job.state == "RUNNING"
    assert bench.allowed() == ALL


def test_a_failure_that_no_round_has_seen_running_counts(bench: Bench) -> None:
    """The type is that of the job's nodes; once, though Slurm shows the job for minutes."""
    job = bench.submit()
    job.exit_status = FAILED
    bench.slurm.end(job, "FAILED")
    bench.slurm.advance(5.0)
    bench.begin_anew()
    bench.look()
    [records] = bench.backend.observer.estimator.records.of_work.values()
    assert records.keys() == {"v100"}
    bench.backend.observe()
    assert not bench.backend.observer.estimator.records.news
    # What the run says of the type, and that the job has ended.
    assert forget(bench.profile_path, "alice") == 2
    bench.look()
    assert bench.allowed() == ALL


def test_a_running_job_of_a_workload_that_fails_keeps_its_gpus(bench: Bench) -> None:
    """It still has its throughput there, and is not counted as a job that cannot run."""
    running = bench.submit()
    bench.end(bench.submit())
    assert bench.seen(running).spec.throughputs.on("v100", 2) > 0


def test_the_remarks_say_why(bench: Bench) -> None:
    bench.end(bench.submit(), after_s=9.0)
    remarks = bench.seen(bench.submit(hold="user")).remarks
    assert [text.partition(":")[0] for text in remarks] == ["not on p100", "not on v100"]
    assert "its workload failed there after 11 s on " in remarks[1]


def retried(bench: Bench, **said: object) -> FakeJob:
    job = bench.submit(checkpoint=True, **said)
    bench.end(job)
    bench.look()
    return job


def test_a_job_is_requeued_once_for_another_type(bench: Bench) -> None:
    """Where its owner allows checkpoints; its output says so, and a second failure is final."""
    job = retried(bench)
    assert (job.state, job.hold, job.restarts) == ("PENDING", "user", 1)
    seen = bench.seen(job)
    assert seen.spec.can_checkpoint
    bench.backend.apply([Start(seen.job_id, 0, a_gang("n3:a100:2"))])
    bench.slurm.advance(5.0)
    assert job.state == "RUNNING"
    bench.look()
    assert len(job.messages) == 1
    assert "run 1 of this job failed" in job.messages[0]
    for _ in range(2):
        bench.begin_anew()
        bench.look()
    bench.end(job)
    for _ in range(3):
        bench.begin_anew()
        bench.look()
    assert (job.state, job.restarts) == ("FAILED", 1)


@pytest.mark.parametrize(
    "said", [{"checkpoint": False}, {"needs": Needs(types=("v100",))}, {"leaves": True}]
)
def test_a_job_is_not_requeued_against_its_owners_words(
    bench: Bench, said: dict[str, object]
) -> None:
    job = bench.submit(**{"checkpoint": True, **said})
    bench.end(job)
    bench.look()
    assert (job.state, job.restarts) == ("FAILED", 0)


def test_a_job_that_has_failed_on_all_types_is_not_requeued(bench: Bench) -> None:
    """Nothing is barred then, and nothing is tried again."""
    records = bench.backend.observer.estimator.records
    job = retried(bench)
    work = next(iter(records.of_work))
    for name in ("p100", "a100"):
        records.failed(work, name, bench.slurm.now_s, 3.0)
    bench.slurm.cancel(job)
    assert bench.allowed() == ALL
    job = bench.submit(checkpoint=True)
    bench.end(job)
    bench.look()
    assert (job.state, job.restarts) == ("FAILED", 0)


def test_a_hadard_that_is_killed_before_the_requeue_sends_it_later(bench: Bench) -> None:
    """What it has written down is what the next one does."""

    def die(argv: object) -> None:
        if "requeuehold" in argv:  # type: ignore[operator]
            raise Killed

    job = bench.submit(checkpoint=True)
    bench.runner.before.append(die)
    with pytest.raises(Killed):
        bench.end(job)
    bench.runner.before.clear()
    bench.slurm.advance(2.0)
    bench.begin_anew()
    bench.look()
    bench.look()
    assert (job.state, job.restarts) == ("PENDING", 1)
    assert Ledger(bench.directory / FILE_NAME)[JobId(job.key)].retried_run == 1
