"""How long a simulation takes, and how much memory, by number of jobs.

    python benchmarks/simulation_speed.py [--policy srsf,...] [--jobs 5000,20000] [--json]

1,000 GPUs of three types on nodes of four; jobs of a generator arrive with exponential gaps and
offer `--load` per cent of the cluster's maximum rate. Each simulation has a process of its own:
CPU seconds are those of the simulation itself, memory is the peak of the process. `digest` is the
same as long as no job ends at another time and no segment differs in a digit.
"""

from __future__ import annotations

import argparse
import hashlib
from random import Random

from in_processes import measure_each, peak_mib

from hadar_slurm.core.cluster import Cluster
from hadar_slurm.core.job import JobSpec
from hadar_slurm.lab.garbage import rare_collections
from hadar_slurm.lab.inputs import read_cluster, read_table
from hadar_slurm.lab.study.bounds import forking_bound_s
from hadar_slurm.lab.study.experiment import run_experiment
from hadar_slurm.lab.traces.workload import generate
from hadar_slurm.policies.registry import make_policy

CLUSTER = "400xV100,300xP100,300xK80"
# The load is computed from this many jobs of the same generator.
_SAMPLE = 2000


def workload(name: str, number: int, cluster: Cluster, load: float, seed: int) -> list[JobSpec]:
    """Return jobs of a generator that offer `load` per cent of the cluster's maximum rate."""
    table = read_table(None)
    sample = generate(name, _SAMPLE, Random(seed).random, table)
    gap_s = forking_bound_s(sample, cluster) / (len(sample) * load / 100.0)
    return generate(name, number, Random(seed).random, table, mean_gap_s=gap_s)


def measure(
    policy: str, number: int, generator: str, load: float, seed: int
) -> dict[str, float | int | str]:
    """Return the figures of one simulation."""
    cluster = read_cluster(CLUSTER, gpus_per_node=4)
    specs = workload(generator, number, cluster, load, seed)
    with rare_collections():
        result = run_experiment(specs, cluster, make_policy(policy))
    exact = repr((result.jcts, result.segments)).encode()
    return {
        "policy": policy,
        "generator": generator,
        "jobs": number,
        "rounds": result.rounds,
        "moves": result.moves,
        "cru": round(result.cru, 3),
        "cpu_s": round(result.cpu_s, 1),
        "ms_per_round": round(1000 * result.cpu_s / result.rounds, 2),
        "peak_mib": peak_mib(),
        "digest": hashlib.sha256(exact).hexdigest()[:12],
    }


def main() -> None:
    """Measure what the command line asks for, each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--policy", default="srsf")
    parser.add_argument("--jobs", default="5000,20000")
    parser.add_argument("--generator", default="hadar")
    parser.add_argument("--load", type=float, default=90.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    measure_each(
        measure,
        options.policy,
        options.jobs,
        options.generator,
        options.load,
        options.seed,
        as_json=options.json,
    )


if __name__ == "__main__":
    main()
