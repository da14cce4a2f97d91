"""Options shared by commands, and their completion by shells, whose errors give no output."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from hadar_slurm.config import DEFAULT_PATH, Config, read_config
from hadar_slurm.engine.modes import Mode
from hadar_slurm.errors import HadarError
from hadar_slurm.journal.reader import read_last
from hadar_slurm.slurm.client.runner import Runner
from hadar_slurm.state.heartbeat import RUN_DIR_VARIABLE

# A completion must answer within this time.
_SQUEUE_LIMIT_S = 3.0

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config", metavar="FILE", help=f"hadard's configuration; default {DEFAULT_PATH}."
    ),
]
JournalOption = Annotated[
    Path | None,
    typer.Option("--journal", metavar="FILE", help="A journal; default that of the configuration."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
# Options of the commands that simulate.
CLUSTER = "20xV100,20xP100,20xK80"
CopiesOption = Annotated[
    int | None, typer.Option(help="Most copies of a forked job.", show_default="number of nodes")
]
AveragingOption = Annotated[
    float, typer.Option(help="Seconds per round to average the copies' parameters.")
]


def one_of(names: Iterable[str], text: str) -> Any:
    """Return an option for one of `names`, which a shell completes."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    return typer.Option(help=text, autocompletion=complete)


def some_of(names: Iterable[str], text: str) -> Any:
    """Return an option for a comma-separated list of `names`, which a shell completes."""

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        given = before.split(",")
        left = [name for name in names if name.startswith(last) and name not in given]
        return [f"{before}{comma}{name}" for name in left]

    return typer.Option(help=text, autocompletion=complete)


def known_jobs(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the jobs of the journal's last round; the user's own jobs if it cannot be read."""
    with suppress(HadarError, OSError):
        journal = ctx.params.get("journal")
        path = Path(str(journal)) if journal else _config(ctx).journal
        lines = read_last(path, len(Mode))
        names = dict.fromkeys(name for line in lines for name in line.get("jobs", {}))
        if names:
            return [name for name in names if name.startswith(incomplete)]
    return own_jobs(ctx, incomplete)


def own_jobs(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the user's own jobs in Slurm's queue, each array once."""
    with suppress(HadarError, OSError):
        runner = Runner(_config(ctx).slurm_conf, _SQUEUE_LIMIT_S)
        text = runner.run(["squeue", "--me", "-h", "-o", "%F|"])
        names = dict.fromkeys(re.findall(r"^(\d+)\|$", text, re.MULTILINE))
        return [name for name in names if name.startswith(incomplete)]
    return []


def _config(ctx: typer.Context) -> Config:
    given = ctx.params.get("config")
    return read_config(Path(str(given)) if given else None, needs_policy=False)


def read_config_to_answer(path: Path | None) -> Config:
    """Return the configuration for a command that only reads hadard's heartbeat.

    `run_dir` is the one in the file of --config, else HADAR_RUN_DIR, else that of the default file.
    hadard and commands that change jobs use the configuration alone, so that they agree.
    """
    config = read_config(path, needs_policy=False)
    chosen = os.environ.get(RUN_DIR_VARIABLE)
    if not chosen or (path is not None and "run_dir" in config.model_fields_set):
        return config
    return config.model_copy(update={"run_dir": Path(chosen)})
