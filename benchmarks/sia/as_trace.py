"""Write workloads of Sia's artifact as traces for `hadar compare`, with their throughputs.

    sia-venv/bin/python benchmarks/sia/as_trace.py sia OUTPUT newtrace-1 scale/scale_4x-1 ...

A workload is FOLDER-NUMBER below sia-simulator/workloads, such as saturn-1. Each becomes a trace in
Gavel's format, with the jobs as the simulator gives them to its own Gavel: GPUs and batch sizes
fixed, steps until the validation metric is reached. throughputs.json has the measured steps/s of
all of them on the simulator's three GPU types, within a node and in two halves, and cluster.yaml
its cluster, or that times --scale.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from one_run import SIMULATOR, inside, silent
from translation import measured

from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.job import JobSpec
from hadar_slurm.core.throughput import Throughputs
from hadar_slurm.lab.traces.gavel import as_gavel_trace


class Pool(NamedTuple):
    """The nodes of one GPU type, and what the simulator calls their measurements."""

    suffix: str
    gpu_type: str
    nodes: int
    gpus: int


# simulator_config.py of the artifact.
POOLS = (
    Pool("dgx-ext", "A100", 2, 8),
    Pool("rtx", "RTX2080Ti", 3, 8),
    Pool("aws", "T4", 6, 4),
)


class Work(NamedTuple):
    """What all jobs of a model with a batch size on a number of GPUs have in common."""

    model: str
    batch: int
    gpus: int

    @property
    def name(self) -> str:
        """Return its name in the throughput table."""
        return f"{self.model} (batch size {self.batch}, {self.gpus} GPUs)"


def steps(applications: Mapping[str, Mapping[str, Any]], work: Work) -> int:
    """Return the steps of a job of the simulator, which are the same on all types."""
    application = applications[POOLS[0].suffix][work.model]
    last = application.get_completion_epoch(work.batch)
    return max(1, round(float(application.get_iteration(work.batch, last))))


def rates(
    applications: Mapping[str, Mapping[str, Any]], work: Work, slower: float, scale: int = 1
) -> dict[str, dict[str, list[float]]]:
    """Return the steps/s within a node, or on the fewest, and on several; by type and gang.

    0 is a placement on which the simulator does not run the job.
    `slower` is by how much the simulator has jobs take longer than was measured.
    """
    found: dict[str, dict[str, list[float]]] = {}
    for pool in POOLS:
        if work.gpus > pool.nodes * pool.gpus * scale:
            continue
        application = applications[pool.suffix][work.model]

        def on(placement: tuple[int, ...], application: Any = application) -> float:
            samples_per_s = application.get_throughput_with_accum(placement, work.batch)
            return max(0.0, float(samples_per_s)) / work.batch / slower

        together, halved = measured(work.gpus, pool.gpus, on)
        spread = together if halved is None else halved
        if together > 0:
            found[pool.gpu_type.lower()] = {str(work.gpus): [together, spread]}
    return found


def main() -> None:
    """Write the traces, their throughputs and the cluster."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("artifact", type=Path, help="a checkout of siasosp23/artifacts")
    parser.add_argument("output", type=Path)
    parser.add_argument("workloads", nargs="+", metavar="WORKLOAD")
    parser.add_argument("--scale", type=int, default=1, help="times the nodes of the cluster")
    given = parser.parse_args()
    output = given.output.resolve()
    output.mkdir(parents=True, exist_ok=True)
    tables: dict[str, dict[str, dict[str, list[float]]]] = {}
    with inside((given.artifact / SIMULATOR).resolve()), silent():
        from applications import APPLICATIONS  # this and the next are the simulator's
        from simulator_config import SLOWDOWNS

        for workload in given.workloads:
            folder, _, number = workload.rpartition("-")
            path = Path("workloads", folder, f"workload-{number}.csv")
            jobs = []
            for row in csv.DictReader(path.read_text(encoding="utf-8").splitlines()):
                work = Work(row["application"], int(row["batch_size"]), int(row["num_replicas"]))
                if work.name not in tables:
                    slower = SLOWDOWNS[work.model]
                    tables[work.name] = rates(APPLICATIONS, work, slower, given.scale)
                spec = JobSpec(
                    job_id=JobId(row["name"]),
                    num_gpus=work.gpus,
                    total_steps=steps(APPLICATIONS, work),
                    throughputs=Throughputs(),
                    submitted_s=float(row["time"]),
                    workload=work.name,
                )
                jobs.append(spec)
            name = f"{folder.rpartition('/')[2]}{number}.trace"
            (output / name).write_text(as_gavel_trace(jobs), encoding="utf-8")
    source = "Sia, SOSP'23, artifact siasosp23/artifacts: measured step times, batch sizes fixed"
    text = json.dumps({"source": source, "workloads": dict(sorted(tables.items()))}, indent=1)
    (output / "throughputs.json").write_text(text + "\n", encoding="utf-8")
    nodes = "".join(
        f"  - name: {pool.suffix}[1-{pool.nodes * given.scale}]\n"
        f"    gpus: {{{pool.gpu_type}: {pool.gpus}}}\n"
        for pool in POOLS
    )
    (output / "cluster.yaml").write_text(f"nodes:\n{nodes}", encoding="utf-8")


if __name__ == "__main__":
    main()
