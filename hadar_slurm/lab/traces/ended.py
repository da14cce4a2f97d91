"""The jobs of Slurm's history that have ended, as hadard keeps them (core/learned_sizes.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hadar_slurm.core.cluster import Cluster
from hadar_slurm.core.learned_sizes import EndedJob
from hadar_slurm.core.throughput import ThroughputTable
from hadar_slurm.core.throughput_model import Workload
from hadar_slurm.core.type_failures import Work
from hadar_slurm.lab.traces.fields import TraceError, split_lines
from hadar_slurm.lab.traces.load import form_of, parse_trace
from hadar_slurm.lab.traces.model import Tally
from hadar_slurm.lab.traces.sacct import parse_time, records_of

# What `hadar learn` asks of sacct; the last one may have any text in it.
FIELDS = (
    "JobID,User,Account,Partition,Submit,Start,End,ElapsedRaw,Timelimit,AllocTRES,ReqTRES,State,"
    "Comment,JobName,WorkDir,Container,SubmitLine"
)


class JobHistory(NamedTuple):
    """The ended jobs, and what has to be said of the others."""

    jobs: list[EndedJob]
    notes: Sequence[str]


def ended_jobs(text: str, origin: str, table: ThroughputTable, cluster: Cluster) -> JobHistory:
    """Return the jobs that have ended, with their service on the fastest of the cluster's types.

    Jobs that still run, that have no user, or that ran on none of the types are left out. Raises
    TraceError with file, line, value and remedy.
    """
    if form_of(text) != "sacct":
        raise TraceError(f"{origin}: expected what sacct -P -o {FIELDS} prints, with its heading")
    trace = parse_trace(text, origin, table, cluster)
    ends_s = {
        record["jobid"].strip(): parse_time(record.get("end", "").strip())
        for _, record in records_of(split_lines(text), origin, Tally())
    }
    if not any(ends_s.values()):
        raise TraceError(f"{origin}: no time of an end in it; give the field End to sacct -o")
    jobs, left_out = list[EndedJob](), 0
    for spec in trace.jobs:
        best = spec.throughputs.best(cluster.gpus_by_type, spec.num_gpus)
        end_s = ends_s.get(spec.job_id)
        name = spec.workload or spec.name
        if best > 0 and end_s and spec.user and name:
            work = Work(Workload(spec.user, name), spec.num_gpus)
            service_s = spec.total_steps / best
            ended_s, asked_s = float(end_s), spec.limit_s
            jobs.append(EndedJob(spec.job_id, ended_s, work, service_s, asked_s=asked_s))
        else:
            left_out += 1
    notes = [str(part) for part in trace.skipped]
    if left_out:
        notes.append(f"{left_out} left out: still running, without a user or name, or on no GPUs")
    return JobHistory(jobs, notes)
