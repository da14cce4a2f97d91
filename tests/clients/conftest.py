"""A small cluster with accounting, on which other projects' tools submit their jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from clients.tools import TOOLS, Tool, Workplace
from integration.conftest import accounting_programs, local_cluster, new_directory, reset
from integration.site import Site

from hadar_slurm.devcluster.cluster import LocalCluster

__all__ = ["accounting_programs", "local_cluster", "new_directory"]

# Fewer GPUs than a tool asks for at once, so that some of its jobs have to wait.
NODES = "v100:2,p100:1,k80:1"


@pytest.fixture(params=TOOLS, ids=lambda tool: tool.name)
def tool(request: pytest.FixtureRequest) -> Tool:
    """Give each tool in turn."""
    return installed(request.param)


@pytest.fixture
def submitit() -> Tool:
    """Give submitit alone."""
    return installed(TOOLS[0])


def installed(tool: Tool) -> Tool:
    """Return the tool; skip the test if it is not installed."""
    if not tool.python.exists():
        pytest.skip(f"{tool.name} is not installed: make test-clients")
    return tool


@pytest.fixture(scope="module")
def accounted(
    local_cluster: Callable[..., LocalCluster], accounting_programs: object
) -> Iterator[LocalCluster]:
    """Give a cluster with accounting for all tools."""
    with local_cluster(NODES, accounting=True) as cluster:
        yield cluster


@pytest.fixture
def workplace(accounted: LocalCluster, tmp_path: Path) -> Iterator[Workplace]:
    """Give a login node of the idle cluster, and a hadard that a test may start."""
    site = Site(accounted, tmp_path)
    yield Workplace(site)
    site.close()
    reset(accounted)
