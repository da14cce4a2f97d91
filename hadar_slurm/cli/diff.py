"""hadar diff: what is different in Slurm now because of hadard."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Annotated

import typer

from hadar_slurm.cli.completing import ConfigOption, JsonOption
from hadar_slurm.config import read_config
from hadar_slurm.core.cluster import JobId
from hadar_slurm.jobspec.constraint import fold
from hadar_slurm.jobspec.mark import with_mark
from hadar_slurm.slurm.client import scontrol, updates
from hadar_slurm.slurm.client.command_line import CommandLine
from hadar_slurm.slurm.client.parse import QueueRow
from hadar_slurm.slurm.client.protocol import SlurmAdapter
from hadar_slurm.slurm.client.runner import Runner
from hadar_slurm.slurm.enforce.claim import Claim, State
from hadar_slurm.slurm.enforce.ledger import FILE_NAME, Ledger
from hadar_slurm.slurm.enforce.restore import asks_for, own_request, unsteering
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


@dataclass(frozen=True, slots=True)
class Difference:
    """A pending job that hadard has changed: by field what it has now, and its owner's value.

    `undo` has commands for scontrol's standard input, in their order.
    """

    job: JobId
    user: str
    fields: dict[str, tuple[str, str]]
    undo: tuple[str, ...]


def differences(slurm: SlurmAdapter, ledger: Ledger, rows: Iterable[QueueRow]) -> list[Difference]:
    """Return the differences of all pending jobs in a queue that was just read."""
    shown = list(rows)
    ledger.see(slurm, shown)
    if not ledger.was_read:
        ledger.heed(slurm.read())
    changed = [row for row in shown if ledger[row.key].has_changed(row)]
    return [_difference(slurm, row, ledger[row.key]) for row in changed]


def _difference(slurm: SlurmAdapter, row: QueueRow, claim: Claim) -> Difference:
    own, is_ours = own_request(row, claim, slurm), claim.state is not State.FOREIGN_HOLD
    steering, now = unsteering(row, claim), row.request
    fields = {
        "hold": ("user" if row.is_held_by_user else "", "") if claim.holds and is_ours else None,
        "nodes": (fold(now.nodes), fold(own.nodes)),
        "gpus": (" ".join(filter(None, now.gpus)), " ".join(filter(None, own.gpus))),
        "excluded": (fold(claim.excluded.ours), fold(claim.excluded.owners)),
        "nice": (str(claim.nice.ours), str(claim.nice.owners)) if claim.nice.is_lent else None,
        "preferred": (claim.preferred.ours, claim.preferred.owners),
        "time limit": (_minutes(claim.limit_s.ours), _minutes(claim.limit_s.owners)),
    }
    if steering:
        steering = replace(steering, comment=with_mark(row.comment, row.mark, {}))
    changes: list[updates.Update] = [steering] if steering else []
    if claim.preferred.is_lent:
        changes.append(updates.Prefer(row.key, claim.preferred.owners))
    if not asks_for(row, own):
        # With excluded nodes Slurm refuses the update of a job that has started.
        clear = updates.ClearRequest(row.key, excluded=claim.excluded.owners)
        changes += [clear, updates.SetRequest(row.key, own)]
    if claim.holds and is_ours:
        changes.append(updates.Release(row.key))
        if claim.nice.is_lent:
            # Slurm 22.05 releases a held job whose nice value changes.
            changes.append(updates.Steer(row.key, claim.excluded.owners, nice=claim.nice.owners))
    undo = tuple(" ".join(scontrol.command(change)[1:]) for change in changes)
    there = {name: pair for name, pair in fields.items() if pair and pair[0] != pair[1]}
    return Difference(row.key, row.user, there, undo)


def _minutes(limit_s: float) -> str:
    return f"{limit_s / 60:g} min" if limit_s else ""
