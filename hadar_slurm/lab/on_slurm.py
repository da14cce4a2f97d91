"""Options of commands whose runs may go to the site's own Slurm."""

from __future__ import annotations

import os
import re
from typing import Annotated

import typer

from hadar_slurm.core.time_limit import parse_time_limit
from hadar_slurm.errors import UsageError
from hadar_slurm.lab.study.running.arrays import Arrays, RunRequest
from hadar_slurm.lab.study.running.cells import CellRunner
from hadar_slurm.lab.study.running.processes import Processes

OnSlurmOption = Annotated[
    bool,
    typer.Option(
        "--on-slurm",
        help="Run everything as job arrays of this site's Slurm, one processor a run. All nodes "
        "must see --output.",
    ),
]
SlurmPartitionOption = Annotated[
    str, typer.Option(help="Its partition.", show_default="Slurm's default")
]
SlurmTimeOption = Annotated[str, typer.Option(help="Time limit of each run there.")]
SlurmMemoryOption = Annotated[str, typer.Option(help="Memory of each run there.")]
SlurmOptionsOption = Annotated[
    str, typer.Option(help="Further options of sbatch: account=physics,qos=long.")
]
# What submitit or another option sets.
_OURS = ("array", "job-name", "mem", "output", "error", "partition", "time", "cpus-per-task", "J")
_MEMORY = re.compile(r"[1-9][0-9]{0,8}[KMGT]?", re.IGNORECASE)
_NAME = re.compile(r"[a-z][a-z0-9-]*")


def way_to_run(
    at_once: int | None,
    *,
    on_slurm: bool,
    partition: str,
    time_limit: str,
    memory: str,
    options: str,
) -> CellRunner:
    """Return how to run the cells; raises UsageError for a wrong option."""
    if not on_slurm:
        if partition or options:
            option = "--slurm-partition" if partition else "--slurm-options"
            raise UsageError(f"{option}: it is not used; give --on-slurm")
        return Processes(at_once or os.cpu_count() or 1)
    limit_s = parse_time_limit(time_limit)
    if limit_s is None:
        raise UsageError(f"--slurm-time {time_limit!r}: expected a time limit such as 4:00:00")
    if not _MEMORY.fullmatch(memory):
        raise UsageError(f"--slurm-memory {memory!r}: expected a size such as 4G")
    return Arrays(
        RunRequest(
            partition,
            time_limit_s=limit_s,
            memory=memory,
            at_once=at_once,
            others=_options(options),
        )
    )


def _options(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in text.split(",") if text else ():
        name, equals, value = part.strip().partition("=")
        name = name.removeprefix("--")
        if not (equals and value and _NAME.fullmatch(name)):
            raise UsageError(f"--slurm-options {part!r}: expected NAME=VALUE, such as qos=long")
        if name in _OURS:
            raise UsageError(f"--slurm-options {part!r}: hadar compare sets {name} itself")
        found[name] = value
    return found
