"""A local cluster with accounting has its own slurmdbd, and leaves nothing of it behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from integration.hadar_command import hadar
from integration.leftovers import mentions

from hadar_slurm.devcluster.cluster import LocalCluster
from hadar_slurm.devcluster.config import parse_nodes
from hadar_slurm.devcluster.processes import free_ports, wait_until
from hadar_slurm.errors import ClusterError, SlurmRefused

pytestmark = [pytest.mark.slurm, pytest.mark.usefixtures("accounting_programs")]

Start = Callable[..., LocalCluster]


@pytest.fixture(scope="module")
def accounted(local_cluster: Start, accounting_programs: object) -> Iterator[LocalCluster]:
    """A cluster with accounting, for the tests of this module."""
    with local_cluster("v100:4,k80:2", accounting=True) as cluster:
        yield cluster


@pytest.fixture
def cluster(accounted: LocalCluster) -> Iterator[LocalCluster]:
    """The cluster of this module, without jobs."""
    yield accounted
    accounted.cancel_jobs()


def submit(cluster: LocalCluster, command: str, *options: str) -> str:
    """Submit a command, and return its job id."""
    argv = ["sbatch", "--parsable", "--chdir=/", "--output=/dev/null", f"--wrap={command}"]
    return cluster.runner().run([*argv, *options]).strip()


def sacctmgr(cluster: LocalCluster, *words: str) -> str:
    """Run sacctmgr without confirmation."""
    return cluster.runner().run(["sacctmgr", "--immediate", *words])


def recorded(cluster: LocalCluster, job: str) -> dict[str, str]:
    """Return sacct's record of a job, empty while there is none."""
    names = ["State", "ExitCode", "User", "Account", "AllocTRES"]
    argv = ["sacct", "-nPX", "--jobs", job, "--format", ",".join(names)]
    line = cluster.runner().run(argv).strip()
    return dict(zip(names, line.split("|"), strict=True)) if line else {}


def reason(cluster: LocalCluster, job: str) -> str:
    """Return why a job waits."""
    return cluster.runner().run(["squeue", "-h", "-o", "%r", "-j", job]).strip()


def test_sacct_shows_jobs_that_have_ended(cluster: LocalCluster) -> None:
    """sacct shows state, exit status, account and GPUs by type."""
    done = submit(cluster, "true", "--gres=gpu:k80:1")
    failed = submit(cluster, "exit 3")
    for job, state, status in ((done, "COMPLETED", "0:0"), (failed, "FAILED", "3:0")):
        assert wait_until(lambda j=job, s=state: recorded(cluster, j).get("State") == s, 20), (
            recorded(cluster, job)
        )
        record = recorded(cluster, job)
        assert (record["ExitCode"], record["Account"]) == (status, "local")
    assert {"gres/gpu=1", "gres/gpu:k80=1"} <= set(recorded(cluster, done)["AllocTRES"].split(","))


def test_a_qos_limits_the_gpus_of_a_user(cluster: LocalCluster) -> None:
    """The second job waits for the limit although GPUs are idle."""
    sacctmgr(cluster, "add", "qos", "two-gpus", "set", "MaxTRESPerUser=gres/gpu=2")
    sacctmgr(cluster, "modify", "account", "local", "set", "qos+=two-gpus")
    first = submit(cluster, "sleep 600", "--gres=gpu:2", "--qos=two-gpus")
    second = submit(cluster, "sleep 600", "--gres=gpu:1", "--qos=two-gpus")
    assert wait_until(lambda: cluster.status().running == 1, 20)
    assert wait_until(lambda: reason(cluster, second) == "QOSMaxGRESPerUser", 20)
    assert reason(cluster, first) == "None"


@pytest.mark.skipif(os.geteuid() != 0, reason="jobs of other users need root")
def test_another_user_submits_once_added(cluster: LocalCluster) -> None:
    """Another user can submit once added by the command that `hadar cluster up` prints."""
    job = ["setpriv", "--reuid=daemon", "--regid=daemon", "--clear-groups", "sbatch", "--parsable"]
    words = [*job, "--chdir=/", "--output=/dev/null", "--wrap=true"]
    with pytest.raises(SlurmRefused, match="Invalid account"):
        cluster.runner().run(words)
    sacctmgr(cluster, "add", "user", "daemon", "account=local")
    number = cluster.runner().run(words).strip()
    assert wait_until(lambda: recorded(cluster, number).get("User") == "daemon", 20)


def test_the_database_is_closed_to_others(cluster: LocalCluster) -> None:
    """Its server listens on no TCP port, and only its user can read its files and slurmdbd.conf."""
    (server,) = [p.pid for p in cluster.processes() if p.program == "mariadbd"]
    sockets = {
        os.readlink(entry).removeprefix("socket:[").removesuffix("]")
        for entry in Path(f"/proc/{server}/fd").iterdir()
        if os.readlink(entry).startswith("socket:")
    }
    tables = [Path(f"/proc/net/{name}").read_text().splitlines()[1:] for name in ("tcp", "tcp6")]
    assert sockets
    assert sockets.isdisjoint(line.split()[9] for table in tables for line in table)
    assert stat.S_IMODE((cluster.directory / "database").stat().st_mode) == 0o700
    assert stat.S_IMODE((cluster.directory / "slurmdbd.conf").stat().st_mode) == 0o600


def test_the_servers_temporary_files_are_in_the_clusters_directory(cluster: LocalCluster) -> None:
    """Another server that starts would remove them from a directory that both share."""
    (server,) = [p.pid for p in cluster.processes() if p.program == "mariadbd"]
    words = Path(f"/proc/{server}/cmdline").read_text().split("\0")
    assert f"--tmpdir={cluster.directory}/database/tmp" in words
    own = [os.readlink(entry) for entry in Path(f"/proc/{server}/fd").iterdir()]
    assert not [path for path in own if path.startswith("/tmp/#sql")]


def test_the_commands_start_show_and_stop_accounting(new_directory: Callable[[], Path]) -> None:
    """`status` says that it is up, and that it is down when slurmdbd has ended; `down` ends all."""
    directory = new_directory()
    began_s = time.monotonic()
    said = hadar(directory, "up", "--accounting", "--nodes=v100:2")
    assert time.monotonic() - began_s < 30
    assert "sacctmgr --immediate add user NAME account=local" in said
    assert json.loads(hadar(directory, "status", "--json"))["accounting"] == "up"
    assert "accounting up" in hadar(directory, "status")
    (slurmdbd,) = [p for p in LocalCluster.attach(directory).processes() if p.program == "slurmdbd"]
    os.kill(slurmdbd.pid, signal.SIGKILL)
    cluster = LocalCluster.attach(directory)
    assert wait_until(lambda: cluster.status().accounting == "down", 10)
    submit(cluster, "sleep 600")
    hadar(directory, "down")
    assert not directory.exists()
    assert mentions(directory) == []


def test_without_accounting_there_is_none(local_cluster: Start) -> None:
    """Neither mariadbd nor slurmdbd runs, and status says so."""
    with local_cluster("v100:1") as cluster:
        assert cluster.status().accounting == "none"
        assert {p.program for p in cluster.processes()}.isdisjoint({"mariadbd", "slurmdbd"})


def test_a_port_of_slurmdbd_taken_meanwhile_is_replaced(local_cluster: Start) -> None:
    """Ports are chosen again when another program has taken one."""
    with socket.socket() as rival:
        rival.bind(("", free_ports(1)[0]))
        rival.listen()
        choices: list[list[int]] = []

        def choose(count: int) -> list[int]:
            choices.append(free_ports(count))
            if len(choices) == 1:
                choices[0][-1] = rival.getsockname()[1]
            return choices[-1]

        with local_cluster("v100:1", accounting=True, choose_ports=choose) as cluster:
            assert len(choices) == 2
            assert cluster.status().accounting == "up"


def test_a_start_that_fails_leaves_nothing(new_directory: Callable[[], Path]) -> None:
    """Neither the server nor its files stay when slurmdbd cannot start."""
    directory = new_directory()
    with socket.socket() as rival:
        rival.bind(("", 0))
        rival.listen()
        ports = [*free_ports(2), rival.getsockname()[1]]
        with pytest.raises(ClusterError, match=r"slurmdbd .* Address already in use"):
            LocalCluster.up(
                directory, parse_nodes("v100:1"), accounting=True, choose_ports=lambda count: ports
            )
    assert not directory.exists()
    assert mentions(directory) == []


def test_an_interrupted_start_leaves_nothing(new_directory: Callable[[], Path]) -> None:
    """Control-C while the nodes start ends slurmdbd and its server."""
    directory = new_directory()

    def interrupt(num_idle: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        LocalCluster.up(directory, parse_nodes("v100:1"), accounting=True, on_wait=interrupt)
    assert not directory.exists()
    assert mentions(directory) == []
