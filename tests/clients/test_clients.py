"""Tools that submit jobs give the same results with the site's own sbatch as with Slurm's."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from clients.tools import MODEL, Outcome, Tool, Workplace
from integration.site import eventually

from hadar_slurm.core.cluster import JobId

pytestmark = [pytest.mark.slurm, pytest.mark.slow]


def jobs_as_asked_for(tool: Tool, outcome: Outcome) -> list[tuple[int, str]]:
    """Return the GPUs of each job, and its final state where that is deterministic."""
    return sorted((job.num_gpus, "" if tool.cancels else job.state) for job in outcome.jobs)


def test_a_tool_gives_the_same_by_the_sbatch_of_the_site(tool: Tool, workplace: Workplace) -> None:
    """The output and the jobs of a tool are the same, whether hadard places the jobs or not.

    hadard places every job with GPUs that starts, including tasks of arrays and jobs with
    dependencies, and no job without GPUs.
    """
    plain = workplace.run(tool, by="slurm")
    hadard = workplace.site.start(policy="hadar")
    site = workplace.run(tool, by="site")
    hadard.stop()

    assert site.said == plain.said
    assert jobs_as_asked_for(tool, site) == jobs_as_asked_for(tool, plain)
    with_gpus = {job.id for job in site.jobs if job.num_gpus}
    assert len(with_gpus) == tool.num_gpu_jobs
    assert len(site.jobs) == tool.num_gpu_jobs + tool.num_other_jobs
    started = {job.id for job in site.jobs if job.num_gpus and job.has_started}
    # A job that the tool cancels may have been placed without having started.
    assert started <= workplace.placed() <= with_gpus
    described = {job.id: job.description for job in site.jobs if job.description}
    assert described.keys() == with_gpus
    assert all(description.is_held for description in described.values())
    assert MODEL in {description.workload for description in described.values()}
    assert not any(job.description for job in plain.jobs)


def test_a_tool_gives_the_same_where_its_jobs_are_enrolled(
    tool: Tool, workplace: Workplace
) -> None:
    """hadard steers the jobs of Slurm's own sbatch, and none is described, held or requeued."""
    if tool.name in ("parsl", "reframe"):
        pytest.skip("it submits by sbatch as the others do, and takes minutes")
    plain = workplace.run(tool, by="slurm")
    workplace.site.start(policy="hadar", mode="steer", enrol="{partitions: [main]}")
    enrolled = workplace.run(tool, by="enrolled")
    assert enrolled.said == plain.said
    assert jobs_as_asked_for(tool, enrolled) == jobs_as_asked_for(tool, plain)
    known = {JobId(job) for line in workplace.site.lines() for job in line["jobs"]}
    # A job may start and end between two polls.
    assert known
    assert known <= {job.id for job in enrolled.jobs if job.num_gpus}
    assert not any(job.description for job in enrolled.jobs)
    rows = workplace.site.queue()
    assert not any(rows[job].is_held or rows[job].restarts for job in known)


def test_a_job_that_submitit_requeues_is_placed_again(submitit: Tool, workplace: Workplace) -> None:
    """A job that submitit stops and requeues itself resumes on a GPU."""
    workplace.site.start(policy="hadar")
    outcome = workplace.run(submitit, by="site", workload="requeue")
    assert outcome.said == {"result": [60, 1, 1]}
    assert workplace.placed() == {job.id for job in outcome.jobs}


def test_a_job_of_submitit_is_moved_by_its_own_signal(submitit: Tool, workplace: Workplace) -> None:
    """submitit asks for USR2 and requeues the job itself; each number is counted once."""
    site = workplace.site
    taken = site.occupy(n1="gpu:2", n2="gpu:1")
    site.start(
        policy="hadar", moves="{default: signals}", round_seconds=4, restart_cost_seconds=0.5
    )
    counted = site.directory / "site" / "counted"

    def free_the_faster() -> None:
        eventually(lambda: counted.exists() and len(counted.read_text().split()) > 250, "it counts")
        site.free(*taken.values())

    with ThreadPoolExecutor(1) as pool:
        freed = pool.submit(free_the_faster)
        outcome = workplace.run(submitit, by="site", workload="moved")
        freed.result()
    numbers, nodes = zip(*(line.split() for line in outcome.said["result"]), strict=True)
    assert [*map(int, numbers)] == [*range(1, 301)]
    assert [*dict.fromkeys(nodes)] == ["n3", "n1"]
    (job,) = outcome.jobs
    assert job.description is not None
    assert job.description.signal == "USR2@5"
    assert site.queue()[job.id].restarts == 1
