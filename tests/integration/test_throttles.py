"""Jobs that a limit keeps from starting hold no GPUs, and start once the limit permits."""

from __future__ import annotations

import getpass
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from integration.site import LIMIT_S, Site, eventually

from hadar_slurm.core.cluster import JobId
from hadar_slurm.devcluster.cluster import LocalCluster
from hadar_slurm.devcluster.processes import wait_until
from hadar_slurm.policies.registry import DEFAULT_POLICY

pytestmark = pytest.mark.slurm

FAST = {"v100": 20.0, "p100": 10.0, "k80": 5.0}
V100_ONLY = {"v100": 20.0}
# Plain Slurm starts such a job at once; a pin would time out after a minute.
PROMPT_S = 15.0


@pytest.fixture
def site(site: Site) -> Site:
    """Give a site with the default policy and rounds of a minute."""
    site.settings |= {"policy": DEFAULT_POLICY, "round_seconds": 60, "pin_timeout_seconds": 60}
    return site


def submit(site: Site, *options: str, seconds: int = 600, **given: object) -> JobId:
    """Submit a job or array that only sleeps, by default with one GPU and fastest on V100s."""
    script = site.script(f"sleep-{seconds}", f"sleep {seconds}")
    told = {"gpus": 1, "checkpoint": "no", "steps": 10**6, **given}
    throughputs = told.pop("throughputs", FAST)
    return site.train(throughputs, *options, script=script, **told)  # type: ignore[arg-type]


def states(site: Site, *jobs: JobId) -> list[str]:
    """Return the states of jobs and of all tasks of arrays."""
    queue = site.queue()
    return [row.state for key, row in queue.items() if key.partition("_")[0] in jobs]


def is_unpinned(site: Site, job: JobId) -> bool:
    """Return whether a job is pending under hadard's hold, and so no longer pinned to GPUs."""
    row = site.queue()[job]
    return row.state == "PENDING" and row.is_held_by_user


def is_in_queue(site: Site, job: JobId) -> bool:
    """Return whether a job waits in Slurm's queue, not held and without nodes that it must have."""
    row = site.queue()[job]
    return row.state == "PENDING" and not row.is_held and not row.requested_nodes


def is_denied(site: Site, job: JobId) -> bool:
    """Return whether a job is held again because its partition has denied it its time limit."""
    is_limited = "PartitionTimeLimit" in waits(site, job)[1]
    return is_limited and is_unpinned(site, job)


def waits(site: Site, job: JobId) -> tuple[str, str]:
    """Return a job's wait reason and remarks in the newest round."""
    line = site.newest()
    return line["waiting"].get(job, ""), "; ".join(line["jobs"][job].get("remarks", ()))


def test_an_array_takes_no_more_gpus_than_it_may_use(site: Site) -> None:
    """Two tasks of the array run, the others hold no GPUs, and another job starts at once."""
    site.start()
    array = submit(site, "--array=1-20%2")
    eventually(lambda: states(site, array).count("RUNNING") == 2, lambda: site.told(array))
    other = submit(site, gpus=4, throughputs=V100_ONLY)
    eventually(lambda: site.state(other) == "RUNNING", lambda: site.told(other), PROMPT_S)
    rest = [JobId(f"{array}_{task}") for task in range(1, 21)]
    held = [task for task in rest if site.state(task) == "PENDING"]
    assert len(held) == 18
    assert all(is_unpinned(site, task) for task in held)
    why, remark = waits(site, held[-1])
    assert why == "a limit keeps it from starting"
    assert "no more than 2 tasks at once (JobArrayTaskLimit)" in remark


def test_as_one_task_of_an_array_ends_one_is_started(site: Site) -> None:
    """Each task is started once, when another ends, and at most two are planned at once."""
    site.start()
    array = submit(site, "--array=1-8%2", seconds=2)
    tasks = [JobId(f"{array}_{task}") for task in range(1, 9)]
    eventually(lambda: set(states(site, array)) == {"COMPLETED"}, lambda: site.told(*tasks))
    for task in tasks:
        done = [action for action in site.actions(task) if action["do"] == "start"]
        assert [action["status"] for action in done] == ["done"]
    assert max(len(line["plan"]) for line in site.lines()) == 2


@pytest.fixture
def licence(cluster: LocalCluster) -> Iterator[None]:
    """Give the cluster one licence."""
    runner = cluster.runner()
    before = cluster.slurm_conf.read_text()
    cluster.slurm_conf.write_text(f"{before}Licenses=lic:1\n")
    runner.run(["scontrol", "reconfigure"])
    yield
    cluster.cancel_jobs()
    cluster.slurm_conf.write_text(before)
    runner.run(["scontrol", "reconfigure"])


@pytest.mark.slow
@pytest.mark.usefixtures("licence")
def test_jobs_that_wait_for_a_licence_hold_no_gpus(site: Site) -> None:
    """One job has the licence; the others leave the GPUs to another job, and start in turn."""
    site.start()
    first = submit(site, "--licenses=lic")
    site.until_running(first)
    waiting = [submit(site, "--licenses=lic", seconds=2) for _ in range(8)]
    other = submit(site, gpus=4, throughputs=V100_ONLY)
    eventually(lambda: site.state(other) == "RUNNING", lambda: site.told(other), PROMPT_S)
    eventually(lambda: all(is_unpinned(site, job) for job in waiting), lambda: site.told(*waiting))
    site.free(first)
    site.until_completed(*waiting)


def test_a_job_that_its_partition_does_not_take_holds_no_gpus(site: Site) -> None:
    """A job above the partition's time limit holds no GPUs, and starts once the limit is raised."""
    site.start(pin_timeout_seconds=2)
    # hadar-sbatch leaves jobs above the limit of the time to Slurm.
    busy = site.occupy(n1="gpu:4", n2="gpu:4")
    long = submit(site, "--time=60", gpus=4, throughputs=V100_ONLY)
    more = submit(site, "--time=60", gpus=4, throughputs=V100_ONLY)
    site.set_partition("MaxTime=30")
    try:
        site.free(*busy.values())
        other = submit(site, "--time=10", gpus=4, throughputs=V100_ONLY)
        eventually(lambda: site.state(other) == "RUNNING", lambda: site.told(other), PROMPT_S)
        for job in (long, more):
            eventually(lambda job=job: is_denied(site, job), lambda job=job: site.told(job))
    finally:
        site.set_partition("MaxTime=INFINITE")
    # One node is left for the two.
    eventually(lambda: "RUNNING" in states(site, long, more), lambda: site.told(long, more))
    assert not wait_until(lambda: site.state(other) != "RUNNING", 0.5)
    assert LIMIT_S > PROMPT_S


@pytest.fixture
def limited(
    local_cluster: Callable[..., LocalCluster], accounting_programs: object, tmp_path: Path
) -> Iterator[Site]:
    """Give a cluster with a QOS in which a user may have two GPUs at once."""
    cluster = local_cluster("v100:4,v100:4,v100:4", accounting=True)
    with cluster:
        sacctmgr = ["sacctmgr", "--immediate"]
        run = cluster.runner().run
        run([*sacctmgr, "add", "qos", "low", "MaxTRESPerUser=gres/gpu=2"])
        run([*sacctmgr, "modify", "user", getpass.getuser(), "set", "qos=low,normal"])
        site = Site(cluster, tmp_path)
        site.settings |= {"policy": DEFAULT_POLICY, "round_seconds": 60, "pin_timeout_seconds": 60}
        yield site
        site.close()


def test_a_user_at_the_limit_of_a_qos_leaves_the_gpus_to_others(limited: Site) -> None:
    """Two of twelve GPUs run jobs of the QOS; a job of four GPUs in another QOS starts at once.

    Where QOS differ, Slurm keeps the queue in mode `hold` too.
    """
    site = limited
    site.start()
    jobs = [submit(site, "--qos=low", throughputs=V100_ONLY) for _ in range(14)]
    queue = site.queue
    eventually(
        lambda: [queue()[job].state for job in jobs].count("RUNNING") == 2,
        lambda: site.told(*jobs),
    )
    other = submit(site, "--qos=normal", gpus=4, throughputs=V100_ONLY)
    eventually(lambda: site.state(other) == "RUNNING", lambda: site.told(other), PROMPT_S)
    waiting = [job for job in jobs if site.state(job) == "PENDING"]
    eventually(lambda: all(is_in_queue(site, job) for job in waiting), lambda: site.told(*waiting))
    eventually(lambda: "QOSMaxGRESPerUser" in waits(site, waiting[-1])[1], lambda: site.told(other))
    [first, *_] = [job for job in jobs if site.state(job) == "RUNNING"]
    site.free(first)
    eventually(
        lambda: [queue()[job].state for job in jobs].count("RUNNING") == 2,
        lambda: site.told(*jobs),
        PROMPT_S,
    )
    assert [site.state(job) for job in waiting].count("RUNNING") == 1
    assert all(is_in_queue(site, job) for job in waiting if site.state(job) == "PENDING")
