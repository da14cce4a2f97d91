"""Copies with other GPUs, cores and memory on each GPU type: tasks of one array on a real Slurm."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from integration.site import Site, eventually

from hadar_slurm.core.cluster import JobId
from hadar_slurm.devcluster.cluster import LocalCluster

pytestmark = [pytest.mark.slurm, pytest.mark.usefixtures("accounting_programs")]

STAND_IN = Path(__file__).parents[1] / "fakes" / "stand_in_copy.py"
# What sacct says of a copy on each type, and of a task with the request as submitted.
ON_V100 = {"gres/gpu": "1", "gres/gpu:v100": "1", "cpu": "2", "mem": "600M"}
ON_K80 = {"gres/gpu": "4", "gres/gpu:k80": "4", "cpu": "8", "mem": "2400M"}


@pytest.fixture(scope="module")
def accounted(
    local_cluster: Callable[..., LocalCluster], accounting_programs: object
) -> Iterator[LocalCluster]:
    """Two nodes with one V100 and two with four K80s, and a database of jobs."""
    with local_cluster("v100:1,v100:1,k80:4,k80:4", accounting=True) as cluster:
        yield cluster


@pytest.fixture
def site(accounted: LocalCluster, tmp_path: Path) -> Iterator[Site]:
    """The cluster without jobs, and a hadard under the policy `hadare`, not yet started."""
    accounted.cancel_jobs()
    found = Site(accounted, tmp_path)
    found.settings |= {"policy": "hadare", "round_seconds": 6}
    yield found
    found.close()
    accounted.cancel_jobs()


def fork(site: Site, copies: int, steps: int, *options: str) -> tuple[JobId, list[JobId]]:
    """Submit a job in copies of one V100 or four K80s; return its id and those of its tasks."""
    script = site.script("copies", "trap '' USR1", f"exec {sys.executable} {STAND_IN} {steps} 10")
    job = site.submit(
        "--hadar-gang=v100:1,k80:4",
        "--hadar-cores=v100:2,k80:8",
        "--hadar-mem=v100:600M,k80:2400M",
        "--hadar-throughput=v100=10,k80=8",
        f"--hadar-copies={copies}",
        f"--hadar-steps={steps}",
        "--mem=300",
        *options,
        script,
    )
    return job, [JobId(f"{job}_{number}") for number in range(copies)]


def allocated(site: Site, task: JobId) -> dict[str, str]:
    """Return what the accounting says that a task has or had, without billing and nodes."""
    line = site.runner.run(["sacct", "-nPXj", task, "--format", "AllocTRES"]).strip()
    found = dict(part.split("=") for part in filter(None, line.split(",")))
    return {name: value for name, value in found.items() if name not in ("billing", "node")}


def hadar(site: Site, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command `hadar` with the configuration of the site's daemon."""
    config = ["--config", str(site.hadard.directory / "hadar.yaml")]
    return site.run([sys.executable, "-m", "hadar_slurm.cli.main", *words, *config])


def detail(site: Site, task: JobId) -> str:
    """Return the line of one task."""
    return site.runner.run(["scontrol", "show", "job", "-d", "-o", task])


def nodes_of(site: Site, tasks: list[JobId]) -> dict[str, JobId]:
    """Return the running tasks by node."""
    rows = site.queue()
    return {rows[t].nodes[0]: t for t in tasks if rows[t].state == "RUNNING" and rows[t].nodes}


def test_copies_of_one_array_run_with_gangs_of_their_own(site: Site) -> None:
    """At the same time, two tasks have one V100 and two have four K80s, with cores and memory."""
    site.start()
    job, tasks = fork(site, 4, 1500)
    eventually(lambda: len(nodes_of(site, tasks)) == 4, lambda: site.told(*tasks))
    site.check_gpus_are_apart()
    on = nodes_of(site, tasks)
    assert set(on) == {"n1", "n2", "n3", "n4"}
    for node, wanted in (("n1", ON_V100), ("n2", ON_V100), ("n3", ON_K80), ("n4", ON_K80)):
        eventually(
            lambda n=node, w=wanted: allocated(site, on[n]) == w,
            lambda n=node: f"{n}: {allocated(site, on[n])}",
        )
    assert {re.search(r"ArrayJobId=(\d+)", detail(site, task))[1] for task in tasks} == {job}  # type: ignore[index]
    site.until_rounds(1)
    shown = hadar(site, "explain", job).stdout
    assert "10 GPUs in 4 copies" in shown, shown
    assert re.search(r"n1 +1 v100", shown, re.IGNORECASE), shown
    assert re.search(r"n3 +4 k80", shown, re.IGNORECASE), shown
    site.until_completed(*tasks)


def test_a_copy_that_changes_its_type_gets_that_gang(site: Site) -> None:
    """A task that gave four K80s to another job goes on with one V100, its cores and memory."""
    plain = site.occupy(n2="gpu:1", n4="gpu:4")
    site.start()
    _, tasks = fork(site, 2, 100_000)
    eventually(lambda: set(nodes_of(site, tasks)) == {"n1", "n3"}, lambda: site.told(*tasks))
    moved = nodes_of(site, tasks)["n3"]
    eventually(lambda: allocated(site, moved) == ON_K80, lambda: str(allocated(site, moved)))
    other = site.train({"k80": 20.0}, gpus=4, steps=100_000)
    eventually(lambda: site.state(moved) == "PENDING", lambda: site.told(*tasks, other))
    site.until_running(other)
    site.free(plain["n2"])
    eventually(lambda: nodes_of(site, tasks).get("n2") == moved, lambda: site.told(*tasks))
    eventually(lambda: allocated(site, moved) == ON_V100, lambda: str(allocated(site, moved)))
    site.runner.run(["scancel", tasks[0].partition("_")[0], other])


def test_the_release_of_a_copy_gives_it_back_what_its_owner_asked(site: Site) -> None:
    """After `hadar release` a copy asks for the GPU, the core and the memory of its submission."""
    site.occupy(n2="gpu:1", n4="gpu:4")
    site.start()
    _, tasks = fork(site, 2, 100_000)
    eventually(lambda: set(nodes_of(site, tasks)) == {"n1", "n3"}, lambda: site.told(*tasks))
    moved = nodes_of(site, tasks)["n3"]
    other = site.train({"k80": 20.0}, gpus=4, steps=100_000)
    eventually(lambda: site.state(moved) == "PENDING", lambda: site.told(*tasks, other))
    site.until_running(other)
    site.kill(site.hadard)
    done = hadar(site, "release")
    assert done.returncode == 0, done.stderr
    words = set(detail(site, moved).split())
    wanted = {"TresPerNode=gres:gpu:1", "MinCPUsNode=1", "CPUs/Task=1", "MinMemoryNode=300M"}
    assert {word.replace("gres/", "gres:") for word in words} >= wanted, words
    assert not site.queue()[moved].is_held
    site.runner.run(["scancel", tasks[0].partition("_")[0], other])
