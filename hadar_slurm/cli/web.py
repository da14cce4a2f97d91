"""hadar web: a page to look at and metrics, from the journal of a daemon or of a simulation."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated

import typer

from hadar_slurm.cli.release import ConfigOption
from hadar_slurm.config import read_config_to_answer
from hadar_slurm.errors import UsageError
from hadar_slurm.web.follower import Follower
from hadar_slurm.web.pulse import Pulse
from hadar_slurm.web.server import DEFAULT_ADDRESS, Server, parse_address


def web(
    journal: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The journal to show; else the one that hadard writes."),
    ] = None,
    config: ConfigOption = None,
    address: Annotated[
        str,
        typer.Option(metavar="ADDRESS:PORT", help="Where to listen; port 0 takes a free one."),
    ] = DEFAULT_ADDRESS,
    host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A name by which browsers may ask for it; repeatable."),
    ] = None,
    megabytes: Annotated[
        float, typer.Option(metavar="MB", help="How much of the journal's end to read at first.")
    ] = 64.0,
) -> None:
    """Show what runs where, what waits and why, and what GPUs cost; metrics at /metrics.

    Beside the journal it reads hadard's sign of life; with --journal alone, which may be that of a
    simulation or of another machine, it does not. It only reads, and ends on Ctrl-C or SIGTERM.
    """
    if not 0 < megabytes < float("inf"):
        raise UsageError(f"--megabytes {megabytes:g}: expected a number above 0")
    place = parse_address(address)
    pulse = None
    if journal is None or config is not None:
        chosen = read_config_to_answer(config)
        pulse = Pulse(chosen.run_dir)
    path = journal or chosen.journal
    follower = Follower(path, max_bytes=int(megabytes * 1e6))
    server = Server(follower, place, hosts=host or (), pulse=pulse)
    if not place.is_loopback:
        typer.echo(
            f"hadar: whoever reaches {address} sees the names of users and their jobs", err=True
        )
    with _told_to_end() as end, follower, pulse or nullcontext(), server.running():
        typer.echo(f"{path}: {server.url}")
        end.wait()


@contextmanager
def _told_to_end() -> Iterator[threading.Event]:
    """Set an event on SIGINT and SIGTERM."""
    end = threading.Event()
    before = {
        number: signal.signal(number, lambda *_: end.set())
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield end
    finally:
        for number, was in before.items():
            signal.signal(number, was)
