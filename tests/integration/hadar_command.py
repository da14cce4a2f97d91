"""Runs `hadar cluster` as a separate process, in an environment that works for every user."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import hadar_slurm
from hadar_slurm.slurm.client.runner import Runner


def runner_for_anyone() -> Runner:
    """Return a runner with an environment in which any user's Python can import hadar_slurm."""
    packages = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    paths = [str(Path(hadar_slurm.__file__).parents[1]), *packages]
    return Runner(
        environment={
            "PYTHONPATH": os.pathsep.join(paths),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "HOME": "/nonexistent",
        }
    )


def hadar(directory: Path, *arguments: str) -> str:
    """Run `hadar cluster` as a separate process, and return its output."""
    argv = [sys.executable, "-m", "hadar_slurm.cli.cluster", *arguments, "--dir", str(directory)]
    return runner_for_anyone().run(argv)
