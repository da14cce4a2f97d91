"""hadar release: returns all jobs to plain Slurm."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from hadar_slurm import untrusted_files
from hadar_slurm.cli.completing import ConfigOption, JsonOption
from hadar_slurm.config import Config, read_config
from hadar_slurm.daemon.signs_of_life import good_for_s
from hadar_slurm.slurm.client.command_line import CommandLine
from hadar_slurm.slurm.client.protocol import SlurmAdapter
from hadar_slurm.slurm.client.runner import Runner
from hadar_slurm.slurm.enforce.ledger import FILE_NAME, Ledger
from hadar_slurm.slurm.enforce.release_all import await_nodes, release_all
from hadar_slurm.slurm.enforce.restore import Returned, changed_jobs
from hadar_slurm.state import reaper_count
from hadar_slurm.state.heartbeat import remove_heartbeat
from hadar_slurm.state.heartbeat_reader import read_heartbeat
from hadar_slurm.state.lease import Lease
from hadar_slurm.state.locks import RELEASE, lock, started_s
from hadar_slurm.status.words import legible

_POLL_S = 0.5


def release(
    config: ConfigOption = None,
    *,
    expired: Annotated[
        bool,
        typer.Option("--expired", help="Only if hadard's heartbeat has expired (for the reaper)."),
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Even if hadard is running, which may hold jobs again.")
    ] = False,
    limit: Annotated[
        float, typer.Option(min=0, metavar="S", help="Seconds to keep trying.")
    ] = 60.0,
    as_json: JsonOption = False,
) -> None:
    """Release all jobs held or pinned by hadard to plain Slurm.

    Does nothing while hadard is alive. Status 1 if jobs are still held: a job could not be
    released, or hadard is alive and --expired is not given.
    """
    chosen = read_config(config, needs_policy=False)
    # Never pyslurm: this must work after a Slurm upgrade that the installed pyslurm does not fit.
    slurm = CommandLine(Runner(chosen.slurm_conf, chosen.command_timeout_seconds))
    lease = Lease(chosen.spool_dir, slurm.site().name, good_for_s(chosen))
    keep = partial(reason_to_keep, chosen.state_dir, chosen.run_dir, lease, only_expired=expired)
    if expired and not force:
        _await_reading(chosen.run_dir, limit)
    # If another release hangs, this one still has half of the time.
    with _alone(chosen.state_dir, limit / 2):
        end_s, kept_for = time.monotonic() + limit, "" if force else keep()
        if expired and not (force or kept_for):
            await_nodes(slurm, limit / 2)
            kept_for = keep()
        answers = () if kept_for else _release(chosen, slurm, end_s - time.monotonic())
        if answers and expired:
            _count(chosen, answers)  # last, because releasing is more important
    held = 0
    if kept_for and not expired:
        ledger, rows = Ledger(chosen.state_dir / FILE_NAME), slurm.queue().values()
        ledger.see(slurm, rows)
        held = len(changed_jobs(ledger, rows))
    _print(answers, kept_for, held, as_json=as_json)
    if held or any(answer.fault for answer in answers):
        raise typer.Exit(1)


def reason_to_keep(
    state_dir: Path,
    run_dir: Path,
    lease: Lease,
    *,
    only_expired: bool,
    now_s: Callable[[], float] = time.time,
) -> str:
    """Return why jobs should not be released now; empty: they may be.

    A hadard on another machine is at work while its lease is valid. A hadard on this machine is
    hung if its heartbeat has expired, or if it started longer ago than a heartbeat is valid and has
    written none. With `only_expired`, the jobs of a dead hadard are kept until its heartbeat
    expires, since hadard may restart.
    """
    beat = read_heartbeat(run_dir)
    with suppress(OSError):
        holder = lease.holder()
        if holder and holder.host != socket.gethostname() and holder.is_fresh(now_s()):
            return f"hadard is at work on {holder.host}"
    if beat is not None and not beat.is_fresh(now_s()):
        return ""
    with suppress(OSError):
        started = started_s(state_dir)
        if started is not None:
            is_hung = beat is None and not 0 <= now_s() - started < lease.good_for_s
            return "" if is_hung else "hadard is at work"
    return "hadard was alive a moment ago" if beat is not None and only_expired else ""


def _await_reading(run_dir: Path, limit_s: float) -> None:
    """Wait for a round of a hadard that could not read Slurm, which has just answered here.

    The round that fails next may have begun before that. At most `limit_s`.
    """
    deadline_s, seen = time.monotonic() + limit_s, read_heartbeat(run_dir)
    last = seen.rounds.failed + 1 if seen else 0
    while (
        (beat := read_heartbeat(run_dir))
        and beat.is_signed(time.time())
        and beat.rounds.are_failing
        and beat.rounds.part == "observe"
        and beat.rounds.failed <= last
        and time.monotonic() < deadline_s
    ):
        time.sleep(_POLL_S)


@contextmanager
def _alone(state_dir: Path, limit_s: float) -> Iterator[None]:
    """Wait for another `hadar release` to end, but go on after `limit_s`."""
    with ExitStack() as held:
        try:
            if not held.enter_context(lock(state_dir, RELEASE, wait_s=limit_s)):
                typer.echo(f"hadar: another hadar release hangs for {limit_s:g} s", err=True)
        except OSError as error:
            # Then there is no ledger: hadard has never enforced here, or the user is no operator.
            typer.echo(f"hadar: {state_dir / RELEASE}: {error.strerror}", err=True)
        yield


def _release(chosen: Config, slurm: SlurmAdapter, limit_s: float) -> tuple[Returned, ...]:
    # From now on jobs are submitted to plain Slurm; a live hadard writes its heartbeat again.
    try:
        remove_heartbeat(chosen.run_dir)
    except OSError as error:
        # Releasing the jobs is more important than the heartbeat.
        typer.echo(f"hadar: the heartbeat cannot be removed: {error}", err=True)
    return release_all(slurm, Ledger(chosen.state_dir / FILE_NAME), limit_s=limit_s)


def _count(chosen: Config, answers: tuple[Returned, ...]) -> None:
    try:
        add_expired(chosen.state_dir, sum(not answer.fault for answer in answers))
    except OSError as error:
        typer.echo(f"hadar: released jobs cannot be counted: {error}", err=True)


def add_expired(state_dir: Path, jobs: int) -> None:
    """Count jobs that the reaper has restored; raises OSError, with nothing changed.

    A count that cannot be read restarts at 0. Only one `hadar release` at a time may call this.
    """
    if not jobs:
        return
    number = min((reaper_count.read_expired(state_dir) or 0) + jobs, reaper_count.MOST)
    content = json.dumps({"version": reaper_count.VERSION, "released": number}) + "\n"
    with untrusted_files.directory(state_dir) as place:
        # Readable by hadard also when root has released.
        name = reaper_count.FILE_NAME
        untrusted_files.replace(name, content.encode(), mode=0o644, dir_fd=place)


def _print(answers: tuple[Returned, ...], kept_for: str, held: int, *, as_json: bool) -> None:
    released = [answer.job for answer in answers if not answer.fault]
    failures = [answer for answer in answers if answer.fault]
    if as_json:
        tree = {
            "released": released,
            "failed": [answer._asdict() for answer in failures],
            "kept_for": kept_for,
        }
        typer.echo(json.dumps(tree))
        return
    for answer in failures:
        fault = legible(str(answer.fault))
        typer.echo(f"hadar: job {answer.job} is not released: {fault}", err=True)
    done = f"{len(released)} jobs released to plain Slurm"
    typer.echo(f"nothing released: {kept_for}" if kept_for else done)
    if held:
        typer.echo(f"hadar: {held} jobs are held; stop hadard, or give --force", err=True)
