"""Which adapter to reach Slurm by: pyslurm where it fits the Slurm that runs, else its commands."""

from __future__ import annotations

from hadar_slurm.slurm.adapter import SlurmAdapter
from hadar_slurm.slurm.command_line import CommandLine
from hadar_slurm.slurm.runner import Runner


def make_adapter(name: str, runner: Runner) -> SlurmAdapter:
    """Return the adapter called `name`: `pyslurm`, `command-line`, or `auto` for what fits."""
    return CommandLine(runner)
