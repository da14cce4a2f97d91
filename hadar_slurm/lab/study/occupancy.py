"""Which job held which GPU when, small enough to keep beside a result: the data of a Gantt chart.

A run of 480 jobs under free moves has some 200,000 segments; a chart has a thousand columns. So
time is cut into equal bins, and what is kept is the job on each GPU in the middle of each bin.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hadar_slurm.core.cluster import Cluster, JobId, Slot
from hadar_slurm.metrics import Segment

# Beyond this many GPUs a row would be less than a pixel high.
MAX_GPUS = 256
NUM_BINS = 900
_IDLE = -1
# A second's rounding must not make two jobs seem to share a GPU.
_TOUCH_S = 1e-3


@dataclass(frozen=True, slots=True, eq=False)
class Occupancy:
    """`jobs[gpu, bin]` is the number of the job there, -1 for none; bins last `bin_s` seconds.

    GPUs are in the order of `slots`, each (node, type, how many); a number counts the workload's
    jobs in the order they came.
    """

    slots: tuple[tuple[str, str, int], ...]
    bin_s: float
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
    """Return who held what from `start_s` to `end_s`; None for clusters too large to draw.

    A journal tells how many GPUs of a node a job has, not which. A job is drawn on the lowest that
    are free when it starts; where clocks differ, on those that are free next.
    """
    rows = _rows(cluster)
    num_gpus = sum(len(lanes) for lanes in rows.values())
    if num_gpus > MAX_GPUS or end_s <= start_s:
        return None
    bin_s = (end_s - start_s) / NUM_BINS
    jobs = np.full((num_gpus, NUM_BINS), _IDLE, dtype=np.int32)
    free_from = np.full(num_gpus, -np.inf)
    for segment in sorted(segments, key=lambda s: (s.start_s, s.end_s)):
        first, last = (
            int(np.ceil((time_s - start_s) / bin_s - 0.5))
            for time_s in (segment.start_s, segment.end_s)
        )
        for slot, count in segment.gang.slots:
            waits = np.maximum(free_from[rows[slot]] - segment.start_s - _TOUCH_S, 0.0)
            for row in rows[slot][0] + np.argsort(waits, kind="stable")[:count]:
                free_from[row] = segment.end_s
                jobs[row, max(0, first) : max(0, last)] = numbers[segment.job_id]
    slots = tuple((str(slot.node), str(slot.gpu_type), len(lanes)) for slot, lanes in rows.items())
    return Occupancy(slots, bin_s, jobs)


def to_tree(seen: Occupancy) -> dict[str, object]:
    """Return the chart's data as JSON can hold it."""
    packed = zlib.compress(seen.jobs.astype("<i4").tobytes(), level=9)
    return {
        "slots": [list(slot) for slot in seen.slots],
        "bin_s": seen.bin_s,
        "bins": seen.jobs.shape[1],
        "jobs": base64.b64encode(packed).decode("ascii"),
    }


def from_tree(tree: Mapping[str, object]) -> Occupancy:
    """Return what `to_tree` wrote."""
    slots = tuple((str(node), str(gpu_type), int(n)) for node, gpu_type, n in _list(tree["slots"]))
    packed = zlib.decompress(base64.b64decode(str(tree["jobs"])))
    jobs = np.frombuffer(packed, dtype="<i4").astype(np.int32)
    return Occupancy(slots, float(str(tree["bin_s"])), jobs.reshape(-1, int(str(tree["bins"]))))


def _list(value: object) -> list[tuple[str, str, int]]:
    assert isinstance(value, list)
    return value


def _rows(cluster: Cluster) -> dict[Slot, list[int]]:
    """Return the chart's rows of every slot: one row a GPU, types together."""
    rows: dict[Slot, list[int]] = {}
    count = 0
    for gpu_type in dict.fromkeys(gpu_type for node in cluster.nodes for gpu_type in node.by_type):
        for node in cluster.nodes:
            if gpu_type in node.by_type:
                num_gpus = node.by_type[gpu_type]
                rows[Slot(node.name, gpu_type)] = list(range(count, count + num_gpus))
                count += num_gpus
    return rows
