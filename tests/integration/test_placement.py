"""A job gets the GPUs of the plan: type, number and nodes, as Slurm shows them."""

from __future__ import annotations

import json
import re
import time

import pytest
from integration.site import ALL_FAST, Site, eventually

from hadar_slurm.core.cluster import JobId
from hadar_slurm.state.heartbeat import remove_heartbeat

pytestmark = pytest.mark.slurm

EQUAL = {"v100": 20.0, "p100": 20.0, "k80": 20.0}
LONG = 10**6  # steps of a job that outlasts its test


def check_placed(site: Site, job: JobId) -> dict[str, dict[str, int]]:
    """Wait until a job runs, fail unless it does so as planned, and return its GPUs."""
    site.until_running(job)
    assert site.tree(job) == site.planned(job)
    return site.tree(job)


@pytest.mark.parametrize(
    ("best", "busy", "nodes"),
    [
        ("v100", {}, {"n1", "n2"}),
        ("p100", {}, {"n3", "n4"}),
        ("k80", {}, {"n5"}),
        ("v100", {"n1": "gpu:4", "n2": "gpu:3"}, {"n6"}),
        ("k80", {"n5": "gpu:3"}, {"n6"}),
    ],
)
@pytest.mark.parametrize("others", [0.0, 1.0])
def test_a_held_job_starts_on_its_best_type(
    site: Site, best: str, busy: dict[str, str], nodes: set[str], others: float
) -> None:
    """One round starts a held job on two GPUs of its fastest type, also on a mixed node."""
    site.occupy(**busy)
    throughputs = {gpu_type: others for gpu_type in EQUAL if others} | {best: 20.0}
    job = site.train(throughputs, held=True, steps=LONG)
    assert site.queue()[job].is_held_by_user
    site.once()
    held = check_placed(site, job)
    assert list(held.values()) == [{best: 2}]
    assert set(held) <= nodes


@pytest.mark.parametrize("gang", ["2x2", "4"])
def test_a_gang_over_two_types_gets_two_gpus_on_each_node(site: Site, gang: str) -> None:
    """If two nodes of different types have two free GPUs each, a gang of four runs across them."""
    site.occupy(
        n1="gpu:2", n2="gpu:4", n3="gpu:2", n4="gpu:4", n5="gpu:4", n6="gpu:v100:2,gpu:k80:2"
    )
    seen = site.directory / "seen"
    script = site.script(
        "gang",
        "srun sh -c 'echo $SLURMD_NODENAME $SLURM_GPUS_ON_NODE $CUDA_VISIBLE_DEVICES'"
        f" > {seen}.new",
        f"mv {seen}.new {seen}",
        "sleep 600",
    )
    throughputs = ",".join(f"{gpu_type}={throughput}" for gpu_type, throughput in EQUAL.items())
    site.vouch()
    job = site.submit(
        f"--hadar-throughput={throughputs}", f"--hadar-gang={gang}", "--hadar-steps=9", script
    )
    site.once()
    assert check_placed(site, job) == {"n1": {"v100": 2}, "n3": {"p100": 2}}
    eventually(seen.exists, "what srun printed")
    tasks = sorted(line.split() for line in seen.read_text().splitlines())
    assert [task[:2] for task in tasks] == [["n1", "2"], ["n3", "2"]]
    assert [len(task[2].split(",")) for task in tasks] == [2, 2]


def test_tasks_of_an_array_are_placed_one_by_one(site: Site) -> None:
    """Each task of an array has its own GPUs and its own progress."""
    site.start()
    job = site.train({"v100": 20.0, "k80": 1.0}, "--array=0-2", steps=100)
    tasks = [JobId(f"{job}_{index}") for index in range(3)]
    site.until_running(*tasks)
    planned = [site.planned(task) for task in tasks]
    assert all(place is not None and "v100" in next(iter(place.values())) for place in planned)
    site.check_gpus_are_apart()
    eventually(lambda: any(0 < steps < 100 for steps in steps_seen(site, tasks[0])), "progress")
    site.until_completed(*tasks)


def test_the_journal_tells_how_many_jobs_are_held(site: Site) -> None:
    """The journal counts the jobs that wait under hadard's hold, and none once all have started."""
    blockers = site.occupy(**ALL_FAST, n5="gpu:4")
    site.start()
    jobs = [site.train({"v100": 20.0, "k80": 1.0}, held=True, steps=LONG) for _ in range(3)]
    eventually(lambda: site.newest()["held"] == len(jobs), "three holds")
    site.free(*blockers.values())
    site.until_running(*jobs)
    eventually(lambda: site.newest()["held"] == 0, "no hold")
    assert {job["partition"] for line in site.lines() for job in line["jobs"].values()} == {"main"}
    commands = [program for line in site.lines() for program in line["commands"]]
    assert {"squeue", "scontrol"} <= set(commands)


def steps_seen(site: Site, job: JobId) -> list[float]:
    """Return a job's steps in every round."""
    return [line["jobs"][job]["steps_done"] for line in site.lines() if job in line["jobs"]]


def test_a_dry_run_changes_nothing_and_prints_the_commands(site: Site) -> None:
    """Plan and commands are printed; no job, journal or heartbeat is touched."""
    [blocker] = site.occupy(n1="gpu:4").values()
    waiting = site.train({"v100": 20.0, "k80": 1.0}, held=True, steps=LONG)
    running = site.train({"p100": 20.0}, held=True, steps=LONG)
    site.run(["scontrol", "release", running])
    site.run(["scontrol", "update", f"JobId={running}", "Features=p100"])
    site.until_running(running)
    remove_heartbeat(site.run_dir)
    jobs = blocker, waiting, running
    before: set[tuple[JobId, str]] = set()

    def is_still() -> bool:
        # Slurm corrects the times of a start a moment after it shows the job as running.
        nonlocal before
        last, before = before, still_details(site, *jobs)
        time.sleep(1)
        return last == before

    eventually(is_still, "details that stay as they are")
    done = site.run_hadard("--dry-run")
    assert done.returncode == 0, done.stderr
    assert still_details(site, *jobs) ^ before == set()
    assert site.state(blocker) == "RUNNING"
    assert not site.hadard.journal.exists()
    assert list(site.run_dir.iterdir()) == []
    line = json.loads(done.stdout)
    assert line["plan"][waiting] == {"0": {"n2": {"v100": 2}}}
    [start] = [action for action in line["actions"] if action["job"] == waiting]
    assert (start["do"], start["status"]) == ("start", "skipped")
    assert re.fullmatch(
        rf"scontrol update JobId={waiting} TresPerNode= TresPerJob= .*; "
        rf"scontrol update JobId={waiting} NumNodes=1-1 ReqNodeList=n2 TresPerNode=gres.gpu:2; "
        rf"scontrol release {waiting}",
        start["detail"],
    )


def still_details(site: Site, *jobs: JobId) -> set[tuple[JobId, str]]:
    """Return scontrol's fields of these jobs, but those that change by themselves.

    RunTime increases, and LastSchedEval is the time of the scheduler's last evaluation. Slurm
    forgets the jobs of earlier tests at any time.
    """
    lines = site.details()
    return {
        (job, word)
        for job in jobs
        for word in lines[job].split()
        if not word.startswith(("RunTime=", "LastSchedEval="))
    }
