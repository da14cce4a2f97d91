"""hadar status: the state of hadard, the use of the GPUs, the waiting jobs and their reasons."""

from __future__ import annotations

import json
import time
from dataclasses import asdict

import typer

from hadar_slurm.cli.completing import (
    ConfigOption,
    JournalOption,
    JsonOption,
    read_config_to_answer,
)
from hadar_slurm.status.status import json_names, status_of
from hadar_slurm.status.status_text import last_lines, life_of, standing_by, status_parts
from hadar_slurm.status.words import output_console


def status(
    config: ConfigOption = None, journal: JournalOption = None, *, as_json: JsonOption = False
) -> None:
    """Show whether hadard is alive, its modes, and the GPUs and jobs of its last round.

    Status 1 if hadard is not alive. The journal may be readable by operators only; the heartbeat
    and hadard's problems are shown without it.
    """
    chosen = read_config_to_answer(config)
    now_s = time.time()
    life = life_of(chosen, now_s)
    lines, fault = last_lines(journal or chosen.journal)
    found, standing = status_of(lines), standing_by(life, lines, now_s)
    if as_json:
        last = asdict(found, dict_factory=json_names) if found else None
        typer.echo(json.dumps({**life, **asdict(standing), "journal": fault, "last": last}))
    else:
        console = output_console()
        for part in status_parts(life, found, fault, standing):
            console.print(part)
    if not life["alive"]:
        raise typer.Exit(1)
