"""hadar leave: returns a user's own jobs to plain Slurm."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from hadar_slurm.cli.completing import ConfigOption, own_jobs
from hadar_slurm.config import Config, load_config
from hadar_slurm.core.cluster import JobId
from hadar_slurm.errors import JobSpecError, SlurmError, UsageError
from hadar_slurm.jobspec.comment import encode
from hadar_slurm.jobspec.description import decode, decode_or_none
from hadar_slurm.jobspec.opting_out import with_opt_out
from hadar_slurm.slurm.client.command_line import CommandLine
from hadar_slurm.slurm.client.runner import Runner
from hadar_slurm.slurm.client.updates import Release, SetStartNow
from hadar_slurm.status.words import legible


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
    runner = Runner(chosen.slurm_conf, chosen.command_timeout_seconds)
    slurm = CommandLine(runner)
    queue, failed = slurm.queue(), False
    for job in jobs:
        rows = [row for row in queue.values() if row.key == job or row.key.startswith(f"{job}_")]
        try:
            if not rows:
                raise UsageError(f"job {job} does not exist")
            comment = _leaving(rows[0].comment)
            runner.run(["scontrol", "update", f"JobId={job}", f"Comment={comment}"])
            # hadard holds no other jobs: the hold is their owner's.
            is_described = decode_or_none(rows[0].comment) is not None
            if is_described and any(row.is_held_by_user for row in rows):
                soon = [SetStartNow(JobId(job))] if any(row.restarts for row in rows) else []
                for fault in slurm.change([*soon, Release(JobId(job))]):
                    if fault is not None:
                        raise fault
        except (UsageError, JobSpecError, SlurmError) as error:
            typer.echo(f"hadar: {legible(str(error))}", err=True)
            failed = True
        else:
            typer.echo(f"job {job} is left to Slurm")
    if failed:
        raise typer.Exit(1)


def _leaving(comment: str) -> str:
    """Return the comment of a job that leaves, described by hadar-sbatch or enrolled."""
    description = decode(comment)
    if description is not None:
        return encode(replace(description, leaves=True))
    return with_opt_out(comment)
