"""Jobs in columns train exactly as jobs alone: all numbers are equal in every digit."""

from __future__ import annotations

from copy import deepcopy

from builders import a_gang, a_spec
from hypothesis import given
from hypothesis import strategies as st

from hadar_slurm.core.cluster import GpuType, JobId
from hadar_slurm.core.job import Job
from hadar_slurm.sim.columns import Columns
from hadar_slurm.sim.job import SimJob

GANGS = ("n1:V100:1", "n1:V100:2 n2:V100:2", "n1:V100:1 n3:K80:1", "n3:K80:3")
TYPES = (GpuType("K80"), GpuType("V100"))

throughputs = st.floats(1e-3, 1e3)
times_s = st.floats(0.0, 400.0)


@st.composite
def running_jobs(draw: st.DrawFn) -> list[SimJob]:
    """Return jobs with one copy each, some of them with steps and service from before."""
    jobs = []
    for number in range(draw(st.integers(1, 20))):
        job = SimJob(a_spec(str(number), steps=draw(st.integers(1, 100_000))))
        for begin_s in draw(st.lists(times_s, max_size=2)):
            job.start(0, a_gang(draw(st.sampled_from(GANGS))), 1e-4, ready_s=begin_s)
            job.advance(0.0, begin_s + draw(times_s))
            job.stop(0, keeps_steps=draw(st.booleans()))
        gang = a_gang(draw(st.sampled_from(GANGS)))
        job.start(0, gang, draw(throughputs), ready_s=draw(times_s))
        jobs.append(job)
    return jobs


@given(jobs=running_jobs(), gaps_s=st.lists(times_s, max_size=6), data=st.data())
def test_jobs_in_columns_train_as_jobs_alone(
    jobs: list[SimJob], gaps_s: list[float], data: st.DataObject
) -> None:
    """Over any steps, ends of rounds and departures, states and ends are those of `SimJob`."""
    alone, columns = {job.spec.job_id: deepcopy(job) for job in jobs}, Columns(TYPES)
    left = [job for job in jobs if columns.put(job)]
    assert left == jobs
    now_s = 0.0
    shown = []
    for gap_s in gaps_s:
        to_s, ends_s = now_s + gap_s, columns.ends_s(now_s)
        own_s = {job_id: job.finish_s(now_s) for job_id, job in alone.items()}
        assert sorted(ends_s.tolist()) == sorted(own_s.values())
        ended = columns.advance(now_s, to_s, ends_s)
        own = [job_id for job_id, job in alone.items() if job.advance(now_s, to_s)]
        assert {job.spec.job_id: end_s for job, end_s in ended} == {k: own_s[k] for k in own}
        leaving = {job.spec.job_id for job in left if data.draw(st.booleans())} | set(own)
        for job in [job for job in left if job.spec.job_id in leaving]:
            assert columns.take(job)
            assert state(job) == state(alone.pop(job.spec.job_id))
            left.remove(job)
        now_s = to_s
        if data.draw(st.booleans()):
            columns.save(now_s)
            for job in alone.values():
                job.save(now_s)
        shown.append((columns.reader(), [job.as_job() for job in alone.values()]))
    # What is read late is what was there.
    for read, jobs_then in shown:
        assert sorted(read(), key=job_id_of) == sorted(jobs_then, key=job_id_of)
    columns.give_all()
    assert [state(job) for job in left] == [state(job) for job in alone.values()]


def job_id_of(job: Job) -> JobId:
    """Return the id of a job, to sort by."""
    return job.job_id


def state(job: SimJob) -> tuple[object, ...]:
    """Return all numbers that training changes."""
    steps = (job.trained_steps, job.lost_steps, job.productive_gpu_s)
    return (*steps, list(job.service.items()), job.copies)


def test_a_job_that_has_left_does_not_train() -> None:
    """Its numbers stay those of the moment when it was taken out; it can be put in again."""
    job, columns = SimJob(a_spec("1", steps=1000)), Columns(TYPES)
    job.start(0, a_gang("n1:V100:1"), 10.0, ready_s=0.0)
    assert columns.put(job)
    columns.advance(0.0, 20.0, columns.ends_s(0.0))
    assert columns.take(job)
    assert not columns.take(job)
    columns.advance(20.0, 40.0, columns.ends_s(20.0))
    assert job.trained_steps == 200.0
    assert columns.put(job)
    columns.advance(40.0, 50.0, columns.ends_s(40.0))
    columns.give_all()
    assert job.trained_steps == 300.0


def test_service_on_a_type_that_has_left_the_cluster_is_kept() -> None:
    """A job may have run before on GPUs that the cluster does not have any more."""
    job, columns = SimJob(a_spec("1", steps=1000)), Columns(TYPES)
    job.service = {GpuType("P100"): 70.0}
    job.start(0, a_gang("n1:V100:1"), 10.0, ready_s=0.0)
    assert columns.put(job)
    columns.advance(0.0, 20.0, columns.ends_s(0.0))
    (shown,) = columns.reader()()
    assert shown.progress.service_by_type == (("P100", 70.0), ("V100", 20.0))
    assert columns.take(job)
    assert job.service == {"P100": 70.0, "V100": 20.0}


def test_copies_that_share_a_job_and_gangs_that_do_not_train_are_not_put_in() -> None:
    """Both are left to `SimJob`."""
    forked, idle = SimJob(a_spec("1", max_copies=2)), SimJob(a_spec("2"))
    forked.start(0, a_gang("n1:V100:1"), 10.0, ready_s=0.0)
    forked.start(1, a_gang("n2:V100:1"), 10.0, ready_s=0.0)
    idle.start(0, a_gang("n1:V100:1"), 0.0, ready_s=0.0)
    assert not Columns(TYPES).put(forked)
    assert not Columns(TYPES).put(idle)
