"""Writes a real play as Slurm's history of it, for `hadar compare` and `hadar report`.

Times are those of the list, in whole seconds as `sacct` prints them.
"""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime

from slurm_fidelity.jobs import JobList, Play
from slurm_fidelity.settings import qos

_FIELDS = (
    "JobID,User,Account,Partition,QOS,Submit,Start,End,ElapsedRaw,Timelimit,AllocTRES,ReqTRES,State"
)
# When the list begins; any time would do.
_BEGIN_S = 1_800_000_000


def history(jobs: JobList, play: Play) -> str:
    """Return what `sacct -X -P` would print of a play's jobs; partitions of a tier count as QOS."""
    lines = [_FIELDS.replace(",", "|")]
    for job in jobs.jobs:
        run = play.runs[job.number]
        held = Counter[str]()
        for node, count in zip(run.nodes, run.gpus, strict=True):
            held[jobs.node_types()[node]] += count
        start_s, end_s = round(run.start_s), max(round(run.end_s), round(run.start_s) + 1)
        typed = [f"gres/gpu:{gpu_type}={count}" for gpu_type, count in sorted(held.items())]
        minutes = job.limit_min * jobs.compression
        values = (
            str(job.number + 1),
            job.user,
            job.user if jobs.fairshare != "no" else "users",
            "main",
            qos(job) or "normal",
            *map(_time, (round(job.submit_s), start_s, end_s)),
            str(end_s - start_s),
            f"{minutes // 60:02d}:{minutes % 60:02d}:00",
            ",".join([f"gres/gpu={job.gpus}", *typed, f"node={len(run.nodes)}"]),
            f"gres/gpu={job.gpus},node={job.nodes}",
            run.state,
        )
        lines.append("|".join(values))
    return "\n".join(lines) + "\n"


def cluster_text(jobs: JobList) -> str:
    """Return the cluster of a list, as `--cluster` takes it; all its nodes have as many GPUs."""
    return ",".join(f"{pool.nodes * pool.gpus}x{pool.gpu_type}" for pool in jobs.pools)


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(_BEGIN_S + seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
