"""One dockerized cluster for the session, started by docker/up and removed by docker/down.

These tests build images, so they are collected only when they are asked for: `make docker-test`,
docker/test, or `pytest tests/docker`.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from docker.world import DockerCluster

REPOSITORY = Path(__file__).resolve().parents[2]
# Exit status of docker/common.sh if no container engine can run here; its last line says why.
NO_ENGINE = 3
# Time to install an engine, make a base image and build the project's images on two cores.
START_S = 1500.0

collect_ignore_glob: list[str] = []


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, and collect these tests only if a path in this folder is given."""
    config.addinivalue_line("markers", "docker: needs a container engine, and builds images")
    here = Path(__file__).parent
    asked = [Path(word.split("::")[0]).resolve() for word in config.args]
    if not any(path == here or here in path.parents for path in asked):
        collect_ignore_glob.append("test_*.py")


@pytest.fixture(scope="session")
def slurm_version() -> str:
    """Return the requested version; a cluster that already runs may have another one."""
    return os.environ.get("HADAR_DOCKER_SLURM", "26.05")


@pytest.fixture(scope="session")
def cluster(slurm_version: str) -> Iterator[DockerCluster]:
    """Start the cluster, or use the one that HADAR_DOCKER_PROJECT names and leave it running."""
    running = os.environ.get("HADAR_DOCKER_PROJECT")
    if running:
        yield DockerCluster(REPOSITORY, running)
        return
    project = f"hadar-test-{os.getpid()}"
    environment = {**os.environ, "COMPOSE_PROJECT_NAME": project}

    def script(name: str, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(REPOSITORY / "docker" / name), *words],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=START_S,
            check=False,
        )

    try:
        started = script("up", "--slurm", slurm_version)
        if started.returncode == NO_ENGINE:
            pytest.skip(started.stderr.strip().splitlines()[-1])
        assert started.returncode == 0, started.stderr
        yield DockerCluster(REPOSITORY, project)
    finally:
        script("down")
