"""hadar config: checks a configuration, shows its effective values, prints the defaults."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer
import yaml

from hadar_slurm.cli.completing import ConfigOption, JsonOption
from hadar_slurm.config import DEFAULT_PATH, Config, load_config, read_config
from hadar_slurm.engine.modes import Mode
from hadar_slurm.engine.rate_limit import consequences
from hadar_slurm.errors import HadarError, SlurmError, UsageError
from hadar_slurm.lab.inputs import read_table
from hadar_slurm.resources import beside
from hadar_slurm.slurm.client.command_line import CommandLine
from hadar_slurm.slurm.client.runner import Runner

app = typer.Typer(
    help="Check, show or print hadard's configuration.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)

FileArgument = Annotated[
    Path | None,
    typer.Argument(metavar="[FILE]", help=f"The configuration; default {DEFAULT_PATH}."),
]


@app.command()
def check(
    file: FileArgument = None, config: ConfigOption = None, *, as_json: JsonOption = False
) -> None:
    """Check whether hadard accepts a configuration, and warn of likely mistakes.

    Run it as the user that hadard runs as. Status 1 if hadard would refuse the configuration;
    warnings do not change the status.
    """
    path = _named(file, config) or DEFAULT_PATH
    try:
        findings = list(surprises(load_config(path)))
    except HadarError as error:
        if as_json:
            typer.echo(json.dumps({"file": str(path), "error": str(error), "surprises": []}))
        else:
            typer.echo(f"hadar: {error}", err=True)
        raise typer.Exit(1) from error
    if as_json:
        tree = [{"key": key, "message": message} for key, message in findings]
        typer.echo(json.dumps({"file": str(path), "error": "", "surprises": tree}))
        return
    typer.echo(f"{path}: valid" + (", with warnings:" if findings else ""))
    for key, message in findings:
        typer.echo(f"  {key}: {message}")


@app.command()
def show(
    file: FileArgument = None, config: ConfigOption = None, *, as_json: JsonOption = False
) -> None:
    """Print every key with its effective value, defaults included."""
    tree = read_config(_named(file, config)).model_dump(mode="json")
    typer.echo(json.dumps(tree) if as_json else yaml.safe_dump(tree, sort_keys=False).rstrip())


@app.command()
def print_default() -> None:
    """Print the default configuration with every key explained, as a start for your own."""
    typer.echo(beside("slurm_conf", "hadar.yaml").read_text(encoding="utf-8").rstrip())


def _named(file: Path | None, config: Path | None) -> Path | None:
    """Return the file given as argument or with --config; None if neither is given."""
    if file is not None and config is not None and file != config:
        raise UsageError(f"two files are named, {file} and --config {config}: name one")
    return file or config


def surprises(config: Config) -> Iterator[tuple[str, str]]:
    """Yield keys with warnings about likely mistakes; raises ConfigError for an invalid table.

    Access to files and directories is checked for the calling user.
    """
    read_table(config.throughputs)
    if config.slurm_conf is not None and not os.access(config.slurm_conf, os.R_OK):
        yield "slurm_conf", f"{config.slurm_conf} cannot be read"
    if config.disable_file.exists():
        yield "disable_file", f"{config.disable_file} exists: remove it to enforce"
    for key in ("run_dir", "state_dir", "journal", "spool_dir"):
        directory = config.journal.parent if key == "journal" else getattr(config, key)
        if fault := _not_writable(directory):
            yield key, fault
    with_all = stat.S_IRWXO | stat.S_ISVTX
    if config.reports.is_dir() and config.reports.stat().st_mode & with_all != with_all:
        yield "spool_dir", f"jobs cannot report: chmod 1777 {config.reports}"
    if {config.mode, *config.partitions.values()} == {"observe"}:
        yield "mode", "no partition has another mode than observe: hadard changes no jobs"
    elif any(Mode(mode).places for mode in (config.mode, *config.partitions.values())) and (
        text := consequences(_rpcs_per_s(config))
    ):
        yield "mode", text


def _rpcs_per_s(config: Config) -> float:
    """Return how many RPCs slurmctld answers to this user; inf: no limit, or it is not reached."""
    slurm = CommandLine(Runner(config.slurm_conf, min(5.0, config.command_timeout_seconds)))
    with suppress(SlurmError):
        slurm.site()
    return slurm.rpcs_per_s


def _not_writable(directory: Path) -> str:
    """Return why a directory cannot be written to or created, "" if it can."""
    there = directory
    while not there.exists() and there != there.parent:
        there = there.parent
    if os.access(there, os.W_OK | os.X_OK):
        return ""
    if there == directory:
        return f"{directory} cannot be written to by this user"
    return f"{directory} does not exist, and this user cannot create it in {there}"
