"""The data of a Gantt chart: the job on each GPU over time, in a size fit for result files.

A run of 480 jobs with free migrations has some 200,000 segments; a chart has a thousand columns. So
time is divided into equal bins, and each bin has the job on the GPU at its middle.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hadar_slurm.core.cluster import Cluster, JobId, Slot
from hadar_slurm.metrics import Segment

# With more GPUs a row would be less than a pixel high.
MAX_GPUS = 256
NUM_BINS = 900
_IDLE = -1
# Tolerance for rounded times, so that successive jobs do not seem to overlap.
_TOUCH_S = 1e-3


@dataclass(frozen=True, slots=True, eq=False)
class Occupancy:
    """The job on each GPU in each bin."""

    # (node, type, number of GPUs) of successive rows.
    slots: tuple[tuple[str, str, int], ...]
    # Seconds per bin.
    bin_s: float
    # (GPUs, bins) numbers of jobs in the workload's order; -1 is idle.
    jobs: NDArray[np.int32]

    @property
    def end_s(self) -> float:
        """Return when the last bin ends, from the start of the first."""
        return self.bin_s * float(self.jobs.shape[1])


def occupancy(
    segments: Sequence[Segment],
    cluster: Cluster,
    numbers: Mapping[JobId, int],
    *,
    start_s: float,
    end_s: float,
) -> Occupancy | None:
    """Return the occupancy from `start_s` to `end_s`; None for clusters too large to draw.

    A journal has the number of a job's GPUs on a node, not their indices. A job is drawn on the
    lowest rows that are free when it starts; if clocks differ, on those that are free next.
    """
    rows = _rows(cluster)
    num_gpus = sum(len(lanes) for lanes in rows.values())
    if num_gpus > MAX_GPUS or end_s <= start_s:
        return None
    bin_s = (end_s - start_s) / NUM_BINS
    jobs = np.full((num_gpus, NUM_BINS), _IDLE, dtype=np.int32)
    free_from = np.full(num_gpus, -np.inf)
    for segment in sorted(segments, key=lambda s: (s.start_s, s.end_s)):
        times_s = segment.start_s, segment.end_s
        first, last = (int(np.ceil((time_s - start_s) / bin_s - 0.5)) for time_s in times_s)
        for slot, wanted in segment.gang.slots:
            waits = np.maximum(free_from[rows[slot]] - segment.start_s - _TOUCH_S, 0.0)
            for row in rows[slot][0] + np.argsort(waits, kind="stable")[:wanted]:
                free_from[row] = segment.end_s
                jobs[row, max(0, first) : max(0, last)] = numbers[segment.job_id]
    slots = tuple((str(slot.node), str(slot.gpu_type), len(lanes)) for slot, lanes in rows.items())
    return Occupancy(slots, bin_s, jobs)


def to_tree(seen: Occupancy) -> dict[str, object]:
    """Return the chart's data as a JSON tree."""
    packed = zlib.compress(seen.jobs.astype("<i4").tobytes(), level=9)
    return {
        "slots": [list(slot) for slot in seen.slots],
        "bin_s": seen.bin_s,
        "bins": seen.jobs.shape[1],
        "jobs": base64.b64encode(packed).decode("ascii"),
    }


def from_tree(tree: Mapping[str, Any]) -> Occupancy:
    """Return the chart's data in a tree of `to_tree`."""
    slots = tuple((str(node), str(gpu_type), int(n)) for node, gpu_type, n in tree["slots"])
    packed = zlib.decompress(base64.b64decode(tree["jobs"]))
    jobs = np.frombuffer(packed, dtype="<i4").astype(np.int32)
    return Occupancy(slots, float(tree["bin_s"]), jobs.reshape(-1, tree["bins"]))


def _rows(cluster: Cluster) -> dict[Slot, list[int]]:
    """Return the chart's rows of every slot: one row per GPU, grouped by type."""
    row = count()
    return {
        Slot(node.name, gpu_type): list(islice(row, node.by_type[gpu_type]))
        for gpu_type in dict.fromkeys(name for node in cluster.nodes for name in node.by_type)
        for node in cluster.nodes
        if gpu_type in node.by_type
    }
