"""hadar diff: what is different in Slurm now because of hadard."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from hadar_slurm.cli.completing import ConfigOption, JsonOption
from hadar_slurm.config import read_config
from hadar_slurm.slurm.client.command_line import CommandLine
from hadar_slurm.slurm.client.runner import Runner
from hadar_slurm.slurm.enforce.ledger import FILE_NAME, Ledger
from hadar_slurm.slurm.enforce.release_all import differences
from hadar_slurm.status.words import output_console, table_of

_HEADINGS = ("job", "user", "field", "now", "its owner's")


def diff(
    config: ConfigOption = None,
    *,
    undo: Annotated[
        bool, typer.Option("--undo", help="Print commands for scontrol that put all back.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show which waiting jobs hadard has changed in Slurm: holds, nodes, nice values, time limits.

    Reads the ledger and Slurm's queue, and changes nothing. The owner's values are in the last
    column. `hadar diff --undo | scontrol` restores them without hadard.
    """
    chosen = read_config(config, needs_policy=False)
    slurm = CommandLine(Runner(chosen.slurm_conf, chosen.command_timeout_seconds))
    found = differences(slurm, Ledger(chosen.state_dir / FILE_NAME), slurm.queue().values())
    if undo:
        for line in (line for each in found for line in each.undo):
            typer.echo(line)
        return
    if as_json:
        typer.echo(json.dumps([asdict(each) for each in found]))
        return
    table = table_of(*_HEADINGS)
    for each in found:
        for name, (now, own) in each.fields.items():
            table.add_row(each.job, each.user, name, *(value or "-" for value in (now, own)))
    typer.echo(f"{len(found)} waiting jobs differ because of hadard")
    if found:
        output_console().print(table, markup=False)
