"""The shared site: what jobs hold, as Slurm shows it, and the GPUs that are idle or lost."""

from __future__ import annotations

from hadar_slurm.core.cluster import JobId
from hadar_slurm.lab.site.observation import GpuRecord, JobSeen, parse_jobs

# Of Slurm 22.05.8, shortened.
RUNNING = (
    "JobId=2 JobName=work.sh UserId=games(5) GroupId=games(60) Priority=1 QOS=normal "
    "JobState=RUNNING Reason=None Dependency=(null) Requeue=1 Restarts=1 BatchFlag=1 "
    "AccrueTime=1795488578 StartTime=1795488608 EndTime=1795489208 NodeList=p100-[1-2] "
    "JOB_GRES=gpu:p100:4 Nodes=p100-[1-2] CPU_IDs=0 Mem=100 GRES=gpu:p100:2(IDX:0-1) "
    "MinCPUsNode=1"
)
PENDING = (
    "JobId=3 ArrayJobId=3 ArrayTaskId=4-20%2 JobName=wrap UserId=news(9) JobState=PENDING "
    "Reason=Resources Restarts=0 AccrueTime=Unknown StartTime=Unknown EndTime=Unknown"
)


def a_job(job: str, state: str = "RUNNING", *gpus: str, restarts: int = 0) -> JobSeen:
    return JobSeen(JobId(job), "games", state, "None", restarts, 0.0, 0.0, 0.0, frozenset(gpus))


def record_of(*looks: list[JobSeen], managed: str, counts_idle: bool = True) -> GpuRecord:
    """Return what is recorded of looks at two GPUs that are a second apart."""
    record = GpuRecord(2)
    for second, jobs in enumerate(looks):
        record.update(
            {job.job: job for job in jobs},
            set(map(JobId, managed.split())),
            float(second),
            counts_idle=counts_idle,
        )
    return record


def test_jobs_are_read_with_the_gpus_that_they_hold() -> None:
    """Each GPU has a name of its own; times are in seconds, and 0 where Slurm knows none."""
    running, pending = parse_jobs(f"{RUNNING}\n{PENDING}\n").values()
    assert running.gpus == {f"p100-{node}/p100/{index}" for node in (1, 2) for index in (0, 1)}
    assert (running.job, running.user, running.restarts) == ("2", "games", 1)
    assert (running.accrue_s, running.started_s) == (1795488578.0, 1795488608.0)
    assert running.has_started
    assert not running.has_ended
    assert (pending.state, pending.reason, pending.gpus) == ("PENDING", "Resources", frozenset())
    assert (pending.accrue_s, pending.is_waiting) == (0.0, True)


def test_a_job_whose_nodes_boot_has_not_started() -> None:
    """A job that waits for powered-down nodes has neither started nor ended."""
    [job] = parse_jobs(RUNNING.replace("RUNNING", "CONFIGURING")).values()
    assert (job.has_started, job.has_ended) == (False, False)


def test_an_ended_job_holds_no_gpus() -> None:
    """Slurm shows the nodes of ended jobs; their GPUs are free."""
    [job] = parse_jobs(RUNNING.replace("RUNNING", "COMPLETED")).values()
    assert (job.gpus, job.has_ended, job.has_started) == (frozenset(), True, True)


def test_no_job_is_read_where_there_is_none() -> None:
    assert parse_jobs("No jobs in the system\n") == {}


def test_gpus_without_a_job_are_idle() -> None:
    """Idle GPU-seconds run between looks, and only while a judged job waits."""
    looks = [[a_job("1", "RUNNING", "a")]] * 3
    assert record_of(*looks, managed="1").idle_gpu_s == 2.0
    assert record_of(*looks, managed="1", counts_idle=False).idle_gpu_s == 0.0


def test_a_gpu_of_a_stopped_job_is_lost_to_a_plain_job() -> None:
    """A GPU is lost once, if a plain job gets it while a managed job waits."""
    before = [a_job("1", "RUNNING", "a"), a_job("9", "PENDING")]
    after = [a_job("1", "PENDING", restarts=1), a_job("9", "RUNNING", "a")]
    assert record_of(before, after, after, managed="1").lost == {"a"}


def test_a_gpu_of_a_stopped_job_is_not_lost_to_a_managed_job() -> None:
    before = [a_job("1", "RUNNING", "a"), a_job("2", "PENDING")]
    after = [a_job("1", "PENDING", restarts=1), a_job("2", "RUNNING", "a")]
    assert record_of(before, after, managed="1 2").lost == set()


def test_a_gpu_of_an_ended_job_is_not_lost() -> None:
    """A plain job may take the GPU of a job that has ended by itself."""
    before = [a_job("1", "RUNNING", "a"), a_job("2", "PENDING"), a_job("9", "PENDING")]
    after = [a_job("1", "COMPLETED"), a_job("2", "PENDING"), a_job("9", "RUNNING", "a")]
    assert record_of(before, after, managed="1 2").lost == set()


def test_a_gpu_of_a_migrated_job_is_lost_while_another_waits() -> None:
    """The stopped job may run elsewhere by the next look."""
    before = [a_job("1", "RUNNING", "a"), a_job("2", "PENDING"), a_job("9", "PENDING")]
    moved = [a_job("1", "RUNNING", "b", restarts=1), a_job("9", "RUNNING", "a")]
    assert record_of(before, [*moved, a_job("2", "PENDING")], managed="1 2").lost == {"a"}
    assert record_of(before, [*moved, a_job("2", "COMPLETED")], managed="1 2").lost == set()
