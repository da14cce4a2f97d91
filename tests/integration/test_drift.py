"""Users, operators and nodes change hadard's decisions; fail-open.md has the outcome of each.

More cases are in test_neighbours, test_moves, test_daemon and test_races.
"""

from __future__ import annotations

import os

import pytest
from integration.site import HADAR, Site, eventually

from hadar_slurm.core.cluster import JobId
from hadar_slurm.devcluster.processes import wait_until
from hadar_slurm.handoff import report_path, user_reports
from hadar_slurm.slurm.client.parse import detail_of

pytestmark = pytest.mark.slurm

EQUAL = {"v100": 20.0, "p100": 20.0, "k80": 20.0}
V100_ONLY = {"v100": 20.0}
# Every V100 of the cluster: a job with throughputs on V100s only then waits under a hold.
ALL_V100 = {"n1": "gpu:4", "n2": "gpu:4", "n6": "gpu:v100:2"}
LONG = 10**6  # steps of a job that outlasts its test


def rest(site: Site, *options: str, checkpoint: str = "no") -> JobId:
    """Submit a described job that only sleeps, with throughputs on V100s only."""
    script = site.script("rest", "exec sleep 600")
    return site.train(V100_ONLY, *options, steps=LONG, script=script, checkpoint=checkpoint)


def waiting_jobs(site: Site, count: int) -> list[JobId]:
    """Start hadard and submit jobs that it holds while no V100 is free; P100s are free."""
    site.occupy(**ALL_V100)
    site.start(round_seconds=1)
    jobs = [rest(site) for _ in range(count)]
    site.until_rounds(1)
    assert all(site.queue()[job].is_held_by_user for job in jobs)
    return jobs


def is_held(site: Site, job: JobId) -> bool:
    """Return whether a job is pending under a hold that its owner could release."""
    return site.queue()[job].is_held_by_user


def update(site: Site, job: JobId, *words: str) -> None:
    """Change a job as its owner would."""
    done = site.run(["scontrol", "update", f"JobId={job}", *words])
    assert done.returncode == 0, done.stderr


def test_what_an_owner_chooses_for_a_waiting_job_is_left_to_slurm(site: Site) -> None:
    """A job goes back to plain Slurm when its owner changes it so that hadard must not place it.

    By named nodes, an invalid comment, or `hadar leave`. Such jobs start; an unchanged job waits
    for a V100, held unless plain jobs wait as well, and so does one that now excludes nodes.
    """
    named, without, spoiled, leaving, stays = waiting_jobs(site, 5)
    # First what hadard changes itself once plain jobs wait, which the next two do.
    update(site, without, "ExcNodeList=n6")
    update(site, spoiled, 'Comment={"hadar":99}')
    update(site, named, "ReqNodeList=n4")
    left = site.run([*HADAR, "leave", leaving])
    assert left.stdout == f"job {leaving} is left to Slurm\n", left.stderr
    jobs = [named, spoiled, leaving]
    site.until_running(*jobs)
    assert set(site.tree(named)) == {"n4"}
    site.until_rounds(1)
    assert all(site.state(job) == "RUNNING" and len(site.gpus(job)) == 2 for job in jobs)
    for job in (without, stays):
        assert site.state(job) == "PENDING"
        assert job in site.newest()["jobs"]
    assert is_held(site, stays) or detail_of(site.details()[stays]).excluded
    assert "n6" in detail_of(site.details()[without]).excluded


def test_a_job_that_left_runs_on_where_it_is(site: Site) -> None:
    """A running job that leaves hadard keeps its GPUs and is in no plan any more."""
    site.start(round_seconds=1)
    job = rest(site, checkpoint="yes")
    site.until_running(job)
    held = site.gpus(job)
    assert site.run([*HADAR, "leave", job]).returncode == 0
    eventually(lambda: job not in site.newest()["jobs"], "a round without it")
    site.until_rounds(1)
    assert (site.state(job), site.gpus(job), site.queue()[job].restarts) == ("RUNNING", held, 0)
    refused = site.run([*HADAR, "leave", "99999"])
    assert refused.returncode == 1
    assert "job 99999 does not exist" in refused.stderr


def test_an_owners_hold_is_kept_until_they_release_it(site: Site) -> None:
    """A job that its owner holds stays held, and is placed again once the owner releases it."""
    site.start(round_seconds=1)
    job = rest(site)
    site.until_running(job)
    site.run(["scontrol", "requeuehold", job])
    eventually(lambda: is_held(site, job), lambda: site.told(job))
    site.until_rounds(2)
    assert not wait_until(lambda: not is_held(site, job), 0.5)
    site.run(["scontrol", "release", job])
    # Plain Slurm would delay the start by two minutes.
    site.until_running(job)
    assert len(site.gpus(job)) == 2


def test_a_requeued_job_is_placed_at_once(site: Site) -> None:
    """A job that its owner requeues starts without Slurm's delay of two minutes."""
    site.start(round_seconds=1)
    job = rest(site)
    site.until_running(job)
    site.run(["scontrol", "requeue", job])
    eventually(lambda: site.queue()[job].restarts == 1, lambda: site.told(job))
    site.until_running(job)
    row = site.queue()[job]
    assert row.restarts == 1
    assert row.started_s - row.submitted_s < 60
    assert len(site.gpus(job)) == 2


def test_a_job_whose_pin_was_taken_off_is_left_alone(site: Site) -> None:
    """A requeued job whose owner requests other nodes gets those, and is left alone."""
    site.start(round_seconds=1)
    job = rest(site)
    site.until_running(job)
    site.run(["scontrol", "requeuehold", job])
    eventually(lambda: is_held(site, job), lambda: site.told(job))
    update(site, job, "ReqNodeList=n4", "StartTime=now+1")
    site.run(["scontrol", "release", job])
    site.until_running(job)
    assert set(site.tree(job)) == {"n4"}
    site.until_rounds(2)
    assert (site.state(job), set(site.tree(job))) == ("RUNNING", {"n4"})


def test_without_its_report_a_job_has_done_no_steps_and_runs_on(site: Site) -> None:
    """A job with an invalid or lost report counts as having done no steps, and is not stopped."""
    site.start(round_seconds=1)
    job = rest(site, checkpoint="yes")
    site.until_running(job)
    path = report_path(user_reports(site.reports, os.geteuid()), job)
    path.parent.mkdir(parents=True, exist_ok=True)
    for wrong in (b"no report", b'{"version":1,"restart":0,"state":"done","steps_done":-7}', None):
        path.write_bytes(b'{"version":1,"restart":0,"state":"running","steps_done":500}')
        until_steps(site, job, 500)
        if wrong is None:
            path.unlink()
        else:
            path.write_bytes(wrong)
        until_steps(site, job, 0)
    site.until_rounds(1)
    assert (site.state(job), site.queue()[job].restarts) == ("RUNNING", 0)


def until_steps(site: Site, job: JobId, steps: int) -> None:
    """Wait until a round shows that a job has done `steps` steps."""
    eventually(lambda: site.seen(job).get("steps_done") == steps, f"{steps} steps")


def test_a_job_pinned_to_a_node_that_dies_gets_another(site: Site) -> None:
    """A pinned job that waits for memory of a node gets another node when that one is drained."""
    site.submit("--nodelist=n1", "--mem=8000", "--wrap=sleep 600", command=["sbatch"])
    site.occupy(n2="gpu:4", n6="gpu:v100:2")
    site.start(round_seconds=1, pin_timeout_seconds=600)
    job = site.train(
        {"v100": 20.0, "p100": 1.0}, steps=LONG, script=site.script("rest", "sleep 60")
    )
    eventually(lambda: site.queue()[job].requested_nodes == ("n1",), lambda: site.told(job))
    site.runner.run(["scontrol", "update", "NodeName=n1", "State=DRAIN", "Reason=test"])
    site.until_running(job)
    assert set(site.tree(job)) <= {"n3", "n4"}


def test_jobs_that_hadard_must_leave_alone(site: Site) -> None:
    """Heterogeneous and undescribed jobs are in no plan, and their holds stay."""
    site.start(round_seconds=1)
    described = rest(site)
    site.until_running(described)
    # Held by its user, not by hadar-sbatch.
    comment = site.queue()[described].comment.replace('"held":true', '"leave":false')
    plain = site.submit("--hold", "--gpus=1", "--wrap=sleep 600", command=["sbatch"])
    each = ["--hold", f"--comment={comment}", "--gpus=1"]
    het = site.submit(*each, ":", *each, "--wrap=sleep 600", command=["sbatch"])
    site.until_rounds(2)
    rows = {row.key: row for row in site.queue().values()}
    assert rows[plain].is_held_by_user
    assert [rows[JobId(f"{het}+{n}")].is_held_by_user for n in range(2)] == [True, True]
    assert set(site.newest()["jobs"]) == {described}
