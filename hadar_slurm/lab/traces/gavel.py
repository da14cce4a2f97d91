"""Traces in Gavel's format (OSDI'20), also as Shockwave's (NSDI'23) have it: no heading, tabs."""

from __future__ import annotations

from collections.abc import Iterable

from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.job import JobSpec
from hadar_slurm.core.throughput import Throughputs, ThroughputTable
from hadar_slurm.lab.traces.fields import TraceError, gang_size, seconds, shown, steps
from hadar_slurm.lab.traces.model import Trace

_COLUMNS = 10
# Shockwave's have two more: how the batch size changes, before the weight, and the duration.
_COLUMNS_WITH_MODE, _MODE, _DURATION = 12, 7, 10
_WORKLOAD, _STEPS, _GANG, _WEIGHT, _ARRIVAL = 0, 5, 6, 7, 9
_FIXED = "static"


def read_gavel(
    lines: Iterable[str], table: ThroughputTable, origin: str, *, restart_cost_s: float = 30.0
) -> Trace:
    """Return a trace in Gavel's format.

    Columns: workload, command, directory, name of the steps argument, whether it needs data,
    total steps of the whole gang, gang size, priority weight, deadline, arrival in seconds. With
    Shockwave's two more, how the batch size changes and the duration, neither is used. Job ids
    number the jobs from 0. Raises TraceError with file, line and value.
    """
    jobs: list[JobSpec] = []
    places: dict[JobId, str] = {}
    known: dict[str, Throughputs] = {}
    num_weighted, num_changing, last_s = 0, 0, 0.0
    for number, text in enumerate(lines, start=1):
        if not text.strip():
            continue
        place = f"{origin}:{number}"
        columns, mode = _columns(text, place, is_first=not jobs)
        num_changing += mode != _FIXED
        name = columns[_WORKLOAD].strip()
        if name not in known:
            known[name] = _throughputs(name, table, place)
        arrival_s = seconds(columns[_ARRIVAL], place, "arrival")
        if arrival_s < last_s:
            fault = "is before the line above's; sort the trace"
            raise TraceError(f"{place}: arrival {arrival_s:g} s {fault}")
        last_s = arrival_s
        num_weighted += columns[_WEIGHT].strip() not in ("1", "1.0")
        job_id = JobId(str(len(jobs)))
        places[job_id] = place
        jobs.append(
            JobSpec(
                job_id=job_id,
                num_gpus=gang_size(columns[_GANG], place),
                total_steps=steps(columns[_STEPS], place),
                throughputs=known[name],
                submitted_s=arrival_s,
                restart_cost_s=restart_cost_s,
                workload=name,
            )
        )
    if not jobs:
        raise TraceError(f"{origin}: no job in it; expected a line for each job")
    return Trace("gavel", tuple(jobs), places, notes=_notes(num_weighted, num_changing))


def _notes(num_weighted: int, num_changing: int) -> tuple[str, ...]:
    """Return what is not played of how many jobs, as far as there are any."""
    weights = f"priority weights are not used; of jobs with another one than 1: {num_weighted}"
    changes = f"batch sizes stay as they are; of jobs that would change theirs: {num_changing}"
    found = ((weights, num_weighted), (changes, num_changing))
    return tuple(text for text, number in found if number)


def _columns(text: str, place: str, *, is_first: bool) -> tuple[list[str], str]:
    """Return a line's columns as Gavel has them, and how its batch size changes.

    Raises TraceError if their number is wrong.
    """
    columns, mode = text.rstrip("\r\n").split("\t"), _FIXED
    if len(columns) == _COLUMNS_WITH_MODE:
        mode = columns[_MODE].strip()
        del columns[_DURATION], columns[_MODE]
    if len(columns) != _COLUMNS:
        other = "ElasticFlow's CSV (job_id,submission_time,...) or of sacct -P (JobID|User|...)"
        hint = f", or the heading of {other}" if is_first else "; was the line cut?"
        expected = f"{_COLUMNS}, or {_COLUMNS_WITH_MODE} as Shockwave's, with tabs"
        found = f"{len(columns)} columns, expected {expected}"
        raise TraceError(f"{place}: {found}{hint}")
    return columns, mode


def as_gavel_trace(jobs: Iterable[JobSpec]) -> str:
    """Return jobs as a trace in Gavel's format, by arrival.

    It keeps workload, steps, gang size and arrival. The command is a placeholder; Gavel's simulator
    reads the trace too. Raises TraceError for a workload that does not fit on a line.
    """
    jobs = sorted(jobs, key=lambda job: job.submitted_s)
    wrong = [job for job in jobs if not job.workload.strip() or not job.workload.isprintable()]
    if wrong:
        raise TraceError(
            f"job {wrong[0].job_id}: workload {shown(wrong[0].workload)} cannot be written to a "
            "trace; expected a name on one line, without tabs"
        )
    return "".join(
        f"{job.workload}\ttrain\tjob\t--steps\t0\t{job.total_steps}\t{job.num_gpus}\t1\t-1.000000\t"
        f"{job.submitted_s if job.submitted_s % 1 else int(job.submitted_s)!r}\n"
        for job in jobs
    )


def _throughputs(workload: str, table: ThroughputTable, place: str) -> Throughputs:
    throughputs = table.throughputs(workload)
    if throughputs is None:
        known = ", ".join(sorted(table.workloads)[:5])
        raise TraceError(
            f"{place}: workload {shown(workload)} is not in the throughput table, which has "
            f"{known}, ...; give another table with --throughputs"
        )
    return throughputs
