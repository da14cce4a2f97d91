"""Comparative advantage: on which GPU type a job is better than on the average of all.

A type is best given to the job that gains most from it beside all other types, not to the one that
is fastest there or comes first (`hadar` and `hlas`; ours).
"""

from __future__ import annotations

from collections.abc import Mapping

from hadar_slurm.core.cluster import GpuType
from hadar_slurm.core.job import Job
from hadar_slurm.placement.allocator import Allocator

# A job that runs counts as so much better suited to the type that it is on: a move costs a restart.
_STAYS = 1.1


def advantages(board: Allocator, job: Job) -> Mapping[GpuType, float]:
    """Return a job's speed on each type where it trains, over its mean speed on all types.

    That on which it runs counts for a tenth more.
    """
    speeds = {gpu_type: board.throughput(job, gpu_type) for gpu_type in board.by_speed(job)}
    mean = sum(speeds.values()) / max(1, len(board.gpu_types))
    held = board.runs_on(job)
    return {
        gpu_type: speed / mean * (_STAYS if gpu_type == held else 1.0)
        for gpu_type, speed in speeds.items()
        if speed > 0
    }
