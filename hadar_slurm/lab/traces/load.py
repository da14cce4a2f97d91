"""Read workload traces that others wrote, unmodified. Pure: takes text, gives jobs.

`parse_trace` finds out by itself which form a text has; docs/traces.md describes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hadar_slurm.core.cluster import Cluster
from hadar_slurm.core.job import JobSpec
from hadar_slurm.core.throughput import ThroughputTable
from hadar_slurm.lab.traces.elasticflow import read_elasticflow
from hadar_slurm.lab.traces.fields import split_lines
from hadar_slurm.lab.traces.fit import check_fits, without_unfit
from hadar_slurm.lab.traces.gavel import as_gavel_trace, read_gavel
from hadar_slurm.lab.traces.model import Skipped, Trace
from hadar_slurm.lab.traces.sacct import read_sacct
from hadar_slurm.lab.traces.speeds import DEFAULT_REFERENCE, SpeedTable, parse_gpu_speeds

__all__ = [
    "DEFAULT_REFERENCE",
    "FORMS",
    "Skipped",
    "Trace",
    "as_gavel_trace",
    "check_fits",
    "form_of",
    "parse_gavel_trace",
    "parse_gpu_speeds",
    "parse_trace",
    "without_unfit",
]

FORMS = ("gavel", "elasticflow", "sacct")

# Characters in which a first line is looked for.
_HEAD = 100_000


def parse_trace(
    text: str,
    origin: str,
    table: ThroughputTable,
    cluster: Cluster | None = None,
    *,
    reference: str = DEFAULT_REFERENCE,
    gpu_speeds: Mapping[str, float] | None = None,
    restart_cost_s: float = 30.0,
) -> Trace:
    """Return the workload in a text of any form in `FORMS`; `origin` names it in errors.

    `reference` is the GPU type on which the durations of a trace without types were measured,
    `gpu_speeds` are speeds of the user's own relative to it (`parse_gpu_speeds`), and `cluster`
    says for which types jobs need rates. Raises TraceError naming file, line, value and remedy.
    """
    lines = split_lines(text)
    form = form_of(text)
    if form == "gavel":
        return read_gavel(lines, table, origin, restart_cost_s=restart_cost_s)
    gpu_types = tuple(cluster.gpus_by_type) if cluster else ()
    speeds = SpeedTable(table, reference, gpu_speeds or {}, gpu_types)
    read = read_sacct if form == "sacct" else read_elasticflow
    return read(lines, speeds, origin, restart_cost_s=restart_cost_s)


def form_of(text: str) -> str:
    """Return which of `FORMS` a text has, by its first line; Gavel's where it is none of them."""
    head = split_lines(text[:_HEAD])
    first = next((line for line in head if line.strip()), "")
    if "\t" not in first and "|" in first:
        return "sacct"
    if "\t" not in first and "job_id" in first.lower():
        return "elasticflow"
    return "gavel"


def parse_gavel_trace(
    lines: Iterable[str], table: ThroughputTable, origin: str, *, restart_cost_s: float = 30.0
) -> list[JobSpec]:
    """Return the jobs of a trace in Gavel's form; see `read_gavel`."""
    return list(read_gavel(lines, table, origin, restart_cost_s=restart_cost_s).jobs)
