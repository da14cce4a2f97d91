"""How long a whole round's decision takes, by policy and number of active jobs.

    python benchmarks/decision_time.py [--policy hadar,...] [--jobs 64,512,2048] [--json]

All jobs are there at once, on 60 GPUs for each 100 jobs (three types, nodes of four), so that most
wait. A round is observing, planning, checking and applying; times are CPU milliseconds of this
process, the first round's (nothing known, everything to be solved) and the worst and median of
the others, in which jobs end. Memory is the peak of a process of its own.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Iterator

from in_processes import measure_each, peak_mib

from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.job import JobSpec
from hadar_slurm.engine.loop import RoundRecord, run_rounds
from hadar_slurm.lab.inputs import read_table
from hadar_slurm.lab.traces.cluster import parse_cluster
from hadar_slurm.policies.registry import make_policy
from hadar_slurm.sim.backend import SimBackend

GPU_TYPES = ("V100", "P100", "K80")


def jobs(count: int, seed: int = 0) -> Iterator[JobSpec]:
    """Yield jobs of an hour to four days on a V100, gangs of 1, 2, 4 and 8."""
    draw = random.Random(seed)
    # A workload that runs on no type here would only be rejected.
    usable = {
        name: throughputs
        for name, throughputs in read_table(None).workloads.items()
        if all(throughputs.on(gpu_type, 1) > 0 for gpu_type in GPU_TYPES)
    }
    for number in range(count):
        name = draw.choice(sorted(usable))
        gang = draw.choices((1, 2, 4, 8), (70, 10, 15, 5))[0]
        hours = 10 ** draw.uniform(0, 2)
        throughput = usable[name].on("V100", gang)
        yield JobSpec(
            job_id=JobId(str(number)),
            num_gpus=gang,
            total_steps=max(1, int(throughput * 3600 * hours)),
            throughputs=usable[name],
            workload=name,
        )


def measure(policy: str, num_jobs: int, rounds: int) -> dict[str, float | int | str]:
    """Return the figures of one policy at one size."""
    third = max(4, num_jobs * 60 // 100 // 3 // 4 * 4)
    cluster = parse_cluster(
        ",".join(f"{third}x{gpu_type}" for gpu_type in GPU_TYPES), gpus_per_node=4
    )
    world = SimBackend(cluster, list(jobs(num_jobs)))
    took_ms: list[float] = []

    def record(line: RoundRecord) -> None:
        if line.errors:
            raise SystemExit(f"{policy}: {line.errors[0]}")
        took_ms.append(1000 * sum(line.durations.values()))

    run_rounds(
        world,
        make_policy(policy),
        record,
        length_s=360.0,
        now_s=lambda: world.now_s,
        clock=time.process_time,
        max_rounds=rounds,
    )
    return {
        "policy": policy,
        "jobs": num_jobs,
        "gpus": 3 * third,
        "first_ms": round(took_ms[0], 1),
        "later_ms_median": round(statistics.median(took_ms[1:]), 1),
        "later_ms_max": round(max(took_ms[1:]), 1),
        "peak_mib": peak_mib(),
    }


def main() -> None:
    """Measure what the command line asks for, each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--policy", default="hadar")
    parser.add_argument("--jobs", default="64,512,2048")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    measure_each(measure, options.policy, options.jobs, options.rounds, as_json=options.json)


if __name__ == "__main__":
    main()
