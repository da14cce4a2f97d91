"""Fixtures for the worlds; a test that takes `world` runs once in each."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from contract.worlds import (
    DockerWorld,
    FakeWorld,
    LocalWorld,
    SimWorld,
    SlurmWorld,
    World,
    docker_containers,
)
from integration.conftest import cluster, local_cluster, new_directory, site, slurm_cluster

__all__ = ["cluster", "local_cluster", "new_directory", "site", "slurm_cluster"]

SIMULATOR = pytest.param("simulator")
FAKES = [pytest.param("fake 22.05"), pytest.param("fake 26.05")]
REAL = [
    pytest.param("local", marks=pytest.mark.slurm),
    pytest.param("docker", marks=pytest.mark.docker),
]


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, also for a run of these tests only."""
    config.addinivalue_line("markers", "docker: starts a dockerized Slurm cluster")


def a_world(request: pytest.FixtureRequest, directory: Path) -> World:
    """Return the world named by a test's parameter."""
    name = request.param
    if name == "simulator":
        return SimWorld()
    return a_slurm_world(request, directory)


def a_slurm_world(request: pytest.FixtureRequest, directory: Path) -> SlurmWorld:
    """Return the Slurm world named by a test's parameter."""
    match request.param:
        case "fake 22.05":
            return FakeWorld(directory, (22, 5, 8))
        case "fake 26.05":
            return FakeWorld(directory, (26, 5, 5))
        case "local":
            return LocalWorld(request.getfixturevalue("site"))
    world = DockerWorld(request.getfixturevalue("docker_cluster"), directory)
    request.addfinalizer(world.reset)
    return world


@pytest.fixture(scope="session")
def docker_cluster() -> Iterator[dict[str, str]]:
    """Give the containers of a running cluster; its hadard is stopped during the tests."""
    containers, reason = docker_containers()
    if reason:
        pytest.skip(reason)
    hadard = [containers[name] for name in ("hadard",) if name in containers]
    for name in hadard:
        subprocess.run(["docker", "stop", name], check=True, capture_output=True)
    yield containers
    for name in hadard:
        subprocess.run(["docker", "start", name], check=True, capture_output=True)


@pytest.fixture(params=[SIMULATOR, *FAKES, *REAL])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    """Give each world in turn."""
    return a_world(request, tmp_path)


@pytest.fixture(params=[*FAKES, *REAL])
def slurm_world(request: pytest.FixtureRequest, tmp_path: Path) -> SlurmWorld:
    """Give each world with a Slurm, fake or real, in turn."""
    return a_slurm_world(request, tmp_path)
