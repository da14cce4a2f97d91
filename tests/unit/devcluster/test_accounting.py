"""The accounting of a local cluster: its programs and its configuration files."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from hadar_slurm.devcluster import accounting
from hadar_slurm.devcluster.cluster import LocalCluster
from hadar_slurm.devcluster.config import NodeShape, parse_nodes
from hadar_slurm.devcluster.processes import find_binaries
from hadar_slurm.errors import ClusterError, ConfigError

SLURM = "munged slurmctld slurmd scancel scontrol sinfo squeue".split()
ACCOUNTING = "mariadbd slurmdbd sacct sacctmgr".split()


def programs(directory: Path, names: list[str]) -> str:
    """Create empty programs, and return their directory."""
    for name in names:
        (directory / name).touch(mode=0o755)
    return str(directory)


def test_accounting_needs_programs_of_its_own(tmp_path: Path) -> None:
    """Without accounting its programs are not required; the error names only missing ones."""
    path = programs(tmp_path, SLURM)
    assert "slurmdbd" not in find_binaries(path)
    with pytest.raises(ClusterError) as caught:
        find_binaries(path, accounting=True)
    assert str(caught.value) == (
        "not installed: mariadbd, slurmdbd, sacct, sacctmgr; on Debian and Ubuntu: apt-get install "
        "--no-install-recommends slurmdbd mariadb-server-core"
    )
    assert set(ACCOUNTING) <= set(find_binaries(programs(tmp_path, ACCOUNTING), accounting=True))


def test_slurm_conf_counts_the_gpus_of_each_type() -> None:
    """AccountingStorageTRES has the GPUs in total and by type."""
    text = accounting.slurm_conf_lines(Path("/d"), parse_nodes("v100:1,k80:1,v100:2"), 9)
    assert "AccountingStorageTRES=gres/gpu,gres/gpu:k80,gres/gpu:v100" in text.splitlines()
    assert "AccountingStoragePort=9" in text.splitlines()


def test_slurmdbd_conf_is_its_users_alone(tmp_path: Path) -> None:
    """Only its user can read slurmdbd.conf, and its paths lie in the cluster's directory."""
    (tmp_path / "database").mkdir()
    accounting.prepare(tmp_path, 9, "ada")
    conf = tmp_path / "slurmdbd.conf"
    assert stat.S_IMODE(conf.stat().st_mode) == 0o600
    paths = [word.partition("/")[2] for word in conf.read_text().split() if "=/" in word]
    assert paths
    assert all(f"/{path}".startswith(f"{tmp_path}/") for path in paths)
    assert "SlurmUser=ada" in conf.read_text()


def test_a_cluster_that_is_found_knows_of_its_accounting(tmp_path: Path) -> None:
    """`attach` detects the accounting by slurmdbd.conf."""
    nodes = parse_nodes("v100:1")
    (tmp_path / "hadar-cluster.json").write_text('{"nodes": [{"name": "n1", "gpus": {"v100": 1}}]}')
    assert LocalCluster.attach(tmp_path) == LocalCluster(tmp_path, nodes)
    (tmp_path / "slurmdbd.conf").touch()
    assert LocalCluster.attach(tmp_path) == LocalCluster(tmp_path, nodes, accounting=True)


@pytest.mark.parametrize("name", ["mariadbd", "slurmdbd", "slurmctld"])
def test_no_node_is_named_like_a_daemon(name: str) -> None:
    """A node cannot have the name of a daemon, which names a log directory."""
    with pytest.raises(ConfigError, match=name):
        NodeShape(name, {"v100": 1})
