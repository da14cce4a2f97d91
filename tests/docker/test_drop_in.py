"""Options newer than Slurm 22.05: hadar-sbatch submits the same job as sbatch."""

from __future__ import annotations

import re

import pytest
from docker.world import DockerCluster

from hadar_slurm.jobspec.description import decode

pytestmark = pytest.mark.docker

# From the manual pages of 23.02 to 26.05. An older Slurm refuses them from both commands.
CALLS = (
    ["--tres-per-task=cpu:1,gres/gpu:1", "--ntasks=2"],
    ["--extra=words of one's own"],
    ["--prefer=v100"],
    ["--gpus=2", "--tres-bind=gres/gpu:closest"],
    ["--oom-kill-step=1", "--stepmgr"],
    ["--segment", "1", "-N2"],
    ["--segment=1", "--spread-segments"],
    ["--segment=1", "--consolidate-segments"],
    ["--resv-ports=2"],
    ["--container-id", "none"],
    ["--container-type", "none"],
    ["--mem-update", "1G"],
    ["--requeue=1"],
    ["--nodes=1,2"],
)
SCRIPT = "#!/bin/sh\n#SBATCH --job-name=newer\ntrue\n"
# Fields that differ between two submissions of the same job.
CHANCE = {"JobId", "SLUID", "SubmitTime", "EligibleTime", "AccrueTime", "LastSchedEval", "Priority",
          "AllocNode:Sid", "SubmitLine"}  # fmt: skip


def result(cluster: DockerCluster, command: str, *words: str) -> tuple[int, str, dict[str, str]]:
    """Submit and cancel a job; return the exit status, sbatch's errors and the job's fields."""
    done = cluster.attempt(command, "--hold", *words, user="alice", stdin=SCRIPT)
    lines = done.stderr.splitlines(keepends=True)
    ours = [line for line in lines if line.startswith("hadar-sbatch: ")]
    theirs = "".join(line for line in lines if line not in ours)
    assert len(ours) == (command == "hadar-sbatch"), ours
    said = re.search(r"Submitted batch job (\d+)", done.stdout)
    if said is None:
        return done.returncode, theirs, {}
    job = {
        key: value.replace(said[1], "JOB") if key in ("StdOut", "StdErr") else value
        for key, value in cluster.job(said[1]).items()
        if key not in CHANCE
    }
    cluster.run("scancel", said[1], user="alice")
    return done.returncode, theirs, job


@pytest.mark.parametrize("words", CALLS, ids=lambda words: words[0])
def test_a_newer_option_makes_the_same_job(cluster: DockerCluster, words: list[str]) -> None:
    assert result(cluster, "hadar-sbatch", *words) == result(cluster, "sbatch", *words)


@pytest.mark.parametrize("words", CALLS, ids=lambda words: words[0])
def test_a_newer_option_goes_with_ours(cluster: DockerCluster, words: list[str]) -> None:
    ours = ["--hadar-model=A3C", "--hadar-steps=100", "--hadar-gang=2"]
    told, plain = result(cluster, "hadar-sbatch", *words, *ours), result(cluster, "sbatch", *words)
    assert told[0] == plain[0]
    if told[2]:
        description = decode(told[2]["Comment"])
        assert description is not None
        assert (description.steps, description.is_held) == (100, False)
        assert told[2]["JobName"] == "newer"
