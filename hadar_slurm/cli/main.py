"""hadar: everything that is neither the daemon nor a submission."""

from __future__ import annotations

import sys

import typer

from hadar_slurm import __version__
from hadar_slurm.cli.cluster import app as cluster_app
from hadar_slurm.cli.compare import compare
from hadar_slurm.cli.config import app as config_app
from hadar_slurm.cli.demo import demo
from hadar_slurm.cli.explain import explain_job
from hadar_slurm.cli.release import leave, release
from hadar_slurm.cli.report import report
from hadar_slurm.cli.simulate import simulate
from hadar_slurm.cli.status import status
from hadar_slurm.cli.top import top
from hadar_slurm.cli.web import web
from hadar_slurm.errors import HadarError, UsageError

commands = typer.Typer(
    name="hadar",
    help="Heterogeneity-aware GPU scheduling for an unmodified Slurm.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
commands.add_typer(cluster_app, name="cluster")
commands.add_typer(config_app, name="config")
commands.command()(demo)
commands.command()(simulate)
commands.command()(compare)
commands.command()(status)
commands.command()(top)
commands.command("explain")(explain_job)
commands.command()(report)
commands.command()(release)
commands.command()(leave)
commands.command()(web)


@commands.command()
def version() -> None:
    """Print the version."""
    print(__version__)


def app() -> None:
    """Run the command line; a fault is one line, 2 for wrong usage and 1 for the rest."""
    try:
        commands()
    except UsageError as error:
        print(f"hadar: {error}", file=sys.stderr)
        sys.exit(2)
    except HadarError as error:
        print(f"hadar: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    app()
