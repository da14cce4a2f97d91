"""Forked jobs (HadarE) on a real Slurm: one array, copies on separate nodes, one end."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from integration.site import Site, eventually

from hadar_slurm.core.cluster import JobId
from hadar_slurm.handoff import assignment_path, read_assignment
from hadar_slurm.resources import beside

RATES = {"v100": 10.0, "p100": 5.0, "k80": 2.0}
STAND_IN = Path(__file__).parents[1] / "fakes" / "stand_in_copy.py"


def fork(site: Site, copies: int, steps: int, *options: str, speed: float = 10.0) -> JobId:
    """Submit a job in copies of two GPUs each, and return its id."""
    return site.submit(*words_of(site, copies, steps, *options, speed=speed))


def words_of(site: Site, copies: int, steps: int, *options: str, speed: float = 10.0) -> list[str]:
    """Return the arguments of hadar-sbatch."""
    script = site.script(
        "stand-in", "trap '' USR1", f"exec {sys.executable} {STAND_IN} {steps} {speed}"
    )
    return [
        "--hadar-throughput="
        + ",".join(f"{gpu_type}={throughput}" for gpu_type, throughput in RATES.items()),
        f"--hadar-copies={copies}",
        f"--hadar-steps={steps}",
        "--hadar-gang=2",
        *options,
        script,
    ]


def tasks_of(job: JobId, copies: int) -> list[JobId]:
    return [JobId(f"{job}_{number}") for number in range(copies)]


def test_copies_run_side_by_side_and_end_as_one(site: Site) -> None:
    """Copies run on separate nodes; all tasks complete, and then a dependent job starts."""
    site.settings["policy"] = "hadare"
    site.occupy(n5="gpu:4", n6="gpu:4")
    # Within a round of two seconds a further copy would not compensate for the averaging. Within
    # one of six seconds the copies wait for the next round, and steps must be left for them.
    site.start(round_seconds=6)
    job = fork(site, 6, 600)
    tasks = tasks_of(job, 6)
    after = site.submit(f"--dependency=afterok:{job}", "--wrap=true", command=["sbatch"])
    running = lambda: [task for task in tasks if site.state(task) == "RUNNING"]  # noqa: E731
    eventually(lambda: len(running()) == 4, lambda: site.told(*tasks))
    nodes = [site.queue()[task].nodes for task in running()]
    assert sorted(nodes) == [("n1",), ("n2",), ("n3",), ("n4",)]
    site.check_gpus_are_apart()
    told = assignment_path(site.spool / "assignments", job)
    eventually(lambda: len(quotas_in(told)) == 4, lambda: str(quotas_in(told)))
    site.until_completed(*tasks, after)
    assert {line["jobs"][job]["phase"] for line in site.lines() if job in line["jobs"]}
    eventually(lambda: not told.exists(), "the assignment is forgotten")


def leave_two_nodes(site: Site) -> None:
    """Select hadare, and occupy all but two nodes."""
    site.settings["policy"] = "hadare"
    site.occupy(n2="gpu:4", n4="gpu:4", n5="gpu:4", n6="gpu:4")


def quotas_in(path: Path) -> dict[int, int]:
    found = read_assignment(path)
    return dict(found.quotas) if found else {}


def test_a_copy_gives_its_gpus_to_another_job(site: Site) -> None:
    """A copy saves and waits while another job has its GPUs, and the other copy trains on."""
    leave_two_nodes(site)
    # In rounds of two seconds a second copy would not compensate for the averaging.
    site.start(round_seconds=6)
    job = fork(site, 2, 10_000)
    tasks = tasks_of(job, 2)
    site.until_running(*tasks)
    other = site.train({"p100": 20.0}, gpus=4, steps=60)
    eventually(
        lambda: sorted(site.state(task) for task in tasks) == ["PENDING", "RUNNING"],
        lambda: site.told(*tasks),
    )
    site.until_completed(other)
    site.until_running(*tasks)
    site.run(["scancel", job])
    eventually(lambda: {site.state(task) for task in tasks} == {"CANCELLED"}, "cancelled")


def test_further_copies_leave_their_gpus_to_plain_jobs(site: Site) -> None:
    """Two of three copies leave for two plain jobs, none returns for a third, one trains on."""
    site.settings["policy"] = "hadare"
    site.occupy(n2="gpu:4", n5="gpu:4", n6="gpu:4", n1="gpu:2", n3="gpu:2", n4="gpu:2")
    site.start(round_seconds=4)
    job = fork(site, 3, 500)
    tasks = tasks_of(job, 3)
    site.until_running(*tasks)
    plain = [site.submit("--gres=gpu:2", "--wrap=sleep 600", command=["sbatch"]) for _ in range(3)]
    site.until_running(*plain[:2])
    running = [task for task in tasks if site.state(task) == "RUNNING"]
    assert len(running) == 1, f"the copies that run: {site.told(*tasks)}"
    (stays,) = running
    site.until_completed(stays)
    site.until_running(plain[2])
    assert [site.queue()[task].restarts for task in tasks if task != stays] == [1, 1]


@pytest.mark.slow
def test_a_forked_job_outlives_a_node_and_hadard(site: Site) -> None:
    """The other copy runs on; the one on the failed node is requeued, and all complete."""
    leave_two_nodes(site)
    site.start(round_seconds=6)
    job = fork(site, 2, 600)
    tasks = tasks_of(job, 2)
    site.until_running(*tasks)
    site.kill(site.hadard)
    (node,) = site.queue()[tasks[1]].nodes
    site.cluster.kill_node(node)
    eventually(lambda: site.state(tasks[1]) != "RUNNING", lambda: site.told(*tasks))
    assert site.state(tasks[0]) == "RUNNING"
    site.start(round_seconds=6)
    site.cluster.start_node(node)
    eventually(
        lambda: {site.state(task) for task in tasks} == {"COMPLETED"},
        lambda: site.told(*tasks),
        limit_s=120.0,
    )


def test_a_copy_that_ends_early_leaves_the_job_to_the_others(site: Site) -> None:
    """A copy that ends early is not started again, and a pending copy is still placed."""
    leave_two_nodes(site)
    site.start(round_seconds=6)
    site.environment["STAND_IN_STOPS"] = "1:20"
    job = fork(site, 3, 400)
    tasks = tasks_of(job, 3)
    site.until_running(*tasks[:2])
    eventually(lambda: site.state(tasks[1]) == "COMPLETED", lambda: site.told(*tasks))
    assert site.state(tasks[0]) == "RUNNING"
    # The free node goes to the pending copy, as long as the job is not done.
    eventually(lambda: site.state(tasks[2]) == "RUNNING", lambda: site.told(*tasks))
    rounds = len(site.lines())
    eventually(lambda: len(site.lines()) > rounds, "a further round")
    assert job in site.newest()["jobs"]
    site.until_completed(*tasks, limit_s=120.0)
    assert site.queue()[tasks[1]].restarts == 0


def test_who_waits_for_the_job_hears_that_all_went_well(site: Site) -> None:
    """`--wait` ends with status 0 after the last copy, which had nothing left to do."""
    leave_two_nodes(site)
    site.start()
    done = site.hadar_sbatch(*words_of(site, 6, 60, "--wait"))
    assert done.returncode == 0, done.stderr
    job = JobId(done.stdout.split()[-1])
    assert {site.state(task) for task in tasks_of(job, 6)} == {"COMPLETED"}


def test_without_hadard_it_is_one_ordinary_job(site: Site) -> None:
    """Without hadard a forked job is submitted as one ordinary job."""
    done = site.hadar_sbatch(
        "--hadar-throughput=v100=1",
        "--hadar-copies=3",
        "--hadar-steps=1",
        "--wrap=true",
    )
    assert "plain Slurm places this job: hadard is not alive here" in done.stderr
    job = JobId(done.stdout.split()[-1])
    site.until_completed(job)


@pytest.mark.parametrize("copies", ["auto", "20"])
def test_there_is_a_task_for_every_node_that_suits(site: Site, copies: str) -> None:
    """Five of the six nodes have four GPUs of one type, so there are five tasks."""
    site.vouch()
    throughputs = ",".join(f"{gpu_type}={throughput}" for gpu_type, throughput in RATES.items())
    script = site.script("rest", "sleep 600")
    job = site.submit(
        f"--hadar-throughput={throughputs}",
        f"--hadar-copies={copies}",
        "--hadar-steps=9",
        "--hadar-gang=4",
        script,
    )
    found = [key for key in site.queue() if key.startswith(f"{job}_")]
    assert sorted(found) == tasks_of(job, 5)
    assert all(site.queue()[key].is_held_by_user for key in found)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs PyTorch")
@pytest.mark.parametrize("mode", ["averaged", "auto"])
def test_a_real_training_gives_up_a_copy_and_gets_it_back(site: Site, mode: str) -> None:
    """The template trains every step once, and every copy completes, though one is preempted."""
    from hadar_slurm.runtime.files.slots import Slots

    leave_two_nodes(site)
    site.start(round_seconds=6)
    steps = 3000
    job = site.submit(
        "--hadar-throughput=v100=50,p100=50",
        "--hadar-copies=2",
        f"--hadar-steps={steps}",
        "--hadar-gang=2",
        "--cpus-per-task=1",
        f"--export=ALL,HADAR_PYTHON={sys.executable},OMP_NUM_THREADS=1,HADAR_COPY_MODE={mode}",
        str(beside("job_templates", "forked_training.sbatch")),
        f"--total-steps={steps}",
        "--step-seconds=0.02",
    )
    tasks = tasks_of(job, 2)
    site.until_running(*tasks)
    room = site.directory / f"hadar-{job}"
    slots, log = Slots(room), room / "job.log"

    def work_together() -> bool:
        if mode == "averaged":
            return slots.has_ended(2)
        return log.exists() and "copies 0, 1" in log.read_text()

    eventually(work_together, lambda: site.told(*tasks))
    other = site.train({"p100": 20.0}, gpus=4, steps=60)
    site.until_completed(other)
    eventually(
        lambda: {site.state(task) for task in tasks} == {"COMPLETED"},
        lambda: site.told(*tasks),
        limit_s=180.0,
    )
    assert sum(site.queue()[task].restarts for task in tasks) >= 1
    end = slots.newest()
    assert end is not None
    assert end[0].done.pairs == ((0, steps),)
    made = end[0].averages
    assert made >= (2 if mode == "averaged" else 1)
    eventually(lambda: sum(line["averages"] for line in site.lines()) == made, f"{made} averages")
    for number in range(2):
        text = (site.directory / f"forked-training-{job}_{number}.out").read_text()
        assert f"{steps} steps, accuracy" in text
