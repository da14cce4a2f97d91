"""hadar top: hadard, the GPUs and the jobs, looked at again and again."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from hadar_slurm.answers.status import status_of
from hadar_slurm.cli.explain import span
from hadar_slurm.cli.release import ConfigOption, read_config
from hadar_slurm.cli.status import JournalOption, last_lines, life_of, status_parts
from hadar_slurm.core.job import Job, Phase
from hadar_slurm.journal import Line, snapshot_of

# Lines of the screen that are not for jobs: what status says, and the headings.
_OTHER_LINES = 14
_ORDER = (Phase.RUNNING, Phase.STARTING, Phase.STOPPING, Phase.QUEUED)


def top(
    config: ConfigOption = None,
    journal: JournalOption = None,
    *,
    every: Annotated[float, typer.Option(min=0.1, metavar="S", help="Seconds between looks.")] = 2,
    once: Annotated[bool, typer.Option("--once", help="Print one look and end.")] = False,
) -> None:
    """Show hadard, the GPUs by type and the jobs, live, until Ctrl-C."""
    chosen = read_config(config)
    path = journal or chosen.journal

    def look(console: Console) -> RenderableType:
        lines, fault = last_lines(path)
        room = len(lines) and max(1, console.height - _OTHER_LINES)
        # What is printed once may be as long as it is.
        return picture(life_of(chosen), lines, fault, room=10**6 if once else room)

    console = Console(highlight=False)
    if once:
        console.print(look(console), soft_wrap=True)
        return
    with suppress(KeyboardInterrupt), Live(look(console), console=console, screen=True) as live:
        while True:
            time.sleep(every)
            live.update(look(console), refresh=True)


def picture(
    life: Mapping[str, object], lines: Sequence[Line], fault: str, *, room: int
) -> RenderableType:
    """Return a look: what `hadar status` says, and `room` jobs, those with GPUs first."""
    parts = status_parts(life, status_of(lines), fault)
    jobs = [
        (job, snapshot.now_s, line["waiting"].get(job.job_id, ""))
        for line in lines
        if "jobs" in line
        for snapshot in [snapshot_of(line)]
        for job in snapshot.jobs
    ]
    # Of several lines of one mode the last is the newest.
    newest = {job.job_id: (job, now_s, reason) for job, now_s, reason in jobs}
    ranked = sorted(newest.values(), key=lambda entry: _ORDER.index(entry[0].phase))
    table = Table("job", "user", box=None, pad_edge=False)
    for heading in ("GPUs", "done", "waited", "ends in"):
        table.add_column(heading, justify="right")
    table.add_column("where, or why not")
    for job, now_s, reason in ranked[:room]:
        table.add_row(*_cells(job, now_s, reason))
    more = len(ranked) - room
    return Group(*parts, "", table, *([f"and {more} more"] if more > 0 else []))


def _cells(job: Job, now_s: float, reason: str) -> Sequence[str | Text]:
    rate = sum(gang.rate(job.spec.rates) for gang in job.allocation.gangs)
    has_gpus = job.phase is not Phase.QUEUED
    done = 1.0 - job.steps_left / job.spec.total_steps
    return (
        job.job_id,
        # What users wrote is shown as it is: it could look like markup.
        Text(job.spec.user),
        str(job.spec.num_gpus),
        f"{done:.0%}",
        "" if has_gpus else span(max(0.0, now_s - job.spec.submitted_s)),
        span(job.steps_left / rate) if has_gpus and rate > 0 else "",
        Text(", ".join(map(str, job.allocation.gangs)) if has_gpus else reason),
    )
