"""Parse workload traces in their published formats, from text to jobs.

`parse_trace` detects the format; docs/traces.md describes them. It reads no file but the package's
knowledge of GPU types.
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
from hadar_slurm.lab.traces.model import Trace
from hadar_slurm.lab.traces.sacct import read_sacct
from hadar_slurm.lab.traces.speeds import DEFAULT_REFERENCE, SpeedTable, parse_gpu_speeds

__all__ = [
    "DEFAULT_REFERENCE",
    "FORMS",
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

# Number of characters searched for the first line.
_HEAD = 100_000


def parse_trace(
    text: str,
    origin: str,
    table: ThroughputTable,
    cluster: Cluster | None = None,
    *,
    reference: str = DEFAULT_REFERENCE,
    gpu_speeds: Mapping[str, float] | None = None,
) -> Trace:
    """Return the workload in a text of any format in `FORMS`; `origin` names it in errors.

    `reference` is the GPU type of the durations in a trace without types, `gpu_speeds` are the
    user's speeds relative to it (`parse_gpu_speeds`), and `cluster` has the types for which jobs
    need rates. Raises TraceError with file, line, value and remedy.
    """
    lines = split_lines(text)
    form = form_of(text)
    if form == "gavel":
        return read_gavel(lines, table, origin)
    read = read_sacct if form == "sacct" else read_elasticflow
    speeds = SpeedTable(
        table, reference, gpu_speeds or {}, tuple(cluster.gpus_by_type) if cluster else ()
    )
    return read(lines, speeds, origin)


def form_of(text: str) -> str:
    """Return the format of a text in `FORMS`, by its first line; Gavel's by default."""
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
    """Return the jobs of a trace in Gavel's format; see `read_gavel`."""
    return list(read_gavel(lines, table, origin, restart_cost_s=restart_cost_s).jobs)
