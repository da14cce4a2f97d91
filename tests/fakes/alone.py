"""Starts trainings (train_alone.py) whose surroundings are read from their environment."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import load_file

PROGRAM = Path(__file__).with_name("train_alone.py")
LIMIT_S = 300.0
SLURM = ("SLURM_", "HADAR_", "WORLD_SIZE", "RANK")


@dataclass
class Alone:
    """A directory in which trainings are started, as in one shell or one Slurm job."""

    place: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(
        self, name: str, total_steps: int, *options: str, **variables: str
    ) -> subprocess.Popen[str]:
        """Start a training; `variables` are set in its environment."""
        known = {k: v for k, v in os.environ.items() if not k.startswith(SLURM)}
        process = subprocess.Popen(
            [sys.executable, str(PROGRAM), name, str(total_steps), *options],
            cwd=self.place,
            env={**known, "HADAR_SPOOL": str(self.place / "spool"), **variables},
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def end(self, process: subprocess.Popen[str], status: int | None = 0) -> str:
        """Wait until a training ends with `status` (None: any), and return its standard error."""
        _, said = process.communicate(timeout=LIMIT_S)
        assert status in (None, process.returncode), said
        return said

    def run(
        self, name: str, total_steps: int, *options: str, status: int = 0, **variables: str
    ) -> str:
        """Run a training to its end, and return its standard error."""
        return self.end(self.start(name, total_steps, *options, **variables), status)

    def kill(self, process: subprocess.Popen[str]) -> None:
        """Kill a training."""
        process.kill()
        process.communicate()

    def stop(self) -> None:
        """End all trainings."""
        for process in self.started:
            if process.poll() is None:
                self.kill(process)

    def steps(self, name: str, rate: float = 0.1) -> list[int]:
        """Return the steps that were trained at a learning rate."""
        path = self.place / f"steps-{name}"
        lines = path.read_text().splitlines() if path.exists() else []
        return [int(line.split()[1]) for line in lines if float(line.split()[0]) == rate]

    def weights(self, name: str, rate: float = 0.1) -> torch.Tensor:
        """Return the final weights of a training's first layer."""
        return load_file(self.place / f"final-{name}-{rate}.safetensors")["0.weight"]

    def directories(self) -> set[str]:
        """Return the directories of trainings."""
        return {path.name for path in self.place.glob("hadar-*")}
