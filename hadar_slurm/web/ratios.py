"""Jobs' throughput relative to their throughput on the fastest GPU type they could have.

Throughputs are hadard's estimates for a gang within one node; the journal has no others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache

from hadar_slurm.journal import Line
from hadar_slurm.journal.values import throughputs_of
from hadar_slurm.metrics import Segment


def throughput_ratios(
    held: Iterable[Segment], jobs: Mapping[str, Line], nodes: Mapping[str, Line]
) -> dict[str, float]:
    """Return the mean ratio over the held GPUs of each type, 1 at most.

    `jobs` and `nodes` are those of the journal. The fastest type is one of which the open nodes
    that the job may use have as many GPUs as its gang; a gang of several types runs at the pace of
    its slowest. Gangs of unknown throughput are left out, and types without any other gang.
    """

    @cache
    def supply(names: tuple[str, ...] | None) -> Counter[str]:
        """Return the GPUs of open nodes by type; thousands of jobs may use the same few nodes."""
        total: Counter[str] = Counter()
        for node in (nodes.get(name) for name in (nodes if names is None else names)):
            for gpu_type, count in node["gpus"].items() if node and node["open"] else ():
                total[gpu_type.lower()] += count
        return total

    sums: dict[str, float] = {}
    weights: Counter[str] = Counter()
    for segment in held:
        job, gang = jobs.get(segment.job_id, {}), segment.gang
        throughputs = {name.lower(): float(x) for name, x in throughputs_of(job).items()}
        own = min((throughputs.get(name.lower(), 0.0) for name in gang.gpus_by_type), default=0.0)
        if own <= 0:
            continue
        total = supply(tuple(job["nodes"]) if "nodes" in job else None)
        # `own` may be above the best: the job may hold several types, or GPUs on closed nodes.
        fits = (each for name, each in throughputs.items() if total[name] >= job["gpus"])
        ratio = own / max(own, *fits, 0.0)
        for gpu_type, count in gang.gpus_by_type.items():
            sums[gpu_type] = sums.get(gpu_type, 0.0) + ratio * count
            weights[gpu_type] += count
    return {name: sums[name] / weight for name, weight in sorted(weights.items()) if weight}
