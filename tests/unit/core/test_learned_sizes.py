"""The ended jobs of a site: each counts once, and an estimate says on which it rests."""

from __future__ import annotations

import math

import pytest

from hadar_slurm.cli.learning.speeds import medians
from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.learned_sizes import (
    LEAST_JOBS,
    EndedJob,
    EndedJobs,
    learned_steps,
)
from hadar_slurm.core.throughput_model import Workload
from hadar_slurm.core.type_failures import Unsized, Work

FIT = Work(Workload("ann", "job:fit"), 1)


def jobs(number: int, work: Work = FIT, *, service_s: float = 600.0, first: int = 1) -> EndedJobs:
    """Return jobs that ended a minute apart."""
    return EndedJobs.of(
        EndedJob(JobId(str(n)), 1e9 + 60 * n, work, service_s) for n in range(first, first + number)
    )


def test_a_job_counts_once_however_often_it_is_learned() -> None:
    """By its number and its end: a later job of the same number is another one."""
    known = jobs(3)
    (first, *_) = list(known.jobs.values())
    assert not known.add(first)
    assert not known.add(first._replace(ended_s=first.ended_s + 0.3))
    assert known.add(first._replace(ended_s=first.ended_s + 1e6))
    assert (len(known.jobs), len(known.news)) == (4, 1)


def test_enough_jobs_have_to_have_ended() -> None:
    assert not jobs(LEAST_JOBS - 1).suffice
    assert jobs(LEAST_JOBS).suffice


def test_the_origin_names_the_narrowest_level_that_tells() -> None:
    """Three jobs are enough; then come the workload, the user, and the site."""
    known = EndedJobs()
    for many, work in (
        (3, FIT),
        (5, Work(FIT.workload, 2)),
        (4, Work(Workload("ann", "job:resnet (resnet-50)"), 1)),
        (9, Work(Workload("ben", "job:x"), 1)),
    ):
        for job in jobs(many, work, first=1 + len(known.jobs)).jobs.values():
            known.add(job)
    assert known.origin(FIT) == "3 ended jobs of job:fit on 1 GPU"
    assert known.origin(Work(FIT.workload, 8)) == "8 ended jobs of job:fit"
    assert known.origin(Work(Workload("ann", "job:new"), 1)) == "12 ended jobs of ann"
    assert known.origin(Work(Workload("eve", "job:new"), 1)) == "21 ended jobs of this site"


def test_a_size_is_learned_within_the_limit() -> None:
    """Jobs that end after ten minutes make a new one short, and its limit is the most."""
    known = jobs(40).durations
    steps, _ = learned_steps(known, Unsized(FIT), done=0.0, best=10.0, stays=False)
    assert 3000 < steps < 18_000
    within = Unsized(FIT, 10.0, 10.0)
    assert learned_steps(known, within, done=0.0, best=10.0, stays=False)[0] == 100
    # One that has outlived all of them is taken to train on.
    late, _ = learned_steps(known, Unsized(FIT), done=100_000.0, best=10.0, stays=False)
    assert late > 105_000


def test_one_user_moves_the_sizes_of_others_by_a_bounded_part() -> None:
    """However many short jobs a user runs, to others they count as thirty at most."""
    honest = [jobs(1, Work(Workload(f"u{n}", "job:x"), 1), service_s=36_000.0) for n in range(60)]

    def size(liars: int) -> int:
        known = EndedJobs()
        for number, each in enumerate(honest):
            (job,) = each.jobs.values()
            known.add(job._replace(job_id=JobId(f"h{number}")))
        liar = Work(Workload("eve", "job:x"), 1)
        for job in jobs(liars, liar, service_s=1.0).jobs.values():
            known.add(job)
        known.durations.renew()
        new = Work(Workload("new", "job:y"), 1)
        return learned_steps(known.durations, Unsized(new), done=0.0, best=1.0, stays=False)[0]

    assert size(2000) == pytest.approx(size(60), rel=0.1)


def test_what_another_process_learned_is_taken_over() -> None:
    """The news of this one are kept beside it."""
    known = jobs(2)
    (mine,) = jobs(1, first=9).jobs.values()
    known.add(mine)
    known.take_over(jobs(5))
    assert {job for job, _ in known.jobs} == {"1", "2", "3", "4", "5", "9"}
    assert known.origin(FIT) == "6 ended jobs of job:fit on 1 GPU"


@pytest.mark.parametrize("theirs_s", [math.inf, 3600.0])
def test_a_limit_that_is_new_is_kept_where_another_process_knows_none(theirs_s: float) -> None:
    """Else it would be lost before it is written; one that the other knows counts."""
    known = jobs(2)
    (job, _) = known.jobs.values()
    known.add(job._replace(asked_s=7200.0))
    others = EndedJobs.of(each._replace(asked_s=theirs_s) for each in jobs(5).jobs.values())
    known.take_over(others)
    assert known.jobs[job.key].asked_s == min(theirs_s, 7200.0)
    assert known.news == {job.key}
    assert len(known.jobs) == 5
    assert known.origin(FIT) == "5 ended jobs of job:fit on 1 GPU"


def test_medians_are_by_work() -> None:
    known = [*jobs(3, service_s=60.0).jobs.values(), *jobs(2, Work(FIT.workload, 2)).jobs.values()]
    assert list(medians(known)) == [(FIT, 3, 60.0), (Work(FIT.workload, 2), 2, 600.0)]


def test_a_job_that_will_run_to_its_end_has_the_mean_size() -> None:
    """Where lengths differ widely the index, which ranks what can be stopped, is below it."""
    known = EndedJobs()
    for number in range(60):
        service_s = 300.0 if number % 2 else 36_000.0
        for job in jobs(1, service_s=service_s, first=1 + number).jobs.values():
            known.add(job)
    durations, job = known.durations, Unsized(FIT, 86_400.0, 86_400.0)
    index, mean = (
        learned_steps(durations, job, done=0.0, best=1.0, stays=stays)[0] for stays in (False, True)
    )
    assert mean == pytest.approx(durations.belief(job, 0.0).mean_left_s(0.0), abs=1.0)
    assert index < 0.5 * mean


def test_coverage_is_told_once_and_with_enough_jobs() -> None:
    """Sixty jobs of ten users, as long as each other: the shares are of all that have ended."""
    known = EndedJobs()
    for number in range(60):
        work = Work(Workload(f"u{number % 10}", "job:x"), 1)
        for job in jobs(1, work, service_s=3000.0 + number, first=1 + number).jobs.values():
            known.add(job)
        if number < LEAST_JOBS - 1:
            assert known.take_coverage() == {}
    found = known.take_coverage()
    assert found["jobs"] == 60
    assert 1.0 >= found["beyond_q50"] >= found["beyond_q75"] >= found["beyond_q90"] >= 0.0
    assert known.take_coverage() == {}


def test_a_job_of_an_earlier_version_gets_its_limit() -> None:
    """When the history is read again; it is not new."""
    known = jobs(1)
    (job,) = known.jobs.values()
    assert not known.add(job._replace(asked_s=7200.0))
    assert known.jobs[job.key].asked_s == 7200.0
    assert known.news == {job.key}
    assert not known.add(job)
    assert known.jobs[job.key].asked_s == 7200.0
