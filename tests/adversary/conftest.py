"""Fixtures: a local cluster run by root, two ordinary users, and a hadard that tests start."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from adversary.users import User, make_users
from integration.conftest import local_cluster, new_directory
from integration.site import Site

from hadar_slurm.devcluster.cluster import LocalCluster

__all__ = ["local_cluster", "new_directory"]
NODES = "v100:4,v100:4,p100:4,k80:4"


def as_root() -> None:
    """Skip a test that root does not run."""
    if os.geteuid() != 0:
        pytest.skip("only root can be several users: run these tests as root")


@pytest.fixture
def site(
    local_cluster: Callable[..., LocalCluster],
    new_directory: Callable[[], Path],
) -> Iterator[Site]:
    """Give each test its own cluster and directory; skip the test unless root runs it."""
    as_root()
    cluster = local_cluster(NODES)
    directory = new_directory()
    directory.mkdir(mode=0o755)
    site = Site(cluster, directory)
    site.settings["policy"] = "hadar"
    yield site
    site.close()
    cluster.down()
    shutil.rmtree(directory)


@pytest.fixture
def users(site: Site) -> tuple[User, User]:
    """Give the honest user and the adversary."""
    return make_users(site.directory, site.environment)
