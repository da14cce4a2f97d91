"""A simulation in which policies see what is believed of jobs' sizes."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from builders import a_cluster, a_spec, some_rates

from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.job import Job, JobSpec
from hadar_slurm.engine.loop import RoundRecord
from hadar_slurm.lab.study.experiment import ExperimentSettings, Told, run_experiment
from hadar_slurm.lab.study.figures import Result
from hadar_slurm.policies.registry import make_policy

RATES = some_rates(V100=10.0, K80=2.0)


def a_limited(job_id: str, steps: int, limit: float = inf, **given: object) -> JobSpec:
    """Return a job of these steps, with a limit in steps on a V100."""
    spec = a_spec(job_id, steps=steps, throughputs=RATES, **given)  # type: ignore[arg-type]
    return replace(spec, limit_s=limit / 10.0, limit_type="V100")


def play(
    *specs: JobSpec, sizes: str, policy: str = "srsf", speeds: str = "oracle", time_on: bool = False
) -> tuple[Result, list[tuple[float, dict[JobId, Job]]]]:
    """Return the result on one V100, and the jobs as the policy saw them, with the time."""
    seen: list[tuple[float, dict[JobId, Job]]] = []

    def add(record: RoundRecord) -> None:
        assert record.snapshot is not None
        seen.append((record.snapshot.now_s, dict(record.snapshot.by_id)))

    settings = ExperimentSettings(sizes=sizes, speeds=speeds, adjusts_limits=time_on)
    policy_ = make_policy(policy)
    result = run_experiment(specs, a_cluster("1xV100"), policy_, settings, on_round=add)
    return result, seen


def test_a_job_ends_by_its_true_steps_and_is_seen_with_those_of_its_limit() -> None:
    """The limit is five times too long; without one a job is never taken to end."""
    result, seen = play(a_limited("1", 6000, 30_000), sizes="limit")
    assert result.mean_jct_s == pytest.approx(600.0)
    assert {jobs[JobId("1")].spec.total_steps for _, jobs in seen if jobs} == {30_000}


def test_a_job_without_a_limit_is_seen_with_the_longest_of_all() -> None:
    """It is ended by none."""
    result, seen = play(a_limited("1", 6000), a_limited("2", 3000, 4000), sizes="limit")
    assert seen[0][1][JobId("1")].spec.total_steps == 4000
    assert (result.completed, result.killed) == (2, 0)


def test_a_job_that_outlives_its_limit_is_half_done() -> None:
    """On a K80 it would have reached it: on a V100 more steps fit."""
    spec = replace(a_limited("1", 20_000), limit_s=3000.0, limit_type="K80")
    result, seen = play(spec, sizes="limit")
    assert result.mean_jct_s == pytest.approx(2000.0)
    job = next(jobs[JobId("1")] for now_s, jobs in seen if now_s >= 1000.0)
    assert job.spec.total_steps == pytest.approx(2 * job.progress.steps_done)


@pytest.mark.parametrize("policy", ["srsf", "hadar", "e-las", "slurm"])
@pytest.mark.parametrize("sizes", ["limit", "learned", "prior"])
def test_nothing_shows_the_true_size_of_a_job_that_goes_on(sizes: str, policy: str) -> None:
    """Two worlds that differ in the end of one job are the same until then, to every policy."""
    others = [
        a_limited(str(number), 500 * number, 40_000.0, submitted_s=60.0 * number, user="ada")
        for number in range(2, 8)
    ]
    worlds = [
        play(a_limited("1", steps, 40_000.0, user="ada"), *others, sizes=sizes, policy=policy)
        for steps in (9_000, 21_000)
    ]
    (short, first), (_, second) = worlds
    until_s = next(done.end_s for done in short.jcts if done.job_id == "1")
    early = [(now_s, jobs) for now_s, jobs in first if now_s < until_s]
    assert early == second[: len(early)]
    assert len(early) > 3


def test_what_ended_teaches_and_the_prior_does_not() -> None:
    """The twentieth job of 100 minutes is expected to take about that only where jobs teach."""
    specs = [
        a_limited(str(n), 60_000, user="ada", workload="bert", submitted_s=7000.0 * n)
        for n in range(1, 22)
    ]
    for sizes, is_right in (("learned", True), ("prior", False)):
        _, seen = play(*specs, sizes=sizes)
        last = next(jobs[JobId("21")] for _, jobs in seen if JobId("21") in jobs)
        is_near = 0.7 * 60_000 < last.spec.total_steps < 1.4 * 60_000
        assert last.progress.steps_done == 0.0
        assert is_near == is_right


@pytest.mark.parametrize("sizes", ["oracle", "limit", "learned", "prior"])
def test_policies_see_the_distribution_where_sizes_are_learned(sizes: str) -> None:
    """Only what jobs teach is a distribution; its value now is the rest of the steps."""
    _, seen = play(a_limited("1", 60_000, 300_000), sizes=sizes)
    for _, jobs in seen:
        for job in jobs.values():
            assert (job.belief is not None) is (sizes == "learned")
            if job.belief:
                left_s = job.belief.left_s(job.progress.steps_done / 10.0)
                assert job.steps_left / 10.0 == pytest.approx(left_s, abs=0.2)


@pytest.mark.parametrize("time_on", [False, True])
def test_a_limit_that_is_adjusted_to_the_type_ends_no_job(time_on: bool) -> None:
    """As under hadard, the policy sees it only where it stays as it was written."""
    _, seen = play(a_limited("1", 6000, 30_000), sizes="prior", time_on=time_on)
    limits_s = {jobs[JobId("1")].spec.limit_s for _, jobs in seen if jobs}
    assert limits_s == {inf if time_on else 3000.0}


def test_a_history_is_known_from_the_start() -> None:
    """Where one is given, and its jobs are not played."""
    before = [a_limited(f"old{n}", 60_000, user="ada", workload="bert") for n in range(20)]
    spec = a_limited("1", 600, user="ada", workload="bert")
    seen: list[Job] = []

    def add(record: RoundRecord) -> None:
        assert record.snapshot is not None
        seen.extend(record.snapshot.jobs)

    settings = ExperimentSettings(sizes="learned")
    policy, cluster = make_policy("srsf"), a_cluster("1xV100")
    result = run_experiment(
        [spec], cluster, policy, settings, told=Told(history=before), on_round=add
    )
    assert result.jobs == result.completed == 1
    assert 0.7 * 60_000 < seen[0].spec.total_steps < 1.4 * 60_000
    # The one job played is judged, and no other.
    assert result.beyond_q50 == 0.0


def test_sizes_are_learned_in_the_speeds_that_are_known() -> None:
    """Also where no throughput is known beforehand."""
    specs = [a_limited(str(n), 6_000, user="ada", workload="bert") for n in range(1, 5)]
    result, _ = play(*specs, sizes="learned", speeds="learned")
    assert result.completed == 4


@pytest.mark.parametrize("sizes", ["oracle", "limit", "learned", "prior"])
def test_a_run_says_how_many_jobs_outlasted_what_was_believed(sizes: str) -> None:
    """Only where sizes are learned: of four jobs that train almost to their limits, all."""
    specs = [a_limited(str(n), 59_900, 60_000, user=f"u{n}") for n in range(1, 5)]
    result, _ = play(*specs, sizes=sizes)
    assert result.beyond_q50 == (1.0 if sizes == "learned" else None)
    assert (result.beyond_q90 is None) == (sizes != "learned")
