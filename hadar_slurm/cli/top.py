"""hadar top: hadard, the GPUs and the jobs, shown live."""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from hadar_slurm.cli.completing import ConfigOption, JournalOption, read_config_to_answer
from hadar_slurm.core.job import Job, Phase
from hadar_slurm.journal import Line
from hadar_slurm.journal.values import snapshot_of
from hadar_slurm.status.arrays import as_rows, common_text, gpus_by_type, row_name
from hadar_slurm.status.jobs import forked_of, state_of
from hadar_slurm.status.status import current, status_of
from hadar_slurm.status.status_text import last_lines, life_of, standing_by, status_parts
from hadar_slurm.status.words import SafeConsole, averages_words, copy_words, span, table_of

# Lines of the screen taken by the output of `hadar status` and the headings.
_OTHER_LINES = 14
# A job, the line that it is in, and that line's time.
Shown = tuple[Job, Line, float]
_ORDER = (Phase.RUNNING, Phase.STARTING, Phase.STOPPING, Phase.QUEUED)


def top(
    config: ConfigOption = None,
    journal: JournalOption = None,
    *,
    every: Annotated[
        float, typer.Option(min=0.1, metavar="S", help="Seconds between updates.")
    ] = 2,
    once: Annotated[bool, typer.Option("--once", help="Print once and exit.")] = False,
) -> None:
    """Show hadard, the GPUs by type and the jobs, live, until Ctrl-C."""
    chosen = read_config_to_answer(config)
    path = journal or chosen.journal

    seen: tuple[tuple[int, int, int] | None, Sequence[Line], str] = (None, (), "")

    def newest(console: Console) -> RenderableType:
        nonlocal seen
        now_s, mark = time.time(), _mark(path)
        # On a large site the last lines take seconds to read.
        if mark is None or mark != seen[0]:
            seen = (mark, *last_lines(path))
        _, lines, fault = seen
        # The length of a single print is not limited by the screen.
        room = 10**6 if once else len(lines) and max(1, console.height - _OTHER_LINES)
        return picture(life_of(chosen, now_s), lines, fault, room=room, now_s=now_s)

    console = SafeConsole(highlight=False)
    if once:
        console.print(newest(console), soft_wrap=True)
        return
    with suppress(KeyboardInterrupt), Live(newest(console), console=console, screen=True) as live:
        while True:
            time.sleep(every)
            live.update(newest(console), refresh=True)


def _mark(path: Path) -> tuple[int, int, int] | None:
    """Return what changes with a file; None if it cannot be seen."""
    with suppress(OSError):
        facts = path.stat()
        return facts.st_ino, facts.st_size, facts.st_mtime_ns
    return None


def picture(
    life: Mapping[str, object], lines: Sequence[Line], fault: str, *, room: int, now_s: float
) -> RenderableType:
    """Return the output of `hadar status`, and `room` rows of jobs, those with GPUs first."""
    parts = status_parts(life, status_of(lines), fault, standing_by(life, lines, now_s))
    jobs: dict[str, Shown] = {
        job.job_id: (job, line, snapshot.now_s)
        for line in current(lines)
        if "jobs" in line
        for snapshot in [snapshot_of(line)]
        for job in snapshot.jobs
    }

    def likeness(job_id: str) -> Hashable:
        job, line, _ = jobs[job_id]
        state = state_of(line["jobs"][job_id])
        return state, job.spec.user, job.spec.workload, job.spec.num_gpus

    ranked = sorted(jobs, key=lambda job_id: _ORDER.index(jobs[job_id][0].phase))
    rows = as_rows(ranked, likeness)
    numbers = ("#GPUs", "#done", "#waited", "#ends in")
    table = table_of("job", "user", "state", *numbers, "where, or why not")
    for row in rows[:room]:
        shown = [jobs[job_id] for job_id in row]
        table.add_row(*(_cells(*shown[0]) if len(row) == 1 else _array_cells(shown)))
    more = len(rows) - room
    return Group(*parts, "", table, *([f"and {more} more"] if more > 0 else []))


def _array_cells(tasks: Sequence[Shown]) -> Sequence[str | Text]:
    """Return the cells of alike tasks of an array, of which none is a forked job."""
    (job, line, now_s), jobs = tasks[0], [job for job, _, _ in tasks]
    steps = sum(each.spec.total_steps for each in jobs)
    by_type = gpus_by_type(gang for each in jobs for gang in each.allocation.gangs)
    has_gpus = job.phase is not Phase.QUEUED
    waits = [common_text(line["waiting"].get(each.job_id, "") for each in jobs)]
    where = [", ".join(f"{count} {name}" for name, count in by_type.items())]
    speeds = [sum(g.throughput(j.spec.throughputs) for g in j.allocation.gangs) for j in jobs]
    lasts_s = [j.steps_left / s for j, s in zip(jobs, speeds, strict=True) if s > 0]
    return (
        row_name([each.job_id for each in jobs]),
        Text(job.spec.user),
        state_of(line["jobs"][job.job_id]),
        f"{len(jobs)} × {job.spec.num_gpus}",
        f"{1.0 - sum(each.steps_left for each in jobs) / steps:.0%}",
        "" if has_gpus else span(max(0.0, now_s - min(j.spec.submitted_s for j in jobs))),
        span(max(lasts_s)) if has_gpus and lasts_s else "",
        Text("; ".join(filter(None, (*(where if has_gpus else waits), _remarks(jobs))))),
    )


def _remarks(jobs: Iterable[Job]) -> str:
    return common_text("; ".join(job.remarks) for job in jobs)


def _cells(job: Job, line: Line, now_s: float) -> Sequence[str | Text]:
    """Return a job's cells; the last one has its GPUs, or the reason why it has none."""
    forked = forked_of(line, job.job_id)
    throughput = sum(gang.throughput(job.spec.throughputs) for gang in job.allocation.gangs)
    has_gpus = job.phase is not Phase.QUEUED
    done = 1.0 - job.steps_left / job.spec.total_steps
    held = sum(gang.num_gpus for gang in job.allocation.gangs)
    sizes = sorted({job.spec.num_gpus, *(size for _, size in job.spec.gangs)})
    gpus = str(held) if forked and forked.copies else " or ".join(map(str, sizes))
    if not has_gpus:
        where = [line["waiting"].get(job.job_id, "")]
    elif forked is None:
        where = [", ".join(map(str, job.allocation.gangs))]
    else:
        where = [", ".join(map(copy_words, forked.copies)), averages_words(forked, now_s)]
    return (
        job.job_id,
        # Text of users is not parsed as markup.
        Text(job.spec.user),
        state_of(line["jobs"][job.job_id]),
        gpus,
        f"{done:.0%}",
        "" if has_gpus else span(max(0.0, now_s - job.spec.submitted_s)),
        span(job.steps_left / throughput) if has_gpus and throughput > 0 else "",
        Text("; ".join(filter(None, (*where, *job.remarks)))),
    )
