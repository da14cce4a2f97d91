"""Read workload traces that others wrote, unmodified. Pure: takes text, gives jobs."""

from __future__ import annotations

from collections.abc import Iterable

from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.job import JobSpec
from hadar_slurm.core.quantity import parse_count, parse_number
from hadar_slurm.core.throughput import ThroughputTable
from hadar_slurm.errors import TraceError

_COLUMNS = 10
_WORKLOAD, _STEPS, _GANG, _ARRIVAL = 0, 5, 6, 9


def parse_gavel_trace(
    lines: Iterable[str], table: ThroughputTable, origin: str, *, restart_cost_s: float = 30.0
) -> list[JobSpec]:
    """Return the jobs of a trace in Gavel's form (OSDI'20): ten columns, tabs, no heading.

    Columns: workload, command, directory, name of the steps argument, whether it needs data,
    total steps of the whole gang, gang size, priority weight, deadline, arrival in seconds. The
    job's id is its line number, counted from 0. Raises TraceError naming file, line and value.
    """
    jobs: list[JobSpec] = []
    for number, text in enumerate(lines, start=1):
        if not text.strip():
            continue
        place = f"{origin}:{number}"
        columns = text.rstrip("\r\n").split("\t")
        if len(columns) != _COLUMNS:
            raise TraceError(f"{place}: {len(columns)} columns, expected {_COLUMNS} with tabs")
        workload = columns[_WORKLOAD].strip()
        rates = table.rates(workload)
        if rates is None:
            known = ", ".join(sorted(table.workloads)[:5])
            raise TraceError(
                f"{place}: workload {workload!r} is not in the throughput table, which has "
                f"{known}, ...; give another table with --throughputs"
            )
        arrival_s = parse_number(columns[_ARRIVAL], f"{place}: arrival", TraceError)
        if jobs and arrival_s < jobs[-1].submitted_s:
            raise TraceError(
                f"{place}: arrival {arrival_s:g} s is before the line above's; sort the trace"
            )
        jobs.append(
            JobSpec(
                job_id=JobId(str(len(jobs))),
                num_gpus=parse_count(columns[_GANG], f"{place}: gang size", TraceError),
                total_steps=parse_count(columns[_STEPS], f"{place}: total steps", TraceError),
                rates=rates,
                submitted_s=arrival_s,
                restart_cost_s=restart_cost_s,
                workload=workload,
            )
        )
    if not jobs:
        raise TraceError(f"{origin}: no job in it")
    return jobs
