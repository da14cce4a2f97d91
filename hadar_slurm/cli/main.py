"""hadar: everything that is neither the daemon nor a submission.

A command is imported when it is called: to load all of them takes some five times as long as
`hadar --help` takes now, and a shell asks for every word that it completes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from hadar_slurm import __version__
from hadar_slurm.errors import HadarError, UsageError


class Deferred(NamedTuple):
    """A command that is not imported yet: its module in `cli`, its name there, its first words."""

    module: str
    attribute: str
    summary: str

    def load(self) -> Callable[..., None] | typer.Typer:
        """Import the function, or the group of commands."""
        found: Callable[..., None] | typer.Typer = getattr(
            import_module(f"hadar_slurm.cli.{self.module}"), self.attribute
        )
        return found


# The summaries are those of the commands themselves; a test compares them.
COMMANDS: Mapping[str, Deferred] = {
    "status": Deferred(
        "status",
        "status",
        "Say whether hadard is alive, in which mode, and how GPUs and jobs stand by its last "
        "round.",
    ),
    "top": Deferred(
        "top", "top", "Show hadard, the GPUs by type and the jobs, live, until Ctrl-C."
    ),
    "explain": Deferred(
        "explain",
        "explain_job",
        "Say why a job waits, what each GPU type would give it, who is ahead, and when it will "
        "begin.",
    ),
    "report": Deferred(
        "report",
        "report",
        "Say what was decided, what the GPUs were used for, and what plain Slurm would have done.",
    ),
    "web": Deferred(
        "web",
        "web",
        "Show what runs where, what waits and why, and what GPUs cost; metrics at /metrics.",
    ),
    "leave": Deferred(
        "release",
        "leave",
        "Take jobs out of Hadar's hands: Slurm alone decides about them from now on.",
    ),
    "release": Deferred(
        "release", "release", "Give every job that hadard holds or has pinned back to plain Slurm."
    ),
    "config": Deferred("config", "app", "Check, show or print hadard's configuration."),
    "simulate": Deferred(
        "simulate",
        "simulate",
        "Run TRACE through a policy and the very loop that hadard runs, in virtual time.",
    ),
    "compare": Deferred(
        "compare",
        "compare",
        "Run every policy on every workload, in parallel, and show what each is worth.",
    ),
    "demo": Deferred(
        "demo", "demo", "Run 24 jobs on a real local Slurm, without and with hadard, and compare."
    ),
    "cluster": Deferred(
        "cluster",
        "app",
        "Start, show and stop a real Slurm on this machine with pretended GPUs.",
    ),
}


class _Commands(TyperGroup):
    """Lists the commands by their summaries, and imports the one that is called."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        eager = dict(self.commands)
        self.commands.clear()
        for name, deferred in COMMANDS.items():
            self.add_command(TyperCommand(name, help=deferred.summary))
        self.commands.update(eager)

    # Typer's own types for contexts and commands are private, and have moved between versions.
    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return the command that is called, and the words that are left for it."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, load_command(name) if name and name in COMMANDS else command, rest


def load_command(name: str) -> TyperCommand | TyperGroup:
    """Import one of `COMMANDS`."""
    found = COMMANDS[name].load()
    if not isinstance(found, typer.Typer):
        alone = typer.Typer(add_completion=False)
        alone.command()(found)
        found = alone
    command = typer.main.get_command(found)
    assert isinstance(command, (TyperCommand, TyperGroup))
    command.name = name
    return command


commands = typer.Typer(
    name="hadar", cls=_Commands, no_args_is_help=True, pretty_exceptions_enable=False
)


def _say_version(is_asked: bool) -> None:
    if is_asked:
        print(f"hadar {__version__}")
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
    """Run the command line; a fault is one line, 2 for wrong usage and 1 for the rest."""
    try:
        commands(prog_name="hadar")
    except UsageError as error:
        print(f"hadar: {error}", file=sys.stderr)
        sys.exit(2)
    except HadarError as error:
        print(f"hadar: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    app()
