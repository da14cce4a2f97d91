"""The error of throughput estimates on the shipped table: each workload from the others.

    python benchmarks/learning.py

A workload is known in one place, a GPU type with one GPU, and estimated in the others: by the
published speeds alone, and by what all other workloads, of which some are of its model, do in both.
Prints the standard deviation of the logarithm of estimate over truth, and the factor that is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from hadar_slurm.core.throughput_model import Place, ThroughputModel, Workload, published_prior
from hadar_slurm.jobspec.estimator import Estimator
from hadar_slurm.lab.inputs import read_table

GPU_TYPES = ("k80", "p100", "v100")


def faults(estimator: Estimator, *, learns: bool) -> Iterator[float]:
    """Yield log(estimate / truth) for every workload, known place and other place."""
    workloads = estimator.table.workloads
    for name, throughputs in workloads.items():
        truth = {k: throughputs.on(k, 1) for k in GPU_TYPES if throughputs.on(k, 1) > 0}
        for known in truth:
            speeds = ThroughputModel()
            for other, found in workloads.items():
                for gpu_type in GPU_TYPES:
                    is_seen = gpu_type == known if other == name else learns
                    if is_seen and (rate := found.on(gpu_type, 1)) > 0:
                        speeds.measure(Workload("", other), Place(gpu_type, 1), rate)
            prior = published_prior(estimator.known_types, GPU_TYPES, 1, 1.0)
            for gpu_type in truth.keys() - {known}:
                told = speeds.estimate(Workload("", name), Place(gpu_type, 1), prior)
                yield math.log(told.steps_per_s / truth[gpu_type])


def main() -> None:
    """Print both."""
    estimator = Estimator.shipped(read_table(None))
    for name, learns in (("published", False), ("similar", True)):
        found = list(faults(estimator, learns=learns))
        spread = math.sqrt(sum(fault**2 for fault in found) / len(found))
        factor = math.exp(spread)
        print(f"{name:10} {spread:.2f}, a factor {factor:.2f}, over {len(found)} estimates")


if __name__ == "__main__":
    main()
