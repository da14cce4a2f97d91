"""hadar learn: learns from Slurm's history how long jobs train, before hadard has seen any."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from hadar_slurm.cli.completing import ConfigOption, JsonOption
from hadar_slurm.config import Config, read_config
from hadar_slurm.core.cluster import Cluster
from hadar_slurm.core.lengths.calibration import CHANCES, Coverage
from hadar_slurm.daemon.world import World, adapter_of
from hadar_slurm.errors import SlurmError, UsageError
from hadar_slurm.lab.inputs import read_table, read_text
from hadar_slurm.lab.traces.ended import FIELDS, ended_jobs
from hadar_slurm.lab.traces.fields import TraceError
from hadar_slurm.slurm.client.runner import Runner
from hadar_slurm.state.learned_changes import add_ended, read_profile
from hadar_slurm.state.learned_file import FILE_NAME
from hadar_slurm.status.words import output_console

# No user writes this into a name.
_DELIMITER = "\x1f"
_TIMEOUT_S = 600.0


def learn(
    history: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FILE]", help="sacct's output in a file; without one, sacct is called."
        ),
    ] = None,
    days: Annotated[int, typer.Option(help="Ask sacct for this number of days.")] = 90,
    config: ConfigOption = None,
    *,
    as_json: JsonOption = False,
) -> None:
    """Learn from Slurm's history how long the jobs of each user and workload train.

    A running hadard uses it from its next round on. Each job counts once, however often it is
    learned. Needs the rights of hadard's account.
    """
    if days < 1:
        raise UsageError(f"--days {days}: expected 1 or more")
    chosen = read_config(config, needs_policy=False)
    origin = str(history) if history else "sacct"
    text = read_text(history, TraceError) if history else _asked(chosen, days)
    found = ended_jobs(text, origin, read_table(chosen.throughputs), _cluster(chosen))
    number = add_ended(chosen.state_dir / FILE_NAME, found.jobs)
    coverage = read_profile(chosen.state_dir / FILE_NAME).ended.durations.coverage
    works = {job.work.workload for job in found.jobs}
    users = {workload.user for workload in works}
    if as_json:
        counts = {"jobs": len(found.jobs), "new": number, "users": len(users)}
        more = {"workloads": len(works), "coverage": coverage.by_name(), "notes": list(found.notes)}
        typer.echo(json.dumps({**counts, **more}))
        return
    console = output_console()
    for note in found.notes:
        console.print(note, markup=False)
    console.print(
        f"{len(found.jobs)} ended jobs of {len(works)} workloads of {len(users)} users, of which "
        f"{number} are new"
    )
    if coverage.jobs:
        console.print(_words(coverage))


def _words(coverage: Coverage) -> str:
    """Return how many jobs outlasted what was believed of them, and how many should."""
    return f"each of the last {coverage.jobs:.0f} jobs, judged by those before it: " + ", ".join(
        f"{share:.0%} outlasted the quantile {chance:g} (calibrated: {1 - chance:.0%})"
        for chance, share in zip(CHANCES, coverage.shares(), strict=True)
    )


def _asked(config: Config, days: int) -> str:
    """Return sacct's output of the last days, as it prints it with `|`; raises SlurmError."""
    runner = Runner(config.slurm_conf, _TIMEOUT_S)
    words = ["sacct", "-a", "-X", "-P", f"--delimiter={_DELIMITER}", "-o", FIELDS]
    try:
        text = runner.run([*words, "-S", f"now-{days}days", "-E", "now"])
    except SlurmError as error:
        remedy = "give a file with what sacct prints elsewhere (docs/speeds.md)"
        raise type(error)(f"{error}; without accounting, {remedy}") from error
    return text.replace("|", "/").replace(_DELIMITER, "|")


def _cluster(config: Config) -> Cluster:
    """Return the nodes of Slurm, whose fastest GPU type each job's time counts on."""
    nodes = adapter_of(config, World()).nodes()
    return Cluster.of(row.node for row in nodes)
