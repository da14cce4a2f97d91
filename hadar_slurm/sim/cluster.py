"""Clusters from a few words: `20xV100,20xP100,20xK80` on nodes of four GPUs."""

from __future__ import annotations

from hadar_slurm.core.cluster import Cluster, Node
from hadar_slurm.errors import ConfigError


def parse_cluster(text: str, *, gpus_per_node: int) -> Cluster:
    """Return a cluster of single-type nodes with `gpus_per_node` GPUs each; the last may hold less.

    Raises ConfigError naming the part that is wrong.
    """
    if gpus_per_node < 1:
        raise ConfigError(f"{gpus_per_node} GPUs per node: expected 1 or more")
    nodes: list[Node] = []
    for part in text.split(","):
        count, cross, kind = part.strip().partition("x")
        if not (cross and kind and count.isascii() and count.isdigit() and int(count) > 0):
            raise ConfigError(f"cluster {part!r}: expected COUNTxTYPE, such as 20xV100")
        left = int(count)
        while left > 0:
            nodes.append(Node.of(f"n{len(nodes) + 1}", {kind: min(left, gpus_per_node)}))
            left -= gpus_per_node
    return Cluster.of(nodes)
