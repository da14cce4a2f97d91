"""What is claimed of jobs is judged by each of their runs, once."""

from __future__ import annotations

import math

import pytest

from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.throughput import ThroughputTable
from hadar_slurm.jobspec.claimed_runs import ClaimedRuns, RunOnType, ShownRun
from hadar_slurm.jobspec.description import Description
from hadar_slurm.jobspec.estimator import Estimator

JOB, OTHER = JobId("1"), JobId("2")
DAY_S = 86_400.0


def asks(steps: int, speed: float = 1.0) -> Description:
    """Return a claim of steps, at a throughput."""
    return Description(steps=steps, workload="w", throughputs={"v100": speed})


@pytest.fixture
def runs() -> ClaimedRuns:
    return ClaimedRuns(Estimator.shipped(ThroughputTable("none", {})))


def judged(runs: ClaimedRuns) -> list[tuple[str, float, float]]:
    """Return the runs judged since the last call: the job, the time claimed and the time taken."""
    found, runs.judged = runs.judged, []
    return [(each.job_id, each.claimed_s, each.lasted_s) for each in found]


def test_the_least_claimed_since_the_job_was_submitted_counts(runs: ClaimedRuns) -> None:
    """Steps are raised as the job starts, and the throughput lowered later."""
    runs.claim(JOB, "ada", asks(100))
    runs.claim(JOB, "ada", asks(10_000))
    runs.runs(JOB, RunOnType(1.0, 60.0, "v100"))
    runs.claim(JOB, "ada", asks(10_000, speed=0.1))
    runs.settle({JOB: ShownRun(1.0, 10_001.0, is_whole=True)}.get, 10_060.0)
    assert judged(runs) == [(JOB, 100.0, 10_000.0)]


def test_a_claim_that_is_taken_away_is_judged(runs: ClaimedRuns) -> None:
    """Also if Slurm shows the job no more: its run lasted as long as it was seen to."""
    for job, shown in ((JOB, ShownRun(1.0, 5001.0)), (OTHER, None)):
        runs.claim(job, "ada", asks(1000))
        runs.runs(job, RunOnType(1.0, 4000.0, "v100"))
        runs.settle({job: ShownRun(1.0)}.get, 4001.0)
        assert judged(runs) == []
        runs.settle(lambda _, shown=shown: shown, 5060.0)
        assert judged(runs) == [(job, 1000.0, 5000.0 if shown else 4000.0)]


def test_runs_that_end_in_one_round_all_count(runs: ClaimedRuns) -> None:
    """The requeued one is learned at the time of the round, after the other has ended."""
    for job in (JOB, OTHER):
        runs.claim(job, "ada", asks(1000))
        runs.runs(job, RunOnType(1.0, 4000.0, "v100"))
    runs.settle({JOB: ShownRun(0.0), OTHER: ShownRun(1.0, 4500.0)}.get, 5000.0)
    assert [job for job, _, _ in judged(runs)] == [JOB, OTHER]
    for job in (JOB, OTHER):
        assert runs.is_counted(job, 1.0)
    runs.settle({OTHER: ShownRun(1.0, 4500.0)}.get, 5001.0)
    assert not runs.is_counted(JOB, 1.0)


def test_time_in_which_a_job_was_suspended_is_not_held_against_its_owner(
    runs: ClaimedRuns,
) -> None:
    runs.claim(JOB, "ada", asks(1000))
    runs.runs(JOB, RunOnType(1.0, 400.0, "v100"))
    runs.runs(JOB, RunOnType(1.0, 7600.0, "v100"), is_stopped=True)
    runs.runs(JOB, RunOnType(1.0, 8400.0, "v100"))
    runs.settle({JOB: ShownRun(0.0)}.get, 8500.0)
    assert judged(runs) == []


def test_a_job_that_is_gone_before_it_ran_says_nothing(runs: ClaimedRuns) -> None:
    runs.claim(JOB, "ada", asks(1000))
    runs.settle({JOB: ShownRun(5000.0)}.get, 10.0)
    runs.settle({JOB: ShownRun(5000.0, 8600.0)}.get, 20.0)  # times that are to come
    runs.settle(lambda _: None, 30.0)
    assert judged(runs) == []


def test_a_cut_run_restores_no_distrust_that_has_faded(runs: ClaimedRuns) -> None:
    """A user was off by 1000 times, 300 days ago; now a run is cut at twice what was claimed."""
    runs.estimator.credits.learn("ada", 1.0, 1000.0, 0.0)
    now_s = 300 * DAY_S
    runs.claim(JOB, "ada", asks(1000))
    runs.runs(JOB, RunOnType(now_s - 2000.0, 2000.0, "v100"))
    runs.settle({JOB: ShownRun(now_s - 2000.0, now_s)}.get, now_s)
    assert runs.estimator.credits.of("ada").factor(now_s) == pytest.approx(
        math.sqrt(2.0 * 1000.0 ** (0.5**10)), rel=0.01
    )


def test_a_run_before_this_hadard_is_not_judged_again(runs: ClaimedRuns) -> None:
    runs.estimator.credits.learn("ada", 1.0, 1.0, 5000.0)
    runs.claim(JOB, "ada", asks(1000))
    runs.runs(JOB, RunOnType(1.0, 9000.0, "v100"))
    runs.settle({JOB: ShownRun(1.0, 4001.0)}.get, 9001.0)
    assert judged(runs) == []
