"""The dockerized cluster works as docs/docker.md says, and hadard controls it as an operator."""

from __future__ import annotations

import json

import pytest
from docker.world import USERS, DockerCluster, wait_until

from hadar_slurm.slurm.client.fairshare import parse_fair_shares
from hadar_slurm.slurm.client.parse import parse_nodes

pytestmark = pytest.mark.docker

NODES = {
    "n1": {"v100": 4},
    "n2": {"v100": 4},
    "n3": {"p100": 4},
    "n4": {"p100": 4},
    "n5": {"k80": 4},
    "n6": {"k80": 2, "v100": 2},
}
# Prints the user of every process that runs hadard; the image has no ps.
USERS_OF_HADARD = """
from contextlib import suppress
from pathlib import Path
for process in Path("/proc").glob("[0-9]*"):
    with suppress(FileNotFoundError, ProcessLookupError):
        words = (process / "cmdline").read_bytes().split(b"\\0")
        if any(word.endswith(b"bin/hadard") for word in words):
            print(process.owner())
"""


def test_six_nodes_are_idle_with_their_gpus(cluster: DockerCluster) -> None:
    def idle() -> set[str]:
        return set(cluster.run("sinfo", "-h", "-N", "-t", "idle", "-o", "%N").split())

    wait_until(lambda: idle() == set(NODES), "six nodes are idle")
    rows = parse_nodes(cluster.run("scontrol", "show", "node", "-o"))
    assert {str(row.node.name): dict(row.node.gpus) for row in rows} == NODES


@pytest.mark.parametrize(
    ("user", "gpu_type", "places"),
    [
        ("alice", "v100", {"n1", "n2", "n6"}),
        ("bob", "p100", {"n3", "n4"}),
        ("carol", "k80", {"n5", "n6"}),
        ("dave", "v100", {"n1", "n2", "n6"}),
    ],
)
def test_a_users_job_runs_on_the_gpus_it_asks_for(
    cluster: DockerCluster, user: str, gpu_type: str, places: set[str]
) -> None:
    number = cluster.submit(
        f"--gres=gpu:{gpu_type}:2", user=user, script='echo "$(id -un) $CUDA_VISIBLE_DEVICES"'
    )
    ended = cluster.wait_for_state(number, "COMPLETED")
    assert ended["NodeList"] in places
    name, devices = cluster.run("cat", f"slurm-{number}.out", user=user).split()
    assert name == user
    assert len(devices.split(",")) == 2


def test_hadard_is_an_operator_and_nothing_more(cluster: DockerCluster) -> None:
    # A command that hadard is just starting still has hadard's arguments.
    users = set(cluster.run("python", "-c", USERS_OF_HADARD, service="hadard").split())
    assert users == {"hadar"}
    config = cluster.run("scontrol", "show", "config")
    assert "SlurmUser               = slurm(" in config
    level = cluster.run("sacctmgr", "-nP", "show", "user", "hadar", "format=adminlevel")
    assert level.strip() == "Operator"


def test_what_operators_ask_is_answered(cluster: DockerCluster) -> None:
    """`hadar` commands work for hadard's account, with the files that the package installs."""
    ask = {"user": "hadar", "service": "hadard"}
    assert cluster.run("hadar", "config", "check", **ask).startswith("/etc/hadar/hadar.yaml: valid")
    assert "poll_seconds: 0.25" in cluster.run("hadar", "config", "show", **ask)
    assert "round_seconds: 360" in cluster.run("hadar", "config", "print-default", **ask)
    told = json.loads(cluster.run("hadar", "status", "--json", **ask))
    assert told["alive"] is True
    assert told["last"]["gpus"]["v100"]["total"] == 10
    number = cluster.submit("--gres=gpu:v100:1", user="alice", script="exec sleep 60")
    answer = cluster.run("sh", "-c", f"hadar explain {number} || true", **ask)
    assert f"job {number} is left to Slurm" in answer
    cluster.run("scancel", number, user="alice")


def test_pyslurm_speaks_the_slurm_that_runs(cluster: DockerCluster) -> None:
    version = cluster.run("scontrol", "--version").split()[1]
    if not version.startswith("26."):
        pytest.skip(f"pyslurm is built for Slurm 26.05, and this is {version}")
    program = "import pyslurm; print(pyslurm.__version__, len(pyslurm.Nodes.load()))"
    built_for, nodes = cluster.run("python", "-c", program, user="hadar").split()
    assert [int(part) for part in built_for.split(".")[:2]] == [26, 5]
    assert int(nodes) == 6


def test_hadard_places_a_job_and_it_completes(cluster: DockerCluster) -> None:
    plain = {
        node: cluster.submit(f"--nodelist={node}", "--exclusive", user="bob", script="sleep 600")
        for node in NODES
    }
    for number in plain.values():
        cluster.wait_for_state(number, "RUNNING")
    number = cluster.submit(
        "--hadar-throughput=v100=10,p100=1,k80=1",
        "--hadar-steps=100",
        "--hadar-checkpoint=no",
        "--gpus=2",
        user="alice",
        script="true",
        command="hadar-sbatch",
    )
    # In mode `steer` it is not held: hadard excludes the nodes without its fastest type.
    wait_until(lambda: "n[3-6]" in cluster.job(number)["ExcNodeList"], "hadard limits its nodes")
    assert cluster.job(number)["JobState"] == "PENDING"
    assert cluster.job(number)["Priority"] != "0"
    cluster.run("scancel", *plain.values(), user="bob")
    ended = cluster.wait_for_state(number, "COMPLETED")
    assert ended["NodeList"] in ("n1", "n2")

    def record() -> str:
        return cluster.run("sacct", "-nPX", "-j", number, "-o", "User,State,NodeList,AllocTRES")

    wait_until(lambda: "|COMPLETED|" in record(), "slurmdbd has the job's record")
    assert record().startswith(f"alice|COMPLETED|{ended['NodeList']}|")
    assert "gres/gpu=2" in record()


def test_fair_shares_of_all_users_are_read(cluster: DockerCluster) -> None:
    said = cluster.run("sshare", "-a", "-P", "-n", "-o", "Account,User,FairShare", user="hadar")
    shares = parse_fair_shares(said)
    assert set(USERS) <= {user for _, user in shares}
    assert all(0.0 <= share <= 1.0 for share in shares.values())


def test_the_operator_may_do_what_enforcement_needs(cluster: DockerCluster) -> None:
    # docs/operator-rights.md has the full table; these are the rights that hadard needs.
    number = cluster.submit("--hold", "--gpus=2", user="bob", script="exec sleep 600")

    def update(*words: str) -> None:
        cluster.run("scontrol", "update", f"JobId={number}", *words, user="hadar")

    update("TresPerNode=", "TresPerJob=", "TresPerTask=")
    update("NumNodes=2-2", "ReqNodeList=n1,n3", "TresPerNode=gres/gpu:1", "StartTime=now+1")
    cluster.run("scontrol", "release", number, user="hadar")
    assert cluster.wait_for_state(number, "RUNNING")["NodeList"] == "n[1,3]"
    cluster.run("scontrol", "requeuehold", number, user="hadar")
    assert cluster.wait_for_state(number, "PENDING")["Priority"] == "0"
    # The owner can release hadard's hold.
    cluster.run("scontrol", "release", number, user="bob")
    wait_until(lambda: cluster.job(number)["Priority"] != "0", "bob has released the job")
    cluster.run("scancel", number, user="hadar")
    cluster.wait_for_state(number, "CANCELLED")
    denied = cluster.attempt("scontrol", "update", "NodeName=n1", "State=DRAIN", "Reason=x",
                             user="hadar")  # fmt: skip
    assert denied.returncode != 0


def test_a_user_may_not_touch_anothers_job(cluster: DockerCluster) -> None:
    number = cluster.submit("--hold", user="carol", script="true")
    denied = cluster.attempt("scontrol", "release", number, user="dave")
    assert denied.returncode != 0
    assert cluster.job(number)["Reason"] == "JobHeldUser"
    cluster.run("scancel", number, user="carol")
