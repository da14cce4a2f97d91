"""Where slurmctld limits the RPCs of hadard's account (`rl_enable`), as of every user but root."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Iterator

import pytest
from docker.world import DockerCluster, wait_until

from hadar_slurm.engine.rate_limit import RELEASED_WITHIN_S
from hadar_slurm.jobspec.comment import encode
from hadar_slurm.jobspec.description import Description

pytestmark = pytest.mark.docker

CONF = "/etc/slurm/slurm.conf"
JOURNAL = "/var/log/hadar/journal.jsonl"
NODES = "n1 n2 n3 n4 n5 n6"
JOBS = 60
RATES = {"v100": 20.0, "p100": 10.0}
DESCRIPTION = encode(Description(steps=10**6, gpus=1, throughputs=RATES, checkpoint=True))
# RPCs that a user has saved at most, and gets each second, by Slurm's defaults.
SAVED, EACH_SECOND = 30, 2
# What a waiting job shows of hadard; no job here asks for any of it.
TRACE = re.compile(r" (?:(?:ReqNodeList|ExcNodeList)=(?!\(null\))\S+|Nice=(?!0 )\S+|Priority=0 )")


def _docker(*words: str) -> None:
    subprocess.run(["docker", *words], check=True, capture_output=True)


def _configure(cluster: DockerCluster, change: str) -> None:
    """Stop hadard, change slurmctld's configuration with a sed command, and restart slurmctld."""
    cluster.run("scancel", "--partition=main")
    _docker("stop", "--time", "15", cluster.containers["hadard"])
    cluster.run("sed", "-i", change, CONF)
    _docker("restart", "--time", "15", cluster.containers["ctl"])
    idle = ("sinfo", "-h", "-N", "-p", "main", "-t", "idle", "-n", NODES.replace(" ", ","))
    wait_until(lambda: cluster.attempt(*idle).stdout.count("\n") == 6, "idle nodes", limit_s=120)


@pytest.fixture
def limited(cluster: DockerCluster) -> Iterator[DockerCluster]:
    """Limit the RPCs of the cluster's users for a test; hadard does not run."""
    try:
        _configure(cluster, "$a SlurmctldParameters=rl_enable")
        yield cluster
    finally:
        _configure(cluster, "/^SlurmctldParameters=rl_enable$/d")
        _docker("start", cluster.containers["hadard"])


def _traces(cluster: DockerCluster) -> int:
    """Return how many waiting jobs show something of hadard."""
    lines = cluster.run("scontrol", "show", "job", "-o").splitlines()
    return sum(bool(TRACE.search(line)) for line in lines if " JobState=PENDING " in line)


def _rpcs(cluster: DockerCluster) -> int:
    """Return how many RPCs of hadard's account slurmctld has answered."""
    by_user = cluster.run("sdiag").partition("statistics by user")[2]
    found = re.search(r"hadar\s+\( *\d+\) count:(\d+)", by_user)
    return int(found[1]) if found else 0


def test_all_that_is_steered_can_be_given_back_in_time(limited: DockerCluster) -> None:
    """A part of the jobs is steered, and `hadar release` needs no more RPCs than 45 s allow."""
    script = (
        f"for node in {NODES}; do sbatch -Q --uid=alice -w $node --gpus-per-node=4 --chdir=/tmp"
        " -o /dev/null --wrap 'sleep 3000'; done; sleep 2;"
        f" for i in $(seq {JOBS}); do sbatch -Q --uid=bob --gpus=1 --chdir=/tmp -o /dev/null"
        f" --comment={shlex.quote(DESCRIPTION)} --wrap 'sleep 3000'; done"
    )
    limited.run("sh", "-c", script)
    limited.run("truncate", "-s0", JOURNAL)
    hadard = limited.containers["hadard"]
    _docker("start", hadard)

    def rounds() -> int:
        lines = map(json.loads, limited.run("cat", JOURNAL).splitlines())
        return sum("durations_s" in line for line in lines)

    wait_until(lambda: rounds() >= 4, "four rounds", limit_s=240)
    _docker("kill", hadard)
    assert 0 < _traces(limited) < JOBS
    before = _rpcs(limited)
    done = limited.attempt("hadar", "release", "--force", user="hadar", limit_s=180)
    assert done.returncode == 0, done.stderr
    assert _traces(limited) == 0
    assert _rpcs(limited) - before <= SAVED + EACH_SECOND * RELEASED_WITHIN_S
