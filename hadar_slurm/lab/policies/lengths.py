"""Assumed job durations, for policies that do not know the true ones.

The node assignment of all policies weighs a gang's remaining time before it migrates it to fewer
nodes. A policy without durations plans on a snapshot that hides them (`unknown_lengths`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from hadar_slurm.core.cluster import GpuType
from hadar_slurm.core.job import Job
from hadar_slurm.core.snapshot import Snapshot
from hadar_slurm.sim.unread_snapshot import with_progress

_LEAST_S = 3600.0


def normalised_service(job: Job, gpu_types: Sequence[GpuType]) -> float:
    """Return the GPU-seconds that a job has received, as if all on its fastest of `gpu_types`."""
    if not job.progress.service_by_type:
        return 0.0
    throughputs, size = job.spec.throughputs, job.spec.num_gpus
    best = max((throughputs.on(gpu_type, size) for gpu_type in gpu_types), default=0.0)
    if best <= 0:
        return job.progress.service_gpu_s
    # A type that has left the cluster may have been faster than the present ones.
    return sum(
        service_s * min(1.0, throughputs.on(gpu_type, size) / best)
        for gpu_type, service_s in job.progress.service_by_type
    )


def unknown_lengths(snapshot: Snapshot) -> Snapshot:
    """Return a snapshot that hides the durations of gangs.

    A gang is assumed to train as long again as it has trained, at least an hour: our own rule,
    usual for heavy-tailed durations. Single-GPU jobs, which are never spread, are unchanged.
    """
    gpu_types = tuple(snapshot.cluster.gpus_by_type)
    return with_progress(snapshot, lambda job: _with_assumed_length(job, gpu_types))


def _with_assumed_length(job: Job, gpu_types: Sequence[GpuType]) -> Job:
    size = job.spec.num_gpus
    if size == 1:
        return job
    trained_s = normalised_service(job, gpu_types) / size
    steps = max(1, math.ceil(job.spec.throughputs.best(gpu_types, size) * max(_LEAST_S, trained_s)))
    progress = replace(job.progress, steps_done=0.0)
    return replace(job, spec=replace(job.spec, total_steps=steps), progress=progress)
