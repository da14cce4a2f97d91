"""hadar web: a web page and metrics, from the journal of a daemon or of a simulation."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Annotated

import typer

from hadar_slurm.cli.completing import ConfigOption, read_config_to_answer
from hadar_slurm.lab.checks import number_of
from hadar_slurm.lab.garbage import rare_collections
from hadar_slurm.web.follower import Follower
from hadar_slurm.web.pulse import Pulse
from hadar_slurm.web.server import DEFAULT_ADDRESS, Server, parse_address


def web(
    journal: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The journal to show; default hadard's.")
    ] = None,
    config: ConfigOption = None,
    address: Annotated[
        str, typer.Option(metavar="ADDRESS:PORT", help="Where to listen; port 0 picks a free one.")
    ] = DEFAULT_ADDRESS,
    host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Accept requests for this host name; repeatable."),
    ] = None,
    megabytes: Annotated[
        float,
        typer.Option(metavar="MB", help="Megabytes to read from the journal's end at the start."),
    ] = 32.0,
) -> None:
    """Serve a page with running and waiting jobs and GPU prices, and metrics at /metrics.

    Reads the journal and hadard's heartbeat; with --journal alone, which may name a simulation's
    or another machine's, only the journal. Writes nothing. Ends on Ctrl-C or SIGTERM.
    """
    number_of("--megabytes", megabytes, above=True)
    place = parse_address(address)
    pulse = None
    if journal is None or config is not None:
        chosen = read_config_to_answer(config)
        pulse = Pulse(chosen.run_dir)
    path = journal or chosen.journal
    follower = Follower(path, max_bytes=int(megabytes * 1e6))
    server = Server(follower, place, hosts=host or (), pulse=pulse)
    if not place.is_loopback:
        words = f"all who can reach {address} see the names of users and their jobs"
        typer.echo(f"hadar: {words}", err=True)
    # A page looks through many objects, and leaves few.
    with (
        rare_collections(),
        _end_signals() as end,
        follower,
        pulse or nullcontext(),
        server.running(),
    ):
        typer.echo(f"{path}: {server.url}")
        end.wait()


@contextmanager
def _end_signals() -> Iterator[threading.Event]:
    """Set an event on SIGINT and SIGTERM."""
    end = threading.Event()
    with ExitStack() as stack:
        for number in (signal.SIGINT, signal.SIGTERM):
            before = signal.signal(number, lambda *_: end.set())
            stack.callback(signal.signal, number, before)
        yield end
