"""Plays lists on another version of Slurm than this machine's: the same play, in a container.

The image is that of docker/up, which has the Slurm and all that the play imports; this checkout is
mounted, so that nothing is built for it.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from hadar_slurm.errors import HadarError

_ROOT = Path(__file__).resolve().parents[2]
_VARIABLES = {"PYTHONPATH": "/src:/src/benchmarks", "PYTHONDONTWRITEBYTECODE": "1"}
_PYTHON = "/opt/hadar/bin/python"


class ContainerError(HadarError):
    """No container can play, or one has failed."""


def play_in_container(version: str, names: Sequence[str], to: Path) -> None:
    """Play lists on Slurm `version`, such as 24.11, and record them in a directory.

    Raises ContainerError where there is no such image or no engine. What is started in the
    container ends with it.
    """
    image = f"hadar-slurm:{version}"
    try:
        found = subprocess.run(
            ["docker", "image", "inspect", image], capture_output=True, timeout=60, check=False
        ).returncode
    except OSError as error:
        raise ContainerError(f"docker does not run: {error}") from None
    if found != 0:
        raise ContainerError(f"no image {image}: make it with docker/up --slurm {version}")
    to.mkdir(parents=True, exist_ok=True)
    # Without SYS_ADMIN one `sbatch --export=NONE` job ends slurmd.
    words = ["docker", "run", "--rm", "--cap-add=SYS_ADMIN", f"--volume={_ROOT}:/src:ro"]
    words += [f"--volume={to.resolve()}:/to", *(f"--env={k}={v}" for k, v in _VARIABLES.items())]
    words += [image, _PYTHON, "-m", "slurm_fidelity", "real", *names, "--to", "/to"]
    if status := subprocess.run(words, check=False).returncode:
        raise ContainerError(f"the container of {image} ended with status {status}")
