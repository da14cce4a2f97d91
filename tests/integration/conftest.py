"""Real Slurm clusters for the tests, each in its own short directory and always stopped."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest
from integration.site import Site

from hadar_slurm.devcluster.cluster import LocalCluster
from hadar_slurm.devcluster.config import parse_nodes
from hadar_slurm.devcluster.processes import find_binaries, wait_until
from hadar_slurm.errors import ClusterError

# slurmdbd 24.11.5 ends with this on Debian 13 since its MariaDB library is 11.8.9 (docs/slurm.md).
NO_DATABASE = "_check_mysql_concat_is_sane"
SIX_NODES = "v100:4,v100:4,p100:4,p100:4,k80:4,v100:2+k80:2"


def stop(directory: Path) -> None:
    """Stop the cluster in `directory`, if there is one."""
    if LocalCluster.exists(directory):
        LocalCluster.attach(directory).down()


@pytest.fixture(scope="session")
def new_directory() -> Iterator[Callable[[], Path]]:
    """Give paths for clusters; clusters that exist there at the end of the session are stopped.

    The paths are short, since paths of unix sockets have at most 107 characters, and pytest's own
    directories are longer.
    """
    try:
        find_binaries()
    except ClusterError as error:
        pytest.skip(str(error))
    base = Path(tempfile.mkdtemp(prefix="hadar-test-"))
    base.chmod(0o755)
    numbers = count(1)
    with ExitStack() as at_end:
        at_end.callback(shutil.rmtree, base)

        def give() -> Path:
            directory = base / f"c{next(numbers)}"
            at_end.callback(stop, directory)
            return directory

        yield give


@pytest.fixture(scope="session")
def accounting_programs(new_directory: Callable[[], Path]) -> dict[str, str]:
    """Return the programs of a cluster with accounting.

    Tests skip where one is missing, or where slurmdbd cannot work with the system's MariaDB.
    """
    try:
        programs = find_binaries(accounting=True)
    except ClusterError as error:
        pytest.skip(str(error))
    try:
        LocalCluster.up(new_directory(), parse_nodes("v100:1"), accounting=True).down()
    except ClusterError as error:
        if NO_DATABASE not in str(error):
            raise
        pytest.skip(str(error))
    return programs


@pytest.fixture(scope="session")
def local_cluster(new_directory: Callable[[], Path]) -> Callable[..., LocalCluster]:
    """Start clusters: `local_cluster("v100:4,k80:2")`, with the options of LocalCluster.up."""

    def start(nodes: str, **options: object) -> LocalCluster:
        return LocalCluster.up(new_directory(), parse_nodes(nodes), **options)  # type: ignore[arg-type]

    return start


@pytest.fixture(scope="session")
def slurm_cluster(local_cluster: Callable[..., LocalCluster]) -> LocalCluster:
    """A cluster of six nodes for the session; tests use `cluster`, which is reset after each."""
    return local_cluster(SIX_NODES, slurmd_timeout_s=10)


@pytest.fixture
def cluster(slurm_cluster: LocalCluster) -> Iterator[LocalCluster]:
    """Give the six nodes idle and without jobs, and reset them after the test."""
    yield slurm_cluster
    reset(slurm_cluster)


@pytest.fixture
def site(cluster: LocalCluster, tmp_path: Path) -> Iterator[Site]:
    """Give the six nodes with a hadard that a test may start; it is always stopped."""
    site = Site(cluster, tmp_path)
    yield site
    site.close()


def reset(cluster: LocalCluster) -> None:
    """Cancel all jobs, restart what was stopped, wait for idle nodes, and clear run and spool."""
    cluster.start_controller()
    cluster.cancel_jobs()
    runner = cluster.runner(timeout_s=10)

    def is_idle() -> bool:
        # A slurmd may end late: one of 24.11 that may not create namespaces ends after --export.
        for node in cluster.nodes:
            cluster.start_node(node.name)
        for seen in cluster.status().nodes:
            if seen.state.startswith(("down", "drain", "fail")):
                runner.run(["scontrol", "update", f"NodeName={seen.name}", "State=RESUME"])
        return all(node.state == "idle" for node in cluster.status().nodes)

    assert wait_until(lambda: not runner.run(["squeue", "-h"]).strip(), 30), "jobs do not end"
    assert wait_until(is_idle, 30), f"nodes do not become idle: {cluster.status().nodes}"
    for name in ("run", "spool"):
        for path in (cluster.directory / name).iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    (cluster.directory / "spool" / "reports").mkdir()
    (cluster.directory / "spool" / "reports").chmod(0o1777)
