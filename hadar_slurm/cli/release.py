"""hadar release and hadar leave: jobs go back to plain Slurm, all of them or one's own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer

from hadar_slurm.cli.completing import own_jobs
from hadar_slurm.config import DEFAULT_PATH, Config, load_config, read_config
from hadar_slurm.core.cluster import JobId
from hadar_slurm.daemon.signs_of_life import good_for_s
from hadar_slurm.errors import JobSpecError, SlurmError, UsageError
from hadar_slurm.jobspec.description import decode, encode
from hadar_slurm.slurm.client.command_line import CommandLine
from hadar_slurm.slurm.client.protocol import SlurmAdapter
from hadar_slurm.slurm.client.runner import Runner
from hadar_slurm.slurm.client.updates import Release, SetStartNow
from hadar_slurm.slurm.control.ledger import FILE_NAME, Ledger
from hadar_slurm.slurm.control.release_all import reason_to_keep, release_all, waiting_for_us
from hadar_slurm.slurm.control.restore import Returned
from hadar_slurm.state.heartbeat import remove_heartbeat
from hadar_slurm.state.lease import Lease
from hadar_slurm.state.locks import RELEASE, lock
from hadar_slurm.state.reaper_count import add_expired

ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help=f"hadard's configuration; else {DEFAULT_PATH}."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


def release(
    config: ConfigOption = None,
    *,
    expired: Annotated[
        bool,
        typer.Option("--expired", help="Only when hadard's sign of life has expired (the reaper)."),
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Even though a hadard is at work; it may hold anew.")
    ] = False,
    limit: Annotated[
        float, typer.Option(min=0, metavar="S", help="Seconds to go on trying.")
    ] = 60.0,
    as_json: JsonOption = False,
) -> None:
    """Give every job that hadard holds or has pinned back to plain Slurm.

    Nothing is done while a hadard is alive. Status 1 if a job is still held that should not be: it
    could not be released, or hadard is at work and --expired is not given.
    """
    chosen = read_config(config)
    # Whatever hadard uses: this must work after an upgrade that pyslurm does not fit any more.
    slurm = CommandLine(Runner(chosen.slurm_conf, chosen.command_timeout_seconds))
    lease = Lease(chosen.spool_dir, slurm.site().name, good_for_s(chosen))
    # Another release that hangs leaves half of the time for this one.
    with _alone(chosen.state_dir, limit / 2):
        kept_for = ""
        if not force:
            places = chosen.state_dir, chosen.run_dir
            kept_for = reason_to_keep(*places, lease, only_expired=expired)
        answers = None if kept_for else _release(chosen, slurm, limit)
        if answers and expired:
            _count(chosen.state_dir, answers)
    held = 0
    if kept_for and not expired:
        held = len(waiting_for_us(slurm.queue().values(), Ledger(chosen.state_dir / FILE_NAME)))
    _tell(answers, kept_for, held, as_json=as_json)


@contextmanager
def _alone(state_dir: Path, limit_s: float) -> Iterator[None]:
    """Wait for another `hadar release` to end; one that hangs keeps no job from its user."""
    with ExitStack() as held:
        try:
            if not held.enter_context(lock(state_dir, RELEASE, wait_s=limit_s)):
                typer.echo(f"hadar: another hadar release hangs for {limit_s:g} s", err=True)
        except OSError as error:
            # No ledger either: hadard has never enforced here, or this user is not its operator.
            typer.echo(f"hadar: {state_dir / RELEASE}: {error.strerror}", err=True)
        yield


def _release(chosen: Config, slurm: SlurmAdapter, limit_s: float) -> tuple[Returned, ...]:
    # From now on jobs are submitted to plain Slurm; a hadard that lives writes it anew.
    try:
        remove_heartbeat(chosen.run_dir)
    except OSError as error:
        # No sign of life is worth a job that stays held.
        typer.echo(f"hadar: the sign of life cannot be removed: {error}", err=True)
    return release_all(slurm, Ledger(chosen.state_dir / FILE_NAME), limit_s=limit_s)


def _count(state_dir: Path, answers: tuple[Returned, ...]) -> None:
    """Note how many were given back: afterwards, for no count is worth a job that stays held."""
    try:
        add_expired(state_dir, sum(not answer.fault for answer in answers))
    except OSError as error:
        typer.echo(f"hadar: what was released cannot be counted: {error}", err=True)


def _tell(answers: tuple[Returned, ...] | None, kept_for: str, held: int, *, as_json: bool) -> None:
    if answers is None:
        tree = {"released": [], "failed": [], "kept_for": kept_for}
        typer.echo(json.dumps(tree) if as_json else f"nothing released: {kept_for}")
        if held:
            if not as_json:
                typer.echo(f"hadar: {held} jobs are held; stop hadard, or give --force", err=True)
            raise typer.Exit(1)
        return
    failed = [answer for answer in answers if answer.fault]
    if as_json:
        released = [answer.job for answer in answers if not answer.fault]
        told: dict[str, object] = {
            "released": released,
            "failed": [asdict(answer) for answer in failed],
            "kept_for": "",
        }
        typer.echo(json.dumps(told))
    else:
        for answer in failed:
            typer.echo(f"hadar: job {answer.job} is not released: {answer.fault}", err=True)
        typer.echo(f"{len(answers) - len(failed)} jobs released to plain Slurm")
    if failed:
        raise typer.Exit(1)


def leave(
    jobs: Annotated[
        list[str],
        typer.Argument(metavar="JOB...", help="Your jobs, by Slurm's id.", autocompletion=own_jobs),
    ],
    config: ConfigOption = None,
) -> None:
    """Take jobs out of Hadar's hands: Slurm alone decides about them from now on.

    A job that Hadar has already started runs on and is not moved again.
    """
    chosen = Config() if config is None else load_config(config)
    runner = Runner(chosen.slurm_conf, chosen.command_timeout_seconds)
    slurm = CommandLine(runner)
    queue = slurm.queue()
    failed = False
    for job in jobs:
        rows = [row for row in queue.values() if row.key == job or row.key.startswith(f"{job}_")]
        try:
            description = decode(rows[0].comment) if rows else None
            if description is None:
                raise UsageError(f"job {job} is not there, or was not submitted by hadar-sbatch")
            comment = encode(replace(description, leaves=True))
            runner.run(["scontrol", "update", f"JobId={job}", f"Comment={comment}"])
            if any(row.is_held_by_user for row in rows):
                soon = [SetStartNow(JobId(job))] if any(row.restarts for row in rows) else []
                for fault in slurm.change([*soon, Release(JobId(job))]):
                    if fault is not None:
                        raise fault
        except (UsageError, JobSpecError, SlurmError) as error:
            typer.echo(f"hadar: {error}", err=True)
            failed = True
        else:
            typer.echo(f"job {job} is left to Slurm")
    if failed:
        raise typer.Exit(1)
