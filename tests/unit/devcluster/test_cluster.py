"""A local cluster before any daemon starts: nodes, configuration, ports and directory."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hadar_slurm.cli.cluster import app
from hadar_slurm.devcluster import directory
from hadar_slurm.devcluster.cluster import LocalCluster
from hadar_slurm.devcluster.config import (
    MAX_NODES,
    NodeShape,
    cgroup_conf_text,
    cluster_name,
    gres_conf_text,
    load_nodes,
    parse_nodes,
    slurm_conf_text,
)
from hadar_slurm.devcluster.processes import find_binaries, free_ports, log_tail
from hadar_slurm.errors import ClusterError, ConfigError, UsageError


def gpus_of(nodes: tuple[NodeShape, ...]) -> list[dict[str, int]]:
    return [dict(node.gpus) for node in nodes]


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("v100:4", [{"v100": 4}]),
        ("v100:4,k80:2", [{"v100": 4}, {"k80": 2}]),
        ("v100:2+k80:2", [{"v100": 2, "k80": 2}]),
        ("2*p100:1,k80:8", [{"p100": 1}, {"p100": 1}, {"k80": 8}]),
        (" 2 * v100:1 + k80:3 , p100:1 ", [{"v100": 1, "k80": 3}] * 2 + [{"p100": 1}]),
        (
            "a100-sxm4-80gb:1,nvidia_a100_1g.5gb:7",
            [{"a100-sxm4-80gb": 1}, {"nvidia_a100_1g.5gb": 7}],
        ),
    ],
)
def test_a_line_of_nodes_is_read(text: str, gpus: list[dict[str, int]]) -> None:
    """Each entry is one node or several, named n1, n2 and so on."""
    nodes = parse_nodes(text)
    assert gpus_of(nodes) == gpus
    assert [node.name for node in nodes] == [f"n{i}" for i in range(1, len(gpus) + 1)]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "''"),
        ("v100", "'v100'"),
        ("v100:", "'v100:'"),
        (":4", "':4'"),
        ("v100:x", "'v100:x'"),
        ("v100:-1", "'v100:-1'"),
        ("v100:4,,k80:1", "''"),
        ("v100:4;k80:1", "'v100:4;k80:1'"),
        ("2*", "'2*'"),
        ("x*v100:4", "'x*v100:4'"),
        ("v100:99999999999999999999", "99999"),
        ("v100:2+v100:2", "names v100 twice"),
        ("v100:0", "0 is not a number of GPUs from 1"),
        ("v100:65", "has 65 GPUs"),
        ("v100:60+k80:5", "has 65 GPUs"),
        ("4090:1", "'4090'"),
        ("v 100:1", "'v 100'"),
        ("v100=:1", "'v100='"),
        ("0*v100:1", "0 nodes"),
        (f"{MAX_NODES + 1}*v100:1", f"{MAX_NODES + 1} nodes"),
        ("9999*v100:1", "9999 nodes"),
        ("v100:\u0664", "\u0664"),
    ],
)
def test_a_wrong_line_is_refused_in_one_line(text: str, named: str) -> None:
    """The message names the value and fits on one line."""
    with pytest.raises(ConfigError) as caught:
        parse_nodes(text)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_of_nodes_is_read(tmp_path: Path) -> None:
    """A node has the name in the file, or else one by its position."""
    path = tmp_path / "nodes.yaml"
    path.write_text("nodes: [{name: big-1, gpus: {v100: 4, k80: 2}}, {gpus: {p100: 1}}]")
    nodes = load_nodes(path)
    assert [node.name for node in nodes] == ["big-1", "n2"]
    assert gpus_of(nodes) == [{"k80": 2, "v100": 4}, {"p100": 1}]


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("", "not a table with nodes"),
        ("[1]", "not a table with nodes"),
        ("nodes: 3", "3 is not a list"),
        ("nodes: []", "0 nodes"),
        ("nodes: [n1]", "'n1' is not a table with gpus"),
        ("nodes: [{name: n1}]", "not a table with gpus"),
        ("nodes: [{gpus: 4}]", "4 is not a table"),
        ("nodes: [{gpus: {}}]", "has 0 GPUs"),
        ("nodes: [{gpus: {v100: many}}]", "'many'"),
        ("nodes: [{gpus: {v100: true}}]", "True"),
        ("nodes: [{gpus: {v100: 1.5}}]", "1.5"),
        ("nodes: [{gpus: {4090: 1}}]", "4090"),
        ("nodes: [{gpu: {v100: 1}, gpus: {v100: 1}}]", "unknown key gpu; known: gpus, name"),
        ("nodes: [{gpus: {v100: 1}}]\nparts: 1", "unknown key parts; known: nodes"),
        ("nodes: [{name: 'a b', gpus: {v100: 1}}]", "'a b'"),
        ("nodes: [{name: DEFAULT, gpus: {v100: 1}}]", "'DEFAULT'"),
        ("nodes: [{name: a, gpus: {v100: 1}}, {name: a, gpus: {v100: 1}}]", "two nodes"),
        ("nodes: [", "cannot read nodes"),
        ("nodes: [{name: 7, gpus: {v100: 1}}]", "'7'"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(tmp_path: Path, content: str, named: str) -> None:
    """The message names the value and fits on one line."""
    path = tmp_path / "nodes.yaml"
    path.write_text(content)
    with pytest.raises(ConfigError) as caught:
        load_nodes(path)
    assert named in str(caught.value)
    assert str(path) in str(caught.value) or "nodes" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """The message names the path."""
    with pytest.raises(ConfigError, match=r"absent\.yaml"):
        load_nodes(tmp_path / "absent.yaml")


def test_slurm_conf_gives_each_node_its_port_and_gpus() -> None:
    """slurmctld gets the first port and each node the next one; Gres and Feature list its GPUs."""
    text = slurm_conf_text(
        Path("/tmp/c"),
        parse_nodes("v100:2+k80:2,v100:16"),
        [1, 2, 3],
        user="ada",
        slurmd_timeout_s=9,
    )
    lines = text.splitlines()
    assert "SlurmctldPort=1" in lines
    assert "SlurmUser=ada" in lines
    assert "SlurmdTimeout=9" in lines
    first, second = (line for line in lines if line.startswith("NodeName="))
    assert " Port=2 " in first
    assert first.endswith(
        "CPUs=16 Boards=1 SocketsPerBoard=1 CoresPerSocket=16 ThreadsPerCore=1 "
        "RealMemory=8000 Gres=gpu:k80:2,gpu:v100:2 Feature=k80,v100"
    )
    assert " Port=3 CPUs=32 " in second
    assert " RealMemory=16000 " in second


def test_slurm_conf_names_no_file_outside_the_directory() -> None:
    """Every path but MailProg lies in the cluster's directory."""
    text = slurm_conf_text(
        Path("/tmp/c"), parse_nodes("v100:1"), [1, 2], user="ada", slurmd_timeout_s=9
    )
    paths = [word for word in text.replace("socket=", "").split() if "=/" in word]
    assert paths
    assert {
        p.partition("=")[0] for p in paths if not p.partition("=")[2].startswith("/tmp/c/")
    } == {"MailProg"}


def test_gres_conf_gives_every_gpu_a_device() -> None:
    """gres.conf names the devices of one type on one node by a range of files."""
    assert gres_conf_text(Path("/d"), parse_nodes("v100:2+k80:1")).splitlines() == [
        "AutoDetect=off",
        "NodeName=n1 Name=gpu Type=k80 File=/d/gpu/n1-k80-[0-0]",
        "NodeName=n1 Name=gpu Type=v100 File=/d/gpu/n1-v100-[0-1]",
    ]


@pytest.mark.parametrize(
    ("version", "is_disabled"),
    [
        ("slurm-wlm 22.05.8", False),
        ("slurm-wlm 23.02.1", True),
        ("slurm 26.05.5", True),
        ("", False),
    ],
)
def test_control_groups_are_switched_off_where_slurm_can(version: str, is_disabled: bool) -> None:
    """cgroup.conf disables control groups from Slurm 23.02 on, and is never empty."""
    text = cgroup_conf_text(version)
    assert text.strip()
    assert ("CgroupPlugin=disabled" in text) == is_disabled


def test_cluster_names_differ_between_directories() -> None:
    """Equal directories give equal names, other directories other names."""
    assert cluster_name(Path("/tmp/a")) == cluster_name(Path("/tmp/a"))
    assert cluster_name(Path("/tmp/a")) != cluster_name(Path("/tmp/b"))


def test_node_shapes_compare_by_value() -> None:
    """Nodes are equal whatever the order of their GPU types."""
    assert NodeShape("n1", {"b": 1, "a": 2}) == NodeShape("n1", {"a": 2, "b": 1})


def test_free_ports_are_distinct_and_free() -> None:
    """The ports are distinct and unprivileged."""
    ports = free_ports(50)
    assert len(set(ports)) == 50
    assert all(1024 < port < 65536 for port in ports)


def test_running_out_of_ports_is_a_clear_error() -> None:
    """A port in use is skipped, and the error gives the number of free ports found."""
    with socket.socket() as taken:
        taken.bind(("", 0))
        port = taken.getsockname()[1]
        with pytest.raises(ClusterError, match="found 0 free TCP ports and need 1"):
            free_ports(1, [port])


def test_missing_programs_name_the_packages(tmp_path: Path) -> None:
    """The error contains the apt-get command that installs the packages."""
    with pytest.raises(
        ClusterError,
        match="apt-get install --no-install-recommends "
        "slurmctld slurmd slurm-client munge slurm-wlm-basic-plugins",
    ):
        find_binaries(str(tmp_path))


def test_the_end_of_a_log_is_one_line_of_errors(tmp_path: Path) -> None:
    """Only errors are returned, without those about MPI; without a log a sentence says so."""
    (tmp_path / "log" / "n1").mkdir(parents=True)
    (tmp_path / "log" / "n1" / "log").write_text(
        "hello\nerror: MPI: no\nerror: first\nfatal: last\n"
    )
    (tmp_path / "log" / "n1" / "out").write_text("bye\n")
    assert log_tail(tmp_path, "n1") == "error: first | fatal: last"
    assert log_tail(tmp_path, "n2") == "n2 logged nothing"


def test_a_long_directory_is_refused_with_the_room_there_is() -> None:
    """A path too long for slurmstepd's socket is refused, with the longest possible length."""
    nodes = parse_nodes("v100:1")
    directory.check_path(Path("/" + "d" * 71), nodes)
    with pytest.raises(UsageError, match=r"has 101 characters; .* room for 72: choose a shorter"):
        directory.check_path(Path("/" + "d" * 100), nodes)


@pytest.mark.parametrize("name", ["a b", "a,b", "a[1]", "a#", "%n", "a=b", "ü", "a\nb"])
def test_a_directory_that_slurm_conf_cannot_hold_is_refused(name: str) -> None:
    """A path with characters that slurm.conf cannot hold is refused."""
    with pytest.raises(UsageError, match=r"characters that slurm\.conf cannot hold"):
        directory.check_path(Path("/tmp") / name, parse_nodes("v100:1"))


def test_only_one_claims_a_directory(tmp_path: Path) -> None:
    """A second claim of a directory fails, with the remedy."""
    nodes = parse_nodes("v100:1")
    directory.claim(tmp_path / "c", nodes)
    with pytest.raises(ClusterError, match=rf"hadar cluster down --dir {tmp_path}/c"):
        directory.claim(tmp_path / "c", nodes)
    assert LocalCluster.attach(tmp_path / "c").nodes == nodes
    directory.remove(tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_a_directory_with_other_files_is_neither_claimed_nor_removed(tmp_path: Path) -> None:
    """A directory that holds other files is not claimed, removed or attached."""
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(ClusterError, match=r"not empty \(it holds thesis.tex\)"):
        directory.claim(tmp_path, parse_nodes("v100:1"))
    with pytest.raises(ClusterError, match="not removed"):
        directory.remove(tmp_path)
    with pytest.raises(ClusterError, match="no cluster that hadar started"):
        LocalCluster.attach(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_link_is_not_claimed(tmp_path: Path) -> None:
    """A symbolic link, which another user may have made, is not claimed."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    with pytest.raises(ClusterError, match="is not a directory"):
        directory.claim(tmp_path / "link", parse_nodes("v100:1"))


def test_a_file_is_not_claimed(tmp_path: Path) -> None:
    """A file in place of the directory is not claimed."""
    (tmp_path / "file").touch()
    with pytest.raises(ClusterError, match="is not a directory"):
        directory.claim(tmp_path / "file", parse_nodes("v100:1"))


def test_removal_follows_no_link(tmp_path: Path) -> None:
    """Removal deletes links in the cluster's directory, but not their targets."""
    (tmp_path / "precious").mkdir()
    directory.claim(tmp_path / "c", parse_nodes("v100:1"))
    (tmp_path / "c" / "link").symlink_to(tmp_path / "precious")
    directory.remove(tmp_path / "c")
    assert (tmp_path / "precious").is_dir()


def test_a_damaged_marker_is_named(tmp_path: Path) -> None:
    """The error names the marker file that cannot be read."""
    (tmp_path / directory.MARKER).write_text("{")
    with pytest.raises(ClusterError, match=f"cannot read .*{directory.MARKER}"):
        LocalCluster.attach(tmp_path)


def test_the_default_directory_is_the_users_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The default directory lies in XDG_RUNTIME_DIR if that exists."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert directory.default_directory().parent == tmp_path
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "absent"))
    assert directory.default_directory().parent != tmp_path
    assert directory.default_directory().name.startswith("hadar-cluster-")


def test_the_environment_names_the_directories(tmp_path: Path) -> None:
    """The environment has the variables that commands need to find the cluster."""
    cluster = LocalCluster(tmp_path, parse_nodes("v100:1"))
    assert cluster.environment() == {
        "SLURM_CONF": f"{tmp_path}/slurm.conf",
        "HADAR_RUN_DIR": f"{tmp_path}/run",
        "HADAR_SPOOL": f"{tmp_path}/spool/reports/u{os.geteuid()}",
    }


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["up", "--nodes", "v100"], 2, "'v100' is not a node"),
        (["up", "--nodes", "absent.yaml"], 2, "absent.yaml"),
        (["status"], 1, "no cluster in"),
        (["down"], 0, "nothing to stop"),
    ],
)
def test_commands_fail_in_one_line(
    tmp_path: Path, arguments: list[str], status: int, words: str
) -> None:
    """Usage errors end with status 2, other errors with 1; each output is one line."""
    result = CliRunner().invoke(app, [*arguments, "--dir", str(tmp_path / "c")])
    assert result.exit_code == status
    assert words in result.output
    assert result.output.count("\n") == 1


def test_the_marker_holds_the_nodes(tmp_path: Path) -> None:
    """The marker file contains the nodes, for other processes."""
    directory.claim(tmp_path / "c", parse_nodes("v100:1"))
    content = json.loads((tmp_path / "c" / directory.MARKER).read_text())
    assert content == {"nodes": [{"name": "n1", "gpus": {"v100": 1}}]}
