"""Jobs without given throughputs: what hadard assumes, and how it learns from reports."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from fakes.fake_slurm import Asked, FakeJob, FakeSlurm
from fakes.fake_tools import FakeRunner

from hadar_slurm.core.claims import MOST_OFF
from hadar_slurm.core.job import Job
from hadar_slurm.core.throughput import ThroughputTable
from hadar_slurm.engine.modes import Mode
from hadar_slurm.handoff import ProgressReport, user_reports, write_report
from hadar_slurm.jobspec.comment import encode
from hadar_slurm.jobspec.description import Description
from hadar_slurm.jobspec.estimator import shipped_ratios
from hadar_slurm.slurm.backend import SlurmBackend
from hadar_slurm.slurm.client.command_line import CommandLine
from hadar_slurm.slurm.enforce.ledger import FILE_NAME, Ledger
from hadar_slurm.slurm.settings import BackendSettings
from hadar_slurm.state.learned_changes import forget
from hadar_slurm.state.throughput_store import Profile

LIMIT_S = 3600.0
NO_TABLE = ThroughputTable("none", {})
# What is believed of a K80 beside a V100 before any measurement.
K80 = shipped_ratios(NO_TABLE).speeds(("k80", "v100"), None)["k80"] or 0.0


class Cluster:
    """A model of Slurm with a V100 and a K80 node; jobs start on the first free one, the V100s."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.spool = directory / "spool"
        self.slurm = FakeSlurm("v100:4,k80:4", spool=directory / "elsewhere")

    def backend(self) -> SlurmBackend:
        """Return the backend of a restarted hadard."""
        return SlurmBackend(
            CommandLine(FakeRunner(slurm=self.slurm)),
            NO_TABLE,
            BackendSettings(spool=self.spool, grace_s=5.0),
            Ledger(self.directory / FILE_NAME),
            profile=Profile(self.directory / "profile.sqlite", lambda: self.slurm.now_s),
            now_s=lambda: self.slurm.now_s,
            sleep=self.slurm.advance,
        )

    def submit(self, **said: object) -> FakeJob:
        """Submit a job with a description of only its time limit and name."""
        usual: dict[str, object] = {"limit_s": LIMIT_S, "gpus": 2, "workload": "job:train.sh"}
        described = Description(**{**usual, **said})  # type: ignore[arg-type]
        job = self.slurm.submit(
            Asked(per_job=(("", 2),)), comment=encode(described), work_s=10_000.0, steps=100_000
        )
        self.slurm.advance(1.0)
        assert job.state == "RUNNING"
        return job

    def report(self, job: FakeJob, **told: object) -> None:
        """Write a report of a job."""
        usual = {"restart": job.restarts, "state": "running", "time_s": self.slurm.now_s}
        write_report(
            user_reports(self.spool, os.geteuid()),
            str(job.number),
            ProgressReport(**{**usual, **told}),
        )  # type: ignore[arg-type]


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


def seen(backend: SlurmBackend, job: FakeJob) -> Job:
    """Return a job as policies see it, after a round."""
    backend.apply([])
    snapshot = backend.observe()
    backend.apply([])
    return next(found for found in snapshot.jobs if found.job_id == str(job.number))


def takes_s(job: Job, gpu_type: str) -> float:
    return job.spec.total_steps / job.spec.throughputs.on(gpu_type, job.spec.num_gpus)


def test_a_job_with_a_time_limit_alone_is_placed_by_what_is_published(cluster: Cluster) -> None:
    """On the slowest type the job is assumed to need its whole time limit."""
    job = seen(cluster.backend(), cluster.submit())
    assert takes_s(job, "k80") == pytest.approx(LIMIT_S, rel=1e-3)
    assert takes_s(job, "v100") == pytest.approx(LIMIT_S * K80, rel=1e-3)


def test_without_reports_a_job_comes_as_far_as_its_time(cluster: Cluster) -> None:
    """Otherwise the job would seem to need its whole time limit until the end."""
    backend, job = cluster.backend(), cluster.submit()
    cluster.slurm.advance(LIMIT_S * K80 / 2)
    found = seen(backend, job)
    assert found.steps_left / found.spec.total_steps == pytest.approx(0.5, abs=0.01)


def test_what_a_job_measures_replaces_what_was_believed(cluster: Cluster) -> None:
    """This applies from the next observation on, also to the next job of that name."""
    backend, first = cluster.backend(), cluster.submit()
    assert seen(backend, first).spec.throughputs.on("v100", 2) != 30.0
    cluster.report(first, steps_done=600, steps_per_s=30.0)
    found = seen(backend, first)
    assert found.spec.throughputs.on("v100", 2) == 30.0
    assert found.spec.throughputs.on("k80", 2) == pytest.approx(30.0 * K80)
    assert found.progress.steps_done == 600
    # Steps are now counted by the job; its maximum duration is unchanged.
    assert takes_s(found, "k80") == pytest.approx(LIMIT_S, rel=1e-3)
    second = cluster.submit()
    assert seen(backend, second).spec.throughputs.on("v100", 2) == 30.0
    other = cluster.submit(workload="job:other.sh", gpus=2)
    assert seen(backend, other).spec.throughputs.on("v100", 2) != 30.0


def test_what_was_measured_outlives_hadard(cluster: Cluster) -> None:
    first = cluster.submit()
    cluster.report(first, steps_done=600, steps_per_s=30.0)
    seen(cluster.backend(), first)
    second = cluster.submit()
    found = seen(cluster.backend(), second)
    assert found.spec.throughputs.on("v100", 2) == 30.0


@pytest.mark.parametrize("told", [{"restart": 3}, {"steps_per_s": 0.0}, {"steps_per_s": 5e-324}])
def test_what_is_no_measurement_of_this_run_counts_for_nothing(
    cluster: Cluster, told: dict[str, object]
) -> None:
    """Reports of another run, without a speed yet, or with an impossible one are ignored."""
    backend, job = cluster.backend(), cluster.submit()
    before = seen(backend, job).spec.throughputs
    cluster.report(job, **{"steps_done": 600, "steps_per_s": 30.0, **told})
    assert seen(backend, job).spec.throughputs == before


def test_one_report_is_one_measurement(cluster: Cluster) -> None:
    """Observing it again adds no measurement."""
    backend, job = cluster.backend(), cluster.submit()
    cluster.report(job, steps_done=600, steps_per_s=30.0)
    for _ in range(3):
        seen(backend, job)
    assert backend.profile is not None
    [places] = backend.profile.speeds.measured.values()
    assert [found.count for found in places.values()] == [1]


def test_what_a_user_gives_is_believed(cluster: Cluster) -> None:
    """Throughputs given by the user are not replaced by measured ones."""
    backend = cluster.backend()
    job = cluster.submit(workload="", steps=5000, throughputs={"v100": 7.0})
    cluster.report(job, steps_done=600, steps_per_s=30.0)
    found = seen(backend, job)
    assert (found.spec.throughputs.on("v100", 2), found.progress.steps_done) == (7.0, 600)


def test_a_job_that_outlives_its_claim_is_planned_as_half_done(cluster: Cluster) -> None:
    """Once it reports more steps than claimed, as much is assumed to be left; users see why."""
    backend, job = cluster.backend(), cluster.submit(steps=100, checkpoint=True)
    cluster.report(job, steps_done=600, steps_per_s=0.5)
    found = seen(backend, job)
    assert found.steps_left == pytest.approx(600)
    assert any("outlives the 100 steps claimed" in remark for remark in found.remarks)


def test_measured_throughputs_replace_given_ones(cluster: Cluster) -> None:
    """What a job reports counts, not what its user has said, on the type where it trains."""
    given = {"v100": 1e9, "k80": 20.0}
    backend, job = cluster.backend(), cluster.submit(steps=10**6, throughputs=given)
    assert seen(backend, job).spec.throughputs.on("v100", 2) == 1e9
    cluster.report(job, steps_done=600, steps_per_s=30.0)
    found = seen(backend, job).spec.throughputs
    assert (found.on("v100", 2), found.on("k80", 2)) == (30.0, 20.0)


def test_a_job_that_reports_nothing_outlives_its_claim_by_the_clock(cluster: Cluster) -> None:
    """Its run time counts as steps once it is half as long again as what was claimed."""
    given = {"v100": 1.0, "k80": 1.0}
    backend, job = cluster.backend(), cluster.submit(steps=600, throughputs=given)
    cluster.slurm.advance(700.0)
    assert seen(backend, job).spec.total_steps == 600
    cluster.slurm.advance(700.0)
    assert seen(backend, job).steps_left >= 1400


def test_until_a_job_took_as_long_as_claimed_the_time_limit_counts(cluster: Cluster) -> None:
    """What is left of the limit goes with a job that claims something, until its owner is known."""
    given = {"v100": 1.0, "k80": 1.0}
    backend = cluster.backend()
    nothing_claimed = cluster.submit()
    assert seen(backend, nothing_claimed).limit_left_s is None
    assert seen(backend, nothing_claimed).is_estimated
    job = cluster.submit(steps=10_000, throughputs=given)
    assert not seen(backend, job).is_estimated
    assert seen(backend, job).limit_left_s == pytest.approx(1e9, rel=1 / 16)
    cluster.slurm.advance(10_100.0)
    job = cluster.submit(steps=10_000, throughputs=given)
    assert seen(backend, job).limit_left_s is None


def test_who_claims_too_little_is_believed_less_the_next_time(cluster: Cluster) -> None:
    """A completed job that took ten times as long as claimed multiplies the next claim by ten."""
    given = {"v100": 1.0, "k80": 1.0}
    backend, first = cluster.backend(), cluster.submit(steps=1000, throughputs=given)
    seen(backend, first)
    cluster.slurm.advance(10_100.0)
    assert first.state == "COMPLETED"
    second = cluster.submit(steps=1000, throughputs=given)
    found = seen(backend, second)
    assert found.spec.total_steps == pytest.approx(10_000, rel=0.05)
    assert any("times as long as claimed" in remark for remark in found.remarks)
    assert found.spec.claimed_steps == 1000
    assert seen(backend, second).spec.total_steps == found.spec.total_steps


def test_a_claim_is_judged_once(cluster: Cluster) -> None:
    """It names user, workload and both times; a mode without the job's partition judges nothing.

    Who was wrong is believed less from then on, until what was learned is forgotten.
    """
    given = {"v100": 1.0, "k80": 1.0}
    backend = cluster.backend()
    other = replace(backend, mode=Mode.OBSERVE)
    first = cluster.submit(steps=1000, throughputs=given)
    seen(backend, first)
    assert backend.take_judged() == ([], {})
    cluster.slurm.advance(10_100.0)
    for each in (other, backend, backend):
        each.observe()
    [judged], credits = backend.take_judged()
    assert (judged.job_id, judged.workload) == (str(first.number), "job:train.sh")
    assert (judged.claimed_s, judged.speeds_off) == (1000.0, 1.0)
    assert judged.lasted_s == pytest.approx(10_000.0, rel=0.05)
    assert [(user, credit.jobs) for user, credit in credits.items()] == [(judged.user, 1)]
    assert credits[judged.user].factor(cluster.slurm.now_s) == pytest.approx(10.0, rel=0.05)
    backend.observe()
    assert backend.take_judged() == ([], credits)
    assert other.take_judged() == ([], credits)
    backend.apply([])
    restarted = cluster.backend()
    restarted.observe()
    assert restarted.take_judged() == ([], credits)
    assert forget(cluster.directory / "profile.sqlite", judged.user) > 0
    backend.observe()
    assert backend.take_judged() == ([], {})


@pytest.mark.parametrize("state", ["FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"])
@pytest.mark.parametrize(("lasts_s", "times"), [(8000.0, 8.0), (1400.0, 1.0)])
def test_a_job_that_outlives_its_claim_is_judged_however_it_ends(
    cluster: Cluster, state: str, lasts_s: float, times: float
) -> None:
    """One that ends before it has outlived the claim says nothing: it might have trained on."""
    backend = cluster.backend()
    job = cluster.submit(steps=1000, throughputs={"v100": 1.0, "k80": 1.0})
    seen(backend, job)
    cluster.slurm.advance(lasts_s)
    cluster.slurm.end(job, state)
    for _ in range(2):
        cluster.slurm.advance(60.0)
        backend.observe()
    judged, credits = backend.take_judged()
    assert [each.job_id for each in judged] == [str(job.number)] * (times > 1)
    found = [credit.factor(cluster.slurm.now_s) for credit in credits.values()]
    assert found == ([pytest.approx(times, rel=0.05)] if times > 1 else [])


@pytest.mark.parametrize("last", ["COMPLETED", "CANCELLED", "PENDING"])
def test_a_run_that_outlives_its_claim_is_judged_when_it_is_requeued(
    cluster: Cluster, last: str
) -> None:
    """So is each such run of a job: two of them, if the last outlives the claim as well."""
    backend = cluster.backend()
    job = cluster.submit(steps=1000, throughputs={"v100": 1.0, "k80": 1.0})
    seen(backend, job)
    cluster.slurm.advance(7000.0)
    seen(backend, job)
    cluster.slurm.advance(100.0)
    cluster.slurm.requeue(job, hold=last == "PENDING")
    backend.observe()
    cluster.slurm.advance(120.0)
    backend.observe()
    [judged], credits = backend.take_judged()
    assert judged.lasted_s == pytest.approx(7000.0, rel=0.05)
    [credit] = credits.values()
    assert credit.factor(cluster.slurm.now_s) == pytest.approx(7.0, rel=0.05)
    if last != "PENDING":
        cluster.slurm.advance(3000.0)
        seen(backend, job)
        cluster.slurm.end(job, last)
        cluster.slurm.advance(60.0)
        backend.observe()
        [judged], _ = backend.take_judged()
        assert judged.lasted_s == pytest.approx(3000.0, rel=0.1)
        backend.observe()
        assert backend.take_judged()[0] == []


def failed_after(cluster: Cluster, backend: SlurmBackend, job: FakeJob, seconds: float) -> None:
    """Let a job run for a time, and fail."""
    cluster.slurm.advance(60.0)
    backend.observe()
    cluster.slurm.advance(seconds - 60.0)
    cluster.slurm.end(job, "FAILED")
    cluster.slurm.advance(60.0)
    backend.observe()


def test_each_run_is_judged_once_also_if_the_job_is_requeued_after_it_has_ended(
    cluster: Cluster,
) -> None:
    """The second run of a job that its owner requeues then is judged as well."""
    backend = cluster.backend()
    job = cluster.submit(steps=1000, throughputs={"v100": 1.0, "k80": 1.0})
    failed_after(cluster, backend, job, 2000.0)
    assert [round(run.lasted_s, -2) for run in backend.take_judged()[0]] == [2000.0]
    cluster.slurm.requeue(job, hold=False)
    for _ in range(3):
        cluster.slurm.advance(60.0)
        backend.observe()
    assert backend.take_judged()[0] == []
    failed_after(cluster, backend, job, 5000.0)
    [judged], credits = backend.take_judged()
    assert round(judged.lasted_s, -3) == 5000.0
    assert [credit.jobs for credit in credits.values()] == [2]


def test_the_least_that_is_claimed_of_a_run_counts(cluster: Cluster) -> None:
    """An owner who starts first by a small claim, and corrects it later, is believed less."""
    backend = cluster.backend()
    given = {"v100": 1.0, "k80": 1.0}
    job = cluster.submit(steps=100, throughputs=given)
    backend.observe()
    asked: dict[str, object] = {"limit_s": LIMIT_S, "gpus": 2, "workload": "job:train.sh"}
    job.comment = encode(Description(**asked, steps=10_000, throughputs=given))  # type: ignore[arg-type]
    cluster.slurm.advance(10_100.0)
    backend.observe()
    [judged], credits = backend.take_judged()
    assert judged.claimed_s == 100.0
    assert next(iter(credits.values())).factor(cluster.slurm.now_s) == pytest.approx(100.0, rel=0.1)


def test_a_run_that_was_cut_makes_no_user_more_credible(cluster: Cluster) -> None:
    """After one job of ten times its claim, failures at 1.6 times keep the factor of ten."""
    backend, given = cluster.backend(), {"v100": 1.0, "k80": 1.0}
    first = cluster.submit(steps=1000, throughputs=given)
    seen(backend, first)
    cluster.slurm.advance(10_100.0)
    backend.observe()
    for _ in range(3):
        job = cluster.submit(steps=1000, throughputs=given)
        failed_after(cluster, backend, job, 1650.0)
    _, credits = backend.take_judged()
    [credit] = credits.values()
    assert credit.jobs == 4
    assert credit.factor(cluster.slurm.now_s) == pytest.approx(10.0, rel=0.05)


def test_wrong_throughputs_fade(cluster: Cluster) -> None:
    """After a year without jobs they count as given again."""
    backend = cluster.backend()
    assert backend.profile is not None
    backend.profile.credits.learn("ada", 1.0, 1.0, cluster.slurm.now_s, speeds_off=50.0)
    backend.observe()
    assert backend.profile.credits.most_off("ada") == 1.0
    cluster.slurm.advance(365 * 86400.0)
    backend.observe()
    assert backend.profile.credits.most_off("ada") == MOST_OFF
