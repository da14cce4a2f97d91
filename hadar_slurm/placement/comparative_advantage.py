"""Comparative advantage: on which GPU type a job is better than on the average of all.

A type goes to the job that gains most from it relative to all other types, not to the fastest or
the first job (`hadar` and `hlas`; our rule).
"""

from __future__ import annotations

from collections.abc import Mapping

from hadar_slurm.core.cluster import GpuType
from hadar_slurm.core.job import Job
from hadar_slurm.placement.allocator import Allocator

# Bonus factor for the type on which a job runs: a migration costs a restart.
STAYS = 1.1


def advantages(allocator: Allocator, job: Job) -> Mapping[GpuType, float]:
    """Return a job's throughput on each type where it trains, over its mean on all types."""
    speeds = {gpu_type: allocator.throughput(job, gpu_type) for gpu_type in allocator.by_speed(job)}
    mean = sum(speeds.values()) / max(1, len(allocator.gpu_types))
    held = allocator.runs_on(job)
    return {
        gpu_type: speed / mean * (STAYS if gpu_type == held else 1.0)
        for gpu_type, speed in speeds.items()
        if speed > 0
    }
