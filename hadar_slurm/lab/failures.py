"""Random failures and repairs of nodes."""

from __future__ import annotations

from random import Random

from hadar_slurm.core.cluster import Cluster
from hadar_slurm.sim.backend import Failure


def draw_failures(
    cluster: Cluster, *, mtbf_s: float, repair_s: float, until_s: float, seed: int
) -> tuple[Failure, ...]:
    """Return each node's failures until `until_s`, by time.

    Times between a repair and the next failure, and the repairs, are exponential with means
    `mtbf_s` and `repair_s`, all in seconds. Each node has its own random stream, so that adding a
    node does not change the failures of the others.
    """
    failures: list[Failure] = []
    for node in cluster.nodes:
        draw = Random(f"{seed} {node.name}")
        up_s = 0.0
        while (down_s := up_s + draw.expovariate(1 / mtbf_s)) < until_s:
            up_s = down_s + draw.expovariate(1 / repair_s)
            failures.append(Failure(down_s, up_s, node.name))
    return tuple(sorted(failures))
