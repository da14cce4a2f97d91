"""Where a copy is: everything the runtime reads from the environment, once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hadar_slurm import handoff
from hadar_slurm.runtime.files.identity import command_line

DIRECTORY_VARIABLE = "HADAR_JOB_DIR"
MODE_VARIABLE = "HADAR_COPY_MODE"


@dataclass(frozen=True)
class Surroundings:
    """A copy's number, its job's directory, and the files that hadard and it exchange."""

    copy: int
    directory: Path  # the user's, on a file system that all nodes share
    job: str | None = None  # the Slurm job of this copy, None outside of Slurm
    restart: int = 0
    spool: Path = Path(handoff.DEFAULT_REPORTS)  # where this user's jobs report
    assignment: Path | None = None  # hadard's file for the whole job, which need not be there
    # Several processes of torchrun are one copy, and this is number `rank` of `ranks`.
    rank: int = 0
    ranks: int = 1
    is_named: bool = True  # the directory is for this training alone: another one is refused
    command: tuple[str, ...] = field(default_factory=command_line)
    mode: str = ""  # how copies work together, where the script does not say
    is_from_environment: bool = False  # every `Copy` of the process is then a separate training

    @classmethod
    def of(cls, variables: Mapping[str, str] | None = None) -> Surroundings:
        """Return what the environment says; raises ValueError for processes on several nodes."""
        known = os.environ if variables is None else variables
        ranks = int(known.get("WORLD_SIZE") or 1)
        if ranks != int(known.get("LOCAL_WORLD_SIZE") or 1):
            raise ValueError(
                f"WORLD_SIZE says that {ranks} processes train together, and LOCAL_WORLD_SIZE not "
                "that all are here: a copy is on one node, start its processes with torchrun there"
            )
        job = known.get("SLURM_JOB_ID")
        is_copy = handoff.COPIES_VARIABLE in known and "SLURM_ARRAY_JOB_ID" in known
        parent = known["SLURM_ARRAY_JOB_ID"] if is_copy else job
        start = Path(known.get("SLURM_SUBMIT_DIR", "."))
        assignments = Path(known.get(handoff.ASSIGNMENTS_VARIABLE) or handoff.DEFAULT_ASSIGNMENTS)
        return cls(
            copy=int(known["SLURM_ARRAY_TASK_ID"]) if is_copy else 0,
            directory=Path(known.get(DIRECTORY_VARIABLE) or start / f"hadar-{parent or 'job'}"),
            job=job,
            restart=int(known.get("SLURM_RESTART_COUNT") or 0),
            spool=handoff.own_reports(known),
            assignment=handoff.assignment_path(assignments, parent) if parent else None,
            rank=int(known.get("RANK") or 0) if ranks > 1 else 0,
            ranks=ranks,
            is_named=is_copy or bool(known.get(DIRECTORY_VARIABLE)),
            mode=known.get(MODE_VARIABLE, ""),
            is_from_environment=True,
        )
