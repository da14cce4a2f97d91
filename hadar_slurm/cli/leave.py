"""hadar leave: returns a user's own jobs to plain Slurm."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import typer

from hadar_slurm.cli.completing import ConfigOption, own_jobs
from hadar_slurm.config import Config, load_config
from hadar_slurm.core.cluster import JobId
from hadar_slurm.errors import JobSpecError, SlurmError, UsageError
from hadar_slurm.jobspec.comment import encode
from hadar_slurm.jobspec.description import decode, decode_or_none
from hadar_slurm.jobspec.opting_out import is_opted_out, with_opt_out
from hadar_slurm.slurm.client.command_line import CommandLine
from hadar_slurm.slurm.client.parse import QueueRow
from hadar_slurm.slurm.client.runner import Runner
from hadar_slurm.slurm.client.updates import Release, SetStartNow
from hadar_slurm.status.words import legible

# hadard, which marks the comments of waiting jobs, may have read one just before it was changed;
# Slurm has no update that applies only where a field is as it was read. So the comment is read back
# once hadard must have made that change: where Slurm limits RPCs, it reads the jobs of five seconds
# together (rate_limit.py).
_READ_BACK_S, _READ_BACK_LIMITED_S = 2.0, 8.0
_ATTEMPTS = 3


def leave(
    jobs: Annotated[
        list[str],
        typer.Argument(metavar="JOB...", help="Slurm's ids of your jobs.", autocompletion=own_jobs),
    ],
    config: ConfigOption = None,
) -> None:
    """Remove jobs from Hadar's management: from now on only Slurm schedules them.

    A running job continues and is not migrated again.
    """
    chosen = Config() if config is None else load_config(config)
    slurm = CommandLine(Runner(chosen.slurm_conf, chosen.command_timeout_seconds))
    pause_s = _READ_BACK_S if slurm.site().rpcs_per_s == math.inf else _READ_BACK_LIMITED_S
    faults: dict[str, str] = {}
    for attempt in range(_ATTEMPTS + 1):
        try:
            if not _attempt(slurm, jobs, attempt, faults):
                break
        except SlurmError as error:
            if attempt == 0:
                raise
            typer.echo(f"hadar: the comments are not read back: {legible(str(error))}", err=True)
            break
        time.sleep(pause_s)
    for job in jobs:
        if job not in faults:
            typer.echo(f"job {job} is left to Slurm")
    if faults:
        raise typer.Exit(1)


def _attempt(slurm: CommandLine, jobs: Sequence[str], attempt: int, faults: dict[str, str]) -> bool:
    """Change the jobs that have not left; return whether there were any, and add their faults."""
    queue, changed = slurm.queue(), False
    for job in [job for job in jobs if job not in faults]:
        rows = [row for key, row in queue.items() if key == job or key.startswith(f"{job}_")]
        try:
            if attempt == 0 and not rows:
                raise UsageError(f"job {job} does not exist")
            if attempt and all(map(_has_left, rows)):
                continue
            if attempt == _ATTEMPTS:
                raise SlurmError(f"job {job}: its comment was replaced each time; try again")
            _change(slurm, job, rows)
            changed = True
        except (UsageError, JobSpecError, SlurmError) as error:
            faults[job] = legible(str(error))
            typer.echo(f"hadar: {faults[job]}", err=True)
    return changed


def _has_left(row: QueueRow) -> bool:
    """Return whether a job is no more one of hadard, or has ended."""
    description = decode(row.comment)
    leaves = is_opted_out(row.comment) if description is None else description.leaves
    return leaves or not row.is_live


def _change(slurm: CommandLine, job: str, rows: Sequence[QueueRow]) -> None:
    """Note in a job's comment that it leaves, and end a hold of hadard's."""
    comment = _leaving(rows[0].comment)
    slurm.runner.run(["scontrol", "update", f"JobId={job}", f"Comment={comment}"])
    # hadard holds no other jobs: the hold is their owner's.
    is_described = decode_or_none(rows[0].comment) is not None
    if is_described and any(row.is_held_by_user for row in rows):
        soon = [SetStartNow(JobId(job))] if any(row.restarts for row in rows) else []
        for fault in slurm.change([*soon, Release(JobId(job))]):
            if fault is not None:
                raise fault


def _leaving(comment: str) -> str:
    """Return the comment of a job that leaves, described by hadar-sbatch or enrolled."""
    description = decode(comment)
    if description is not None:
        return encode(replace(description, leaves=True))
    return with_opt_out(comment)
