"""hadar explain: why does this job wait, when will it begin, and what would change that."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from hadar_slurm.answers.explain import NAMED, Expected, Explanation, explain
from hadar_slurm.cli.completing import known_jobs
from hadar_slurm.cli.hadard import policy_of
from hadar_slurm.cli.release import ConfigOption, JsonOption, read_config
from hadar_slurm.cli.status import JournalOption
from hadar_slurm.config import Config
from hadar_slurm.core.cluster import JobId, natural_key
from hadar_slurm.errors import SlurmError, UsageError
from hadar_slurm.journal import Line, read_last
from hadar_slurm.policies.table import make_policy
from hadar_slurm.slurm.modes import Mode
from hadar_slurm.slurm.runner import Runner

_MINUTE_S, _HOUR_S, _DAY_S = 60.0, 3600.0, 86400.0


def explain_job(
    job: Annotated[
        str,
        typer.Argument(metavar="JOB", help="A job, by Slurm's id.", autocompletion=known_jobs),
    ],
    config: ConfigOption = None,
    journal: JournalOption = None,
    *,
    limit: Annotated[
        float, typer.Option(min=0, metavar="S", help="Seconds that a forecast may take.")
    ] = 20.0,
    as_json: JsonOption = False,
) -> None:
    """Say why a job waits, what each GPU type would give it, who is ahead, and when it will begin.

    By the last round in the journal of hadard, or with --journal in that of a simulation. Status 1
    if the job is not there.
    """
    chosen = read_config(config)
    path = journal or chosen.journal
    try:
        lines = read_last(path, len(Mode))
    except OSError as error:
        raise UsageError(
            f"the journal {path} cannot be read: {error.strerror}; operators may, or name one "
            "with --journal"
        ) from error
    if not lines:
        raise UsageError(f"the journal {path} has no round yet")
    slurm = None if journal else _slurms_word(chosen, job)
    name, line = _found(lines, job)
    policy = policy_of(chosen) if chosen.policy == line["policy"] else make_policy(line["policy"])
    found = explain(line, JobId(name), policy, time.monotonic, limit) if "jobs" in line else None
    if as_json:
        typer.echo(json.dumps({"slurm": slurm, "found": asdict(found) if found else None}))
    else:
        console = Console(highlight=False, soft_wrap=True)
        if slurm is not None:
            console.print(f"Slurm: {slurm}", markup=False)
        if found is None:
            console.print(_missing(lines, job))
        else:
            _print(console, found)
    if found is None:
        raise typer.Exit(1)


def _found(lines: Sequence[Line], job: str) -> tuple[str, Line]:
    """Return a job's name in the journal and the newest line that has it, or else the last line.

    The tasks of a forked job are one job there, by the name of their array.
    """
    for name in (job, job.partition("_")[0]):
        for line in reversed(lines):
            if name in line.get("jobs", {}):
                return name, line
    return job, lines[-1]


def _missing(lines: Sequence[Line], job: str) -> str:
    tasks = {name for line in lines for name in line.get("jobs", {}) if name.startswith(f"{job}_")}
    if tasks:
        named = sorted(tasks, key=natural_key)[:NAMED]
        return f"job {job} is an array of {len(tasks)} jobs here: ask for {', '.join(named)} ..."
    return (
        f"job {job} is none of Hadar's in the last round: it has ended, was not submitted by "
        "hadar-sbatch, or is left to Slurm"
    )


def _slurms_word(config: Config, job: str) -> str:
    """Return the state and the reason that squeue shows, or why it cannot."""
    runner = Runner(config.slurm_conf, config.command_timeout_seconds)
    try:
        text = runner.run(["squeue", "-h", "--states=all", "-j", job, "-o", "%T %r"])
    except SlurmError as error:
        return f"cannot tell: {error}"
    return text.strip().splitlines()[0] if text.strip() else "no such job"


def _print(console: Console, found: Explanation) -> None:
    at = datetime.fromtimestamp(found.time_s).astimezone()
    console.print(
        f"job {found.job}: {found.phase}, {found.gpus} GPUs, by round {found.round} at "
        f"{at:%Y-%m-%d %H:%M:%S %Z}, policy {found.policy}"
    )
    if found.reason:
        console.print(f"Hadar: {found.reason}")
    if found.ends_in_s is not None:
        console.print(f"it ends in {span(found.ends_in_s)} if it stays where it is")
    table = Table(box=None, pad_edge=False)
    for heading in ("GPU type", "steps/s", "takes", "free now", "price"):
        table.add_column(heading, justify="left" if heading == "GPU type" else "right")
    for choice in found.choices:
        table.add_row(
            choice.kind,
            f"{choice.steps_per_s:.4g}",
            span(choice.lasts_s),
            str(choice.free),
            "" if choice.price is None else f"{choice.price:.3g}",
        )
    console.print(table)
    if not found.reason:
        return
    if found.ahead:
        more = len(found.ahead) - NAMED
        names = ", ".join(found.ahead[:NAMED]) + (f" and {more} more" if more > 0 else "")
        console.print(f"before it begin {len(found.ahead)} of those that wait: {names}")
    if found.expected is None:
        console.print(
            "when it begins cannot be told: not within the time for the forecast, or never"
        )
    else:
        console.print(f"if nobody else comes, {_sentence(found.expected)}")
    if found.if_moved is not None:
        console.print(
            f"with --hadar-checkpoint=yes, {_sentence(found.if_moved)}, or sooner if moved"
        )


def _sentence(expected: Expected) -> str:
    places = ", ".join(
        f"{count} {kind} of {node}"
        for node, kinds in expected.gang.items()
        for kind, count in kinds.items()
    )
    return (
        f"it begins in {span(expected.begins_in_s)} on {places} and ends in "
        f"{span(expected.ends_in_s)}"
    )


def span(time_s: float) -> str:
    """Return a stretch of time for people: `50 s`, `12 min`, `3.4 h`, `2.1 days`."""
    if time_s < 2 * _MINUTE_S:
        return f"{time_s:.0f} s"
    if time_s < 2 * _HOUR_S:
        return f"{time_s / _MINUTE_S:.0f} min"
    return f"{time_s / _HOUR_S:.1f} h" if time_s < 2 * _DAY_S else f"{time_s / _DAY_S:.1f} days"
