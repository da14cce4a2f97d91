"""hadar: the commands for users and operators.

A command is imported when it is called: loading all of them takes about five times as long as
`hadar --help`, and a shell runs hadar for every word it completes.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from hadar_slurm import __version__
from hadar_slurm.errors import HadarError, UsageError

# The summaries are those of the commands themselves; a test compares them.
COMMANDS: Mapping[str, str] = {
    "status": "Show whether hadard is alive, its modes, and the GPUs and jobs of its last round.",
    "top": "Show hadard, the GPUs by type and the jobs, live, until Ctrl-C.",
    "explain": "Show why a job waits, its throughput on each GPU type, the jobs ahead, and its "
    "start time.",
    "report": "Report decisions and GPU use over a period, and simulate the same jobs under plain "
    "Slurm.",
    "web": "Serve a page with running and waiting jobs and GPU prices, and metrics at /metrics.",
    "leave": "Remove jobs from Hadar's management: from now on only Slurm schedules them.",
    "release": "Release all jobs held or pinned by hadard to plain Slurm.",
    "diff": "Show which waiting jobs hadard has changed in Slurm: holds, nodes, nice values, time "
    "limits.",
    "learn": "Learn from Slurm's history how long the jobs of each user and workload train.",
    "speeds": "Show what hadard has learned of workloads, or delete it.",
    "config": "Check, show or print hadard's configuration.",
    "simulate": "Simulate TRACE under a policy, with the same loop as hadard, in virtual time.",
    "compare": "Run every policy on every workload, in parallel, and compare the results.",
    "demo": "Run 24 jobs on a real local Slurm, without and with hadard, and compare.",
    "site": "Measure on a real shared Slurm how long jobs wait with hadard and, as twins, without.",
    "cluster": "Start, show and stop a real Slurm on this machine with simulated GPUs.",
}

# Those in packages of their own.
_ROOMS = {"demo": "trials", "site": "trials", "learn": "learning", "speeds": "learning"}


class _Commands(TyperGroup):
    """Lists the commands with their summaries, and imports the one that is called."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        eager = dict(self.commands)
        self.commands.clear()
        for name, summary in COMMANDS.items():
            self.add_command(TyperCommand(name, help=summary))
        self.commands.update(eager)

    # Typer's own types for contexts and commands are private, and have moved between versions.
    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return the command that is called, and its arguments."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, load_command(name) if name and name in COMMANDS else command, rest


def load_command(name: str) -> TyperCommand | TyperGroup:
    """Import one of `COMMANDS`."""
    place = f"{_ROOMS[name]}.{name}" if name in _ROOMS else name
    module = import_module(f"hadar_slurm.cli.{place}")
    group = getattr(module, "app", None)
    if group is None:
        group = typer.Typer(add_completion=False, rich_markup_mode=None)
        group.command()(getattr(module, name))
    command = typer.main.get_command(group)
    assert isinstance(command, (TyperCommand, TyperGroup))
    command.name = name
    return command


commands = typer.Typer(
    name="hadar",
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _say_version(is_asked: bool) -> None:
    if is_asked:
        from hadar_slurm.built_from import version as of_build

        print(f"hadar {of_build()}")
        raise typer.Exit


@commands.callback()
def _hadar(
    _: Annotated[
        bool,
        typer.Option(
            "--version", callback=_say_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Heterogeneity-aware GPU scheduling for an unmodified Slurm."""


@commands.command()
def version() -> None:
    """Print the version."""
    print(__version__)


def app() -> None:
    """Run the command line; an error prints one line, status 2 for usage errors, else 1."""
    try:
        commands(prog_name="hadar")
    except HadarError as error:
        from hadar_slurm.status.words import legible

        print(f"hadar: {legible(str(error))}", file=sys.stderr)
        sys.exit(2 if isinstance(error, UsageError) else 1)


if __name__ == "__main__":
    app()
