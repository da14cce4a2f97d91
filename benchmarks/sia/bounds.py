"""A makespan that no schedule of jobs with fixed batch sizes can beat, by the simulator's own jobs.

No job ends before it has trained alone, from the first round after its submission, without a
second start, on the type and the placement on which it is fastest. The simulator's `Job` trains it,
with its restart time and its rounding. That other jobs need GPUs too is left out.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from one_run import SIMULATOR, inside, silent

ROUND_S = 360


@dataclass(frozen=True, slots=True)
class Alone:
    """The shortest time that a job takes alone, and the GPU type of it."""

    seconds: float
    gpu_type: str


def placements(num_gpus: int, nodes: int, gpus_per_node: int) -> Iterator[tuple[int, ...]]:
    """Return the ways to place a gang on nodes: GPUs by node, the most first."""
    if num_gpus == 0:
        yield ()
    elif nodes > 0:
        for first in range(min(num_gpus, gpus_per_node), 0, -1):
            for rest in placements(num_gpus - first, nodes - 1, first):
                yield (first, *rest)


def last_end(
    jobs: Sequence[Mapping[str, str]], alone: Mapping[str, Alone], round_s: float
) -> dict[str, Any]:
    """Return the bound of a workload: from its first submission to the end of its last job.

    `jobs` are the lines of the workload, `alone` is by name of a job.
    """
    submitted_s = {job["name"]: float(job["time"]) for job in jobs}
    ends_s = {
        name: math.ceil(at_s / round_s) * round_s + alone[name].seconds
        for name, at_s in submitted_s.items()
    }
    last = max(ends_s, key=lambda name: ends_s[name])
    bound_s = ends_s[last] - min(submitted_s.values())
    return {"bound_s": bound_s, "job": last, "gpu_type": alone[last].gpu_type}


def bound(artifact: Path, workload: str) -> dict[str, Any]:
    """Return the record of a workload's bound, with the modules of the simulator."""
    family, number = workload.rsplit("-", 1)
    with inside((artifact / SIMULATOR).resolve()), silent():
        with Path("workloads", family, f"workload-{number}.csv").open(encoding="utf-8") as lines:
            jobs = list(csv.DictReader(lines))
        alone = {
            job["name"]: _alone(
                job["application"], int(job["num_replicas"]), int(job["batch_size"])
            )
            for job in jobs
        }
    return {"workload": workload, **last_end(jobs, alone, ROUND_S)}


@cache
def _alone(application: str, num_gpus: int, batch_size: int) -> Alone:
    """Return the shortest time alone of a kind of job."""
    import simulator_config as config  # the simulator's

    return min(
        (
            Alone(_trained_s(application, num_gpus, batch_size, gpu_type, placement), gpu_type)
            for gpu_type, nodes in config.cluster_nnodes.items()
            for placement in placements(num_gpus, nodes, config.cluster_ngpus_per_node[gpu_type])
        ),
        key=lambda alone: alone.seconds,
    )


def _trained_s(
    application: str, num_gpus: int, batch_size: int, gpu_type: str, placement: tuple[int, ...]
) -> float:
    """Return how long one job trains, its start included."""
    import applications  # these two are the simulator's
    import job

    class Fixed(job.Job):  # type: ignore[misc]
        """Keeps its batch size, and fits no model of throughput."""

        def optimize_perf_params(self, perf_profile: object) -> None:
            """Nothing reads it."""

        def update_local_bsz(self, placement: object) -> None:
            if self.atomic_bsz == 0:  # it depends on the placement, which stays
                super().update_local_bsz(placement)

    every = {k: its[application] for k, its in applications.APPLICATIONS.items()}
    one = Fixed("one", every, 0, num_gpus, batch_size)
    one.disable_bsz_tuning()
    one.migrate(gpu_type, placement)
    while one.completion_time is None:
        one.step(ROUND_S)
    return float(one.completion_time)
