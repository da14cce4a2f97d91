"""How far off estimates of speeds are, on the shipped table: each workload told from the others.

    python benchmarks/learning.py

A workload is known in one place, a GPU type with one GPU, and told in the others: by the published
speeds alone, and by what all other workloads, of which some are of its model, do in both. Prints
the standard deviation of the logarithm of estimate over truth, and the factor that is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from hadar_slurm.core.throughput import ThroughputTable, parse_table
from hadar_slurm.core.throughput_model import Place, ThroughputModel, Workload, published_prior
from hadar_slurm.jobspec.estimator import Estimator
from hadar_slurm.resources import data_file

KINDS = ("k80", "p100", "v100")


def table() -> ThroughputTable:
    """Return the shipped table."""
    path = data_file("throughputs.json")
    return parse_table(path.read_text(encoding="utf-8"), str(path))


def faults(estimator: Estimator, *, learns: bool) -> Iterator[float]:
    """Give the logarithm of estimate over truth, for every workload, known place and other one."""
    workloads = estimator.table.workloads
    for name, throughputs in workloads.items():
        truth = {
            gpu_type: throughputs.on(gpu_type, 1)
            for gpu_type in KINDS
            if throughputs.on(gpu_type, 1) > 0
        }
        for known in truth:
            speeds = ThroughputModel()
            for other, found in workloads.items():
                for gpu_type in KINDS:
                    is_seen = gpu_type == known if other == name else learns
                    if is_seen and found.on(gpu_type, 1) > 0:
                        speeds.measure(
                            Workload("", other), Place(gpu_type, 1), found.on(gpu_type, 1)
                        )
            prior = published_prior(estimator.published, KINDS, 1, 1.0)
            for gpu_type in truth.keys() - {known}:
                told = speeds.estimate(Workload("", name), Place(gpu_type, 1), prior)
                yield math.log(told.steps_per_s / truth[gpu_type])


def main() -> None:
    """Print both."""
    estimator = Estimator.shipped(table())
    for name, learns in (("published", False), ("similar", True)):
        found = list(faults(estimator, learns=learns))
        spread = math.sqrt(sum(fault**2 for fault in found) / len(found))
        print(
            f"{name:10} {spread:.2f}, a factor {math.exp(spread):.2f}, over {len(found)} estimates"
        )


if __name__ == "__main__":
    main()
