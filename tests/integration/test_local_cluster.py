"""A local cluster is a real Slurm that comes up in seconds and leaves nothing behind."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shutil
import signal
import socket
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from integration.hadar_command import hadar, runner_for_anyone
from integration.leftovers import lives, mentions

from hadar_slurm.devcluster.cluster import LocalCluster
from hadar_slurm.devcluster.config import parse_nodes
from hadar_slurm.devcluster.processes import find_binaries, free_ports, wait_until
from hadar_slurm.errors import ClusterError, SlurmRefused, SlurmUnavailable, UsageError
from hadar_slurm.slurm.client.runner import Runner

pytestmark = pytest.mark.slurm

FIVE_NODES = "v100:4,v100:4,p100:4,k80:4,v100:2+k80:2"
# An account on every Debian; a recent Slurm refuses to run as nobody.
UNPRIVILEGED = "daemon"
Start = Callable[..., LocalCluster]


def submit(cluster: LocalCluster, script: str, *options: str) -> str:
    """Submit a shell script, and return its job id."""
    output = f"--output={cluster.directory}/spool/%j.out"
    argv = ["sbatch", "--parsable", "--chdir=/", output, *options]
    return cluster.runner().run(argv, stdin="#!/bin/sh\n" + script).strip()


def job_state(cluster: LocalCluster, job: str) -> str:
    """Return the job's state as squeue prints it."""
    return cluster.runner().run(["squeue", "-h", "--states=all", "-o", "%T", "-j", job]).strip()


def output_of(cluster: LocalCluster, job: str) -> list[str]:
    """Return the lines that a job has written, once it has completed."""
    assert wait_until(lambda: job_state(cluster, job) == "COMPLETED", 20), job_state(cluster, job)
    return (cluster.directory / "spool" / f"{job}.out").read_text().splitlines()


def kill_daemons(cluster: LocalCluster) -> None:
    """Kill every daemon, as a crash or a reboot would."""

    def are_killed() -> bool:
        # One may have ended with another, and a new one may just have been forked.
        for process in cluster.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        return not cluster.processes()

    assert wait_until(are_killed, 10)


def test_five_nodes_are_idle_within_seconds(local_cluster: Start) -> None:
    """All nodes are idle with the GPUs asked for, and all files lie in one directory."""
    began_s = time.monotonic()
    with local_cluster(FIVE_NODES) as cluster:
        assert time.monotonic() - began_s < 15
        status = cluster.status()
        assert [node.state for node in status.nodes] == ["idle"] * 5
        assert dict(status.nodes[4].gpus) == {"k80": 2, "v100": 2}
        assert (status.running, status.pending) == (0, 0)
        gres = cluster.runner().run(["sinfo", "-h", "-N", "-o", "%N %G"]).splitlines()
        assert gres[0].startswith("n1 gpu:v100:4")
        assert gres[4].startswith("n5 gpu:k80:2,gpu:v100:2")
        assert stat.S_IMODE((cluster.directory / "spool" / "reports").stat().st_mode) == 0o1777
        assert stat.S_IMODE((cluster.directory / "munge" / "key").stat().st_mode) == 0o600
    assert not cluster.directory.exists()
    assert mentions(cluster.directory) == []


def test_a_job_gets_the_gpus_of_its_type(cluster: LocalCluster) -> None:
    """A job that requests two K80s gets two devices on a node with K80s."""
    out = cluster.runner().run(
        [
            "srun",
            "--gres=gpu:k80:2",
            "--chdir=/",
            "printenv",
            "SLURMD_NODENAME",
            "CUDA_VISIBLE_DEVICES",
        ]
    )
    node, devices = out.split()
    assert node in {"n5", "n6"}
    assert len(devices.split(",")) == 2


def test_a_batch_job_gets_one_type_of_a_mixed_node(cluster: LocalCluster) -> None:
    """A job on n6 gets the device numbers of its GPU type."""
    script = "printenv SLURMD_NODENAME CUDA_VISIBLE_DEVICES"
    both = submit(cluster, script, "--nodelist=n6", "--gres=gpu:k80:2,gpu:v100:2")
    one = submit(cluster, script, "--nodelist=n6", "--gres=gpu:v100:2")
    assert output_of(cluster, both) == ["n6", "0,1,2,3"]
    assert output_of(cluster, one) == ["n6", "2,3"]


def test_jobs_are_counted(cluster: LocalCluster) -> None:
    """Each task of an array counts, running or pending."""
    submit(cluster, "sleep 300", "--array=1-3", "--gres=gpu:p100:4")
    assert wait_until(lambda: cluster.status().running == 2, 10)
    assert cluster.status().pending == 1


def test_two_clusters_live_side_by_side(local_cluster: Start) -> None:
    """Neither sees the other's jobs, and stopping one leaves the other."""
    with local_cluster("v100:1") as one, local_cluster("k80:1") as other:
        assert one.name != other.name
        job = submit(one, "sleep 300")
        assert wait_until(lambda: one.status().running == 1, 10)
        assert other.status().running == 0
        other.down()
        assert mentions(other.directory) == []
        assert job_state(one, job) == "RUNNING"


def test_jobs_that_run_are_gone_after_down(local_cluster: Start, tmp_path: Path) -> None:
    """`down` also ends a job that ignores SIGTERM, and a process that has left its job."""
    cluster = local_cluster("v100:4")
    pids = tmp_path / "pids"
    submit(cluster, f"trap '' TERM\nsetsid sleep 300 &\necho $! $$ > {pids}\nsleep 300\nsleep 300")
    submit(cluster, "sleep 300", "--hold")
    assert wait_until(lambda: pids.exists() and len(pids.read_text().split()) == 2, 10)
    cluster.down()
    assert not any(lives(int(pid)) for pid in pids.read_text().split())
    assert mentions(cluster.directory) == []
    assert not cluster.directory.exists()
    cluster.down()


def test_a_process_that_left_its_job_goes_when_jobs_are_cancelled(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """`cancel_jobs` ends a process that has left its job, which Slurm does not find."""
    pid = tmp_path / "pid"
    submit(cluster, f"setsid --fork sh -c 'echo $$ > {pid}; exec sleep 300'\nexec sleep 300")
    assert wait_until(lambda: pid.exists() and pid.read_text().endswith("\n"), 10)
    cluster.cancel_jobs()
    assert not lives(int(pid.read_text()))


def test_what_a_crash_leaves_is_refused_and_can_be_removed(local_cluster: Start) -> None:
    """`up` refuses and names the command that removes what a crash has left."""
    cluster = local_cluster("v100:1")
    submit(cluster, "sleep 300")
    assert wait_until(lambda: cluster.status().running == 1, 10)
    kill_daemons(cluster)
    with pytest.raises(ClusterError, match=rf"hadar cluster down --dir {cluster.directory}"):
        LocalCluster.up(cluster.directory, cluster.nodes)
    with pytest.raises(ClusterError, match=r"slurmctld of .* does not run"):
        cluster.status()
    LocalCluster.attach(cluster.directory).down()
    assert not cluster.directory.exists()
    assert not LocalCluster.exists(cluster.directory)
    with pytest.raises(ClusterError, match="hadar cluster up"):
        LocalCluster.attach(cluster.directory)


def test_daemons_stop_though_slurmctld_crashed(local_cluster: Start) -> None:
    """The nodes and their jobs are ended without slurmctld."""
    cluster = local_cluster("v100:1")
    submit(cluster, "sleep 300")
    assert wait_until(lambda: cluster.status().running == 1, 10)
    for process in cluster.processes():
        if process.program == "slurmctld":
            os.kill(process.pid, signal.SIGKILL)
    cluster.down()
    assert mentions(cluster.directory) == []
    assert not cluster.directory.exists()


def test_daemons_stop_though_their_directory_was_removed(local_cluster: Start) -> None:
    """Processes are found by their environment, without any file."""
    cluster = local_cluster("v100:1")
    moved = cluster.directory.with_name("moved")
    cluster.directory.rename(moved)
    LocalCluster.attach(cluster.directory).down()
    assert mentions(cluster.directory) == []
    moved.rename(cluster.directory)
    LocalCluster.attach(cluster.directory).down()
    assert not cluster.directory.exists()


def test_a_second_start_in_one_directory_is_refused(local_cluster: Start) -> None:
    """The running cluster is not disturbed."""
    with local_cluster("v100:1") as cluster:
        with pytest.raises(ClusterError, match="already running in"):
            LocalCluster.up(cluster.directory, parse_nodes("k80:1"))
        assert [node.state for node in cluster.status().nodes] == ["idle"]


@pytest.mark.parametrize("place", [0, 1])
def test_a_port_taken_meanwhile_is_replaced(local_cluster: Start, place: int) -> None:
    """Ports of slurmctld and of a node are chosen again when another program has taken one."""
    with socket.socket() as rival:
        rival.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        rival.bind(("", free_ports(1)[0]))
        rival.listen()
        choices: list[list[int]] = []

        def choose(count: int) -> list[int]:
            choices.append(free_ports(count))
            if len(choices) == 1:
                choices[0][place] = rival.getsockname()[1]
            return choices[-1]

        with local_cluster("v100:1", choose_ports=choose) as cluster:
            assert len(choices) == 2
            assert [node.state for node in cluster.status().nodes] == ["idle"]


def test_a_start_that_fails_leaves_nothing(new_directory: Callable[[], Path]) -> None:
    """The error contains the end of the log, since the log itself is removed."""
    directory = new_directory()
    with socket.socket() as rival:
        rival.bind(("", 0))
        rival.listen()
        ports = [rival.getsockname()[1], *free_ports(1)]
        with pytest.raises(ClusterError, match=r"slurmctld .* Address already in use"):
            LocalCluster.up(directory, parse_nodes("v100:1"), choose_ports=lambda count: ports)
    assert not directory.exists()
    assert mentions(directory) == []


def test_no_free_port_is_told_before_anything_starts(new_directory: Callable[[], Path]) -> None:
    """The error states the numbers of ports, and nothing is left."""
    directory = new_directory()
    with pytest.raises(ClusterError, match="found 0 free TCP ports and need 2"):
        LocalCluster.up(
            directory, parse_nodes("v100:1"), choose_ports=lambda count: free_ports(count, [])
        )
    assert not directory.exists()


def test_an_interrupted_start_leaves_nothing(new_directory: Callable[[], Path]) -> None:
    """Control-C while the nodes start ends what was started."""
    directory = new_directory()

    def interrupt(num_idle: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        LocalCluster.up(directory, parse_nodes("2*v100:1"), on_wait=interrupt)
    assert not directory.exists()
    assert mentions(directory) == []


def test_the_longest_directory_still_runs_jobs(new_directory: Callable[[], Path]) -> None:
    """The limit on the directory's length leaves slurmstepd room for its socket."""
    short = new_directory()
    directory = short.with_name(short.name + "-" + "d" * (71 - len(str(short))))
    try:
        with LocalCluster.up(directory, parse_nodes("v100:1")) as cluster:
            assert cluster.runner().run(["srun", "--chdir=/", "echo", "hello"]) == "hello\n"
    finally:
        if LocalCluster.exists(directory):
            LocalCluster.attach(directory).down()


@pytest.mark.slow
def test_a_killed_node_goes_down_and_comes_back(cluster: LocalCluster) -> None:
    """The job of a killed node is requeued, other jobs run on, and the node can start again."""
    job = submit(cluster, "sleep 300", "--nodelist=n1", "--requeue")
    other = submit(cluster, "sleep 300", "--nodelist=n2")
    assert wait_until(lambda: cluster.status().running == 2, 10)
    cluster.kill_node("n1")
    assert not any(process.node == "n1" for process in cluster.processes())
    assert wait_until(lambda: cluster.status().nodes[0].state.startswith("down"), 60)
    # Slurm waits for its messages to the node that is gone.
    assert wait_until(lambda: job_state(cluster, job) == "PENDING", 120), job_state(cluster, job)
    assert job_state(cluster, other) == "RUNNING"
    cluster.start_node("n1")
    assert wait_until(lambda: cluster.status().nodes[0].state == "idle", 10)


def test_jobs_outlive_a_restart_of_the_controller(cluster: LocalCluster) -> None:
    """A new slurmctld reads the saved jobs; in between Slurm's commands fail."""
    job = submit(cluster, "sleep 300")
    assert wait_until(lambda: job_state(cluster, job) == "RUNNING", 10)
    cluster.stop_controller()
    assert not cluster.controller_runs()
    with pytest.raises(SlurmUnavailable):
        cluster.runner(timeout_s=1).run(["squeue"])
    cluster.start_controller()
    assert job_state(cluster, job) == "RUNNING"
    cluster.stop_controller()
    cluster.start_controller()
    assert job_state(cluster, job) == "RUNNING"


def test_a_node_that_does_not_exist_is_named(cluster: LocalCluster) -> None:
    """The message lists the existing nodes."""
    with pytest.raises(UsageError, match=r"no node n9 .* there are n1, n2"):
        cluster.kill_node("n9")


def test_the_commands_start_show_and_stop_a_cluster(new_directory: Callable[[], Path]) -> None:
    """`up`, `status` and `down` work, and `up` closes its output though the daemons run on."""
    directory = new_directory()
    assert f"export SLURM_CONF={directory}/slurm.conf" in hadar(directory, "up", "--nodes=v100:2")
    found = json.loads(hadar(directory, "status", "--json"))
    assert found["nodes"] == [{"name": "n1", "state": "idle", "gpus": {"v100": 2}}]
    assert found["environment"] == LocalCluster.attach(directory).environment()
    with pytest.raises(SlurmRefused, match=r"status 1: hadar cluster: .*already running"):
        hadar(directory, "up")
    assert "stopped" in hadar(directory, "down")
    assert "nothing to stop" in hadar(directory, "down")
    assert not directory.exists()
    assert mentions(directory) == []


@pytest.mark.parametrize("accounting", [False, True])
def test_an_unprivileged_user_needs_no_help(
    new_directory: Callable[[], Path], request: pytest.FixtureRequest, accounting: bool
) -> None:
    """An unprivileged user can start, use and stop a cluster, also without sbin on PATH."""
    if accounting:
        request.getfixturevalue("accounting_programs")
    if os.geteuid() != 0:
        pytest.skip("the other tests already run unprivileged")
    runner = runner_for_anyone()
    account = pwd.getpwnam(UNPRIVILEGED)
    uid, gid = account.pw_uid, account.pw_gid
    user = ["setpriv", f"--reuid={uid}", f"--regid={gid}", "--clear-groups"]
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    pythons = [sys.executable, f"/usr/bin/{version}", f"/usr/local/bin/{version}"]
    python = next((p for p in pythons if can_import(runner, [*user, p])), None)
    if python is None:
        pytest.skip(f"{UNPRIVILEGED} may not read this checkout or any {version}")
    base = new_directory()
    base.mkdir()
    os.chown(base, uid, gid)
    directory = base / "own"
    command = [*user, python, "-m", "hadar_slurm.cli.cluster"]
    try:
        options = ["--accounting"] if accounting else []
        runner.run([*command, "up", "--nodes=v100:2,k80:2", "--dir", str(directory), *options])
        owned = Runner(directory / "slurm.conf", environment=runner.environment)
        argv = [*user, "srun", "--gres=gpu:k80:2", "--chdir=/", "sh", "-c"]
        assert owned.run([*argv, "id -u; echo $CUDA_VISIBLE_DEVICES"]).split() == [str(uid), "0,1"]
        if accounting:
            sacct = [*user, "sacct", "--noheader", "--parsable2", "--allocations", "--format=User"]
            assert wait_until(lambda: owned.run(sacct).split() == [UNPRIVILEGED], 20)
        with pytest.raises(ClusterError, match=f"belongs to uid {uid}"):
            LocalCluster.attach(directory)
    finally:
        runner.run([*command, "down", "--dir", str(directory)])
        left = list(base.iterdir())
        shutil.rmtree(base)
    assert left == []
    assert mentions(directory) == []


def can_import(runner: Runner, argv: list[str]) -> bool:
    """Return whether this Python can import hadar_slurm and its dependencies."""
    try:
        runner.run([*argv, "-c", "import hadar_slurm.cli.cluster"])
    except (SlurmRefused, SlurmUnavailable, PermissionError):
        return False
    return True


def test_the_programs_are_found_without_sbin_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs are found although a user's PATH lacks the directories of daemons."""
    find_binaries()
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert find_binaries()["slurmctld"].startswith("/")
