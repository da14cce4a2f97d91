"""Enrolment on a real Slurm: jobs submitted without hadar-sbatch are steered, and given back."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from integration.site import HADAR, OF_THE_SITE, Site, eventually

from hadar_slurm.core.cluster import JobId
from hadar_slurm.devcluster.cluster import LocalCluster
from hadar_slurm.state.heartbeat_reader import read_heartbeat

pytestmark = pytest.mark.slurm

LUA = Path(__file__).resolve().parents[2] / "slurm_conf" / "job_submit.lua"
SBATCH = ("sbatch",)
ENROL = {"mode": "steer", "round_seconds": 1, "enrol": "{partitions: [main]}"}
ASKED = ("--gpus=1", "--time=10")
WAITS = "--wrap=sleep 1"
# What hadard may change on a job, and Slurm shows.
FIELDS = (
    "ReqNodeList ExcNodeList Nice NumNodes NumTasks TresPerNode TresPerJob TresPerTask Features "
    "Comment TimeLimit Partition Requeue"
).split()


@pytest.fixture(scope="module")
def scripted(local_cluster: Callable[..., LocalCluster]) -> LocalCluster:
    """A cluster of a V100, a P100 and a K80 node, with the shipped script beside a site's own."""
    cluster = local_cluster("v100:2,p100:2,k80:2")
    ours = cluster.directory / "hadar.lua"
    ours.write_text(LUA.read_text().replace("/run/hadar", str(cluster.directory / "run")))
    text = OF_THE_SITE.replace("{ours}", str(ours))
    (cluster.directory / "job_submit.lua").write_text(text)
    with cluster.slurm_conf.open("a") as file:
        file.write("JobSubmitPlugins=lua\n")
    cluster.stop_controller()
    cluster.start_controller()
    return cluster


@pytest.fixture
def enrolled(scripted: LocalCluster, tmp_path: Path) -> Iterator[Site]:
    """Give the three nodes, all occupied by plain jobs; hadard is not yet started."""
    site = Site(scripted, tmp_path)
    eventually(lambda: all(n.state == "idle" for n in scripted.status().nodes), "idle nodes")
    yield site
    site.close()
    scripted.cancel_jobs()
    eventually(lambda: not site.runner.run(["squeue", "-h"]).strip(), "no jobs")
    shutil.rmtree(tmp_path, ignore_errors=True)


def occupied(site: Site) -> dict[str, JobId]:
    """Occupy all GPUs; these jobs name their nodes, so that they are not steered."""
    return site.occupy(n1="gpu:2", n2="gpu:2", n3="gpu:2")


def fields(site: Site, job: JobId) -> dict[str, str]:
    """Return what Slurm shows of a pending job's request, its most nodes left out if unbounded."""
    found = dict(re.findall(r"\b(\w+)=(\S*)", site.details()[job]))
    # Slurm shows a comment that was emptied, and none that was never set.
    known = {name: found[name] for name in FIELDS if found.get(name)}
    return {**known, "NumNodes": known["NumNodes"].partition("-")[0]}


def excluded(site: Site, job: JobId) -> str:
    return fields(site, job)["ExcNodeList"]


def until_steered(site: Site, *jobs: JobId) -> None:
    """Wait until hadard has limited the nodes of all these jobs."""
    eventually(
        lambda: all(
            excluded(site, job) != "(null)" or site.queue()[job].requested_nodes for job in jobs
        ),
        lambda: site.told(*jobs),
    )


def test_a_plain_job_starts_on_the_type_that_hadard_chooses(enrolled: Site) -> None:
    """`sbatch --gpus=1` waits for the fastest type although slower GPUs become free first."""
    plain = occupied(enrolled)
    enrolled.start(**ENROL)
    # More work than the wait for the fast GPUs costs.
    job = enrolled.submit(*ASKED, WAITS, command=SBATCH)
    until_steered(enrolled, job)
    row = enrolled.queue()[job]
    assert not row.is_held
    assert row.comment == ""
    enrolled.free(plain["n1"])
    enrolled.until_completed(job)
    assert enrolled.queue()[job].nodes == ("n1",)
    assert enrolled.queue()[job].restarts == 0
    assert any(job in line["jobs"] for line in enrolled.lines())


def test_a_first_reading_that_fails_keeps_no_job_from_being_steered(enrolled: Site) -> None:
    """Nor does it end hadard, which says so once."""
    occupied(enrolled)
    job = enrolled.submit(*ASKED, WAITS, command=SBATCH)
    programs, done = enrolled.directory / "bin", enrolled.directory / "failed"
    programs.mkdir()
    real, fails = (
        shutil.which("squeue"),
        "echo slurm_load_jobs error: Connection refused >&2; exit 1",
    )
    squeue = programs / "squeue"
    squeue.write_text(f'#!/bin/sh\n[ -e {done} ] || {{ : > {done}; {fails}; }}\nexec {real} "$@"\n')
    squeue.chmod(0o755)
    path = f"{programs}:{enrolled.environment['PATH']}"
    enrolled.hadard.environment = {**enrolled.environment, "PATH": path}
    daemon = enrolled.start(**ENROL)
    until_steered(enrolled, job)
    assert done.exists()
    assert daemon.log.read_text().count("Connection refused") == 1


def test_owners_opt_out_by_comment_and_by_environment(enrolled: Site) -> None:
    """Both keep the user's comment, and hadard changes nothing of these jobs."""
    occupied(enrolled)
    enrolled.start(**ENROL)
    job = enrolled.submit(*ASKED, WAITS, command=SBATCH)
    words = enrolled.submit("--comment=mine, no-hadar", *ASKED, WAITS, command=SBATCH)
    command = ("env", "HADAR=no", "sbatch")
    outside = [
        words,
        enrolled.submit("--comment=mine", *ASKED, WAITS, command=command),
        enrolled.submit(*ASKED, WAITS, command=command),
        enrolled.submit("--no-hadar", "--comment=mine", *ASKED, WAITS),
    ]
    before = {each: fields(enrolled, each) for each in outside}
    until_steered(enrolled, job)
    enrolled.until_rounds(3)
    assert {each: fields(enrolled, each) for each in outside} == before
    assert not {*outside} & {name for line in enrolled.lines() for name in line["jobs"]}
    comments = [enrolled.queue()[each].comment for each in outside]
    assert comments == ["mine, no-hadar", "mine no-hadar", "no-hadar", "mine no-hadar"]


def test_an_array_is_steered_task_by_task(enrolled: Site) -> None:
    """Each waiting task is limited, and all complete."""
    plain = occupied(enrolled)
    enrolled.start(**ENROL)
    array = enrolled.submit("--array=0-2", *ASKED, WAITS, command=SBATCH)
    tasks = [JobId(f"{array}_{number}") for number in range(3)]
    eventually(
        lambda: any({*tasks} <= {*line["jobs"]} for line in enrolled.lines()),
        lambda: enrolled.told(*tasks),
    )
    enrolled.free(plain["n1"])
    enrolled.until_completed(*tasks)
    assert {enrolled.queue()[task].nodes for task in tasks} == {("n1",)}


def test_srun_is_steered_and_salloc_is_left_alone(enrolled: Site) -> None:
    """An srun outside of a job runs where hadard wants it; an allocation keeps its request."""
    plain = occupied(enrolled)
    enrolled.start(**ENROL)

    def begin(*words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            words, env=enrolled.environment, cwd=enrolled.directory, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    alone = begin("salloc", "--job-name=alone", *ASKED, "true")
    eventually(lambda: len(_waiting(enrolled)) == 1, "salloc waits")
    (left,) = _waiting(enrolled)
    before = fields(enrolled, left)
    step = begin("srun", *ASKED, "bash", "-c", "echo on $SLURM_JOB_NODELIST")
    try:
        eventually(lambda: len(_waiting(enrolled)) == 2, "srun waits")
        (job,) = _waiting(enrolled) - {left}
        until_steered(enrolled, job)
        enrolled.until_rounds(2)
        assert fields(enrolled, left) == before
        enrolled.free(plain["n1"])
        output, _ = step.communicate(timeout=300)
        assert "on n1\n" in output
        assert step.returncode == 0
    finally:
        for process in (alone, step):
            process.kill()
            process.communicate()


def _waiting(site: Site) -> set[JobId]:
    return {key for key, row in site.queue().items() if row.state == "PENDING"}


def test_beside_held_jobs_they_are_steered(enrolled: Site) -> None:
    """In mode `hold` no enrolled job is held, and it starts where hadard wants it."""
    plain = occupied(enrolled)
    enrolled.start(**{**ENROL, "mode": "hold"})
    job = enrolled.submit(*ASKED, WAITS, command=SBATCH)
    until_steered(enrolled, job)
    assert not enrolled.queue()[job].is_held
    enrolled.free(plain["n1"])
    enrolled.until_completed(job)
    assert enrolled.queue()[job].nodes == ("n1",)


@pytest.mark.parametrize("how", ["reloaded", "switched off", "stopped", "no ledger"])
def test_turning_it_off_gives_back_what_the_owners_asked(enrolled: Site, how: str) -> None:
    """Nodes, excluded nodes, nice values and requests are again the owner's."""
    occupied(enrolled)
    jobs = [
        enrolled.submit(*words, "--time=10", WAITS, command=SBATCH)
        for words in (
            ("--gpus=1", "--nice=7"),
            ("--gpus=2", "--ntasks=2", "--comment=mine"),
            ("--gres=gpu:1", "--nodes=1"),
            ("--gpus-per-task=1", "--ntasks=2", "--nodes=1", "--constraint=v100|p100"),
        )
    ]
    before = {job: fields(enrolled, job) for job in jobs}
    daemon = enrolled.start(**ENROL)
    until_steered(enrolled, *jobs)
    if how == "switched off":
        (enrolled.directory / "disabled").touch()
    elif how == "reloaded":
        path = daemon.directory / "hadar.yaml"
        path.write_text(path.read_text().replace(ENROL["enrol"], "{}"))
        assert daemon.process is not None
        daemon.process.send_signal(signal.SIGHUP)
    elif how == "stopped":
        daemon.stop()
    else:
        enrolled.kill(daemon)
        shutil.rmtree(enrolled.state_dir)
        config = str(daemon.directory / "hadar.yaml")
        done = enrolled.run([*HADAR, "release", "--force", "--config", config])
        assert done.returncode == 0, done.stderr
    eventually(
        lambda: {job: fields(enrolled, job) for job in jobs} == before,
        lambda: f"{before} {[fields(enrolled, job) for job in jobs]} {enrolled.told(*jobs)}",
    )


def test_a_job_that_hadard_cannot_steer_is_left_with_a_reason(enrolled: Site) -> None:
    """As hadar-sbatch would leave it; `hadar explain` says why, and the log once."""
    occupied(enrolled)
    daemon = enrolled.start(**ENROL)
    steered = enrolled.submit(*ASKED, WAITS, command=SBATCH)
    calls = {
        "no time limit": ("--gpus=1",),
        "exclusive": (*ASKED, "--exclusive"),
        "number of nodes is not certain": ("--gres=gpu:1", "--nodes=2-3", "--time=10"),
    }
    jobs = {why: enrolled.submit(*words, WAITS, command=SBATCH) for why, words in calls.items()}
    before = {job: fields(enrolled, job) for job in jobs.values()}
    until_steered(enrolled, steered)
    enrolled.until_rounds(2)
    assert {job: fields(enrolled, job) for job in jobs.values()} == before
    for why, job in jobs.items():
        assert re.search(
            f"job {job} is enrolled, but left to Slurm: .*{why}", daemon.log.read_text()
        )
        told = enrolled.run(
            [*HADAR, "explain", job, "--config", str(daemon.directory / "hadar.yaml")]
        )
        assert why in told.stdout + told.stderr
    enrolled.free(*jobs.values())
    enrolled.until_rounds(3)
    log = daemon.log.read_text()
    assert [log.count(f"job {job} is enrolled, but left") for job in jobs.values()] == [1, 1, 1]


def test_a_sites_own_script_keeps_its_answers(enrolled: Site) -> None:
    """It rejects a job with its message, and enrolled jobs are not described in their comments."""
    with pytest.raises(AssertionError, match="the site does not want this job"):
        enrolled.submit(*ASKED, "--job-name=unwanted", WAITS, command=("env", "HADAR=no", "sbatch"))
    enrolled.until_completed(enrolled.submit(*ASKED, WAITS, command=SBATCH))


def test_a_described_job_is_not_enrolled_again(enrolled: Site) -> None:
    """hadar-sbatch's description is used, and `hadar leave` returns either kind to plain Slurm."""
    occupied(enrolled)
    enrolled.start(**ENROL)
    plain = enrolled.submit(*ASKED, "--comment=mine", WAITS, command=SBATCH)
    before = fields(enrolled, plain)
    described = enrolled.train({"k80": 20.0}, "--hadar-checkpoint=no", steps=40, gpus=1)
    until_steered(enrolled, plain)
    # Neither of the types that it does not run on.
    assert set(excluded(enrolled, described).split(",")) & {"n[1-2]"}
    done = enrolled.run([*HADAR, "leave", plain])
    assert done.returncode == 0, done.stderr
    eventually(
        lambda: fields(enrolled, plain) == {**before, "Comment": "mine"},
        lambda: str(fields(enrolled, plain)),
    )
    assert enrolled.queue()[plain].comment == "mine no-hadar"


def test_a_job_whose_nodes_slurm_refuses_keeps_none_from_others(enrolled: Site) -> None:
    """It is tried on other nodes, and then left to Slurm as its owner asked."""
    site = enrolled
    plain = occupied(site)
    site.start(mode="hold", round_seconds=1, policy="hadar")
    rates, script = dict.fromkeys(("v100", "p100", "k80"), 20.0), site.script("rest", "sleep 600")
    stubborn = site.train(rates, "--job-name=stubborn", steps=20, gpus=2, script=script)
    others = [site.train(rates, steps=steps, gpus=2) for steps in (100, 200)]
    site.until_rounds(2)
    site.free(*plain.values())
    site.until_completed(*others)
    refused = f"job {stubborn} is left to Slurm, which refuses it on all nodes tried"
    eventually(lambda: refused in site.hadard.log.read_text(), lambda: site.told(stubborn))
    site.until_running(stubborn)
    assert len(site.gpus(stubborn)) == 2


def fault(site: Site) -> str:
    """Return the fault of the last rounds, if as many have failed as end the heartbeat."""
    beat = read_heartbeat(site.run_dir)
    return beat.rounds.fault if beat and beat.rounds.are_failing else ""


def test_rounds_fail_where_the_site_refuses_all_changes(enrolled: Site) -> None:
    """So no further job is held; each refusal is said once, and all ends with the refusals."""
    site, refuses = enrolled, enrolled.cluster.directory / "hadar.lua.refuses"
    plain = occupied(site)
    site.start(mode="hold", round_seconds=1)
    rates, script = dict.fromkeys(("v100", "p100", "k80"), 20.0), site.script("rest", "sleep 600")
    jobs = [site.train(rates, steps=10**5, gpus=1, script=script) for _ in range(4)]
    site.until_rounds(2)
    refuses.touch()
    try:
        site.free(*plain.values())
        eventually(lambda: "no job can be restored" in fault(site), lambda: site.told(*jobs))
        site.until_rounds(3)
        log = site.hadard.log.read_text()
        assert all(log.count(f"job {job}: not yet restored") <= 2 for job in jobs), log
    finally:
        refuses.unlink()
    site.until_running(*jobs)
