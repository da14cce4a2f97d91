"""select/cons_tres: which nodes Slurm gives a job of those that are free. Pure.

Found on a real slurmctld (22.05.8), and played beside it by benchmarks/slurm_fidelity:

* Nodes of lower weight go first. Here each GPU type is a weight, in the order of the cluster's
  nodes.
* Of equal weight: the runs of consecutive free nodes that suffice, of these the one with the fewest
  idle CPUs; where none suffices, the longest run first, and then the next. The last node of a job
  is, within its run, the one with the fewest idle CPUs.
* --gpus=N takes a node that has N free GPUs if there is one of the lowest weight that has any, else
  what is left on each node in turn, also on several types.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from hadar_slurm.core.cluster import Cluster, GpuType, Node, Slot
from hadar_slurm.core.job import Shape

Counts = NDArray[np.int64]
# Slots by their index in `Nodes.slots`, with the number of GPUs taken there.
Taken = Mapping[int, int]

# A job is taken to have one CPU on each node: Slurm's own choice for one task.
_CPUS = 10**6


@dataclass(frozen=True)
class Nodes:
    """The slots of a cluster in the order in which Slurm looks at them."""

    slots: tuple[Slot, ...]
    # By slot: its weight, its node's index, whether its node has one GPU type.
    weights: tuple[int, ...]
    node_of: Counts
    is_plain: tuple[bool, ...]

    @classmethod
    def of(cls, cluster: Cluster) -> Nodes:
        """Return the slots by weight, and in the cluster's order within one weight."""
        weights: dict[GpuType, int] = {}
        found: list[tuple[int, int, Slot, Node]] = []
        for at, node in enumerate(cluster.nodes):
            for slot, _ in node.slots:
                weight = weights.setdefault(slot.gpu_type, len(weights))
                found.append((weight, at, slot, node))
        found.sort(key=lambda each: each[:2])
        return cls(
            tuple(slot for _, _, slot, _ in found),
            tuple(weight for weight, _, _, _ in found),
            np.array([at for _, at, _, _ in found], dtype=np.int64),
            tuple(node.has_one_type for _, _, _, node in found),
        )


def take_nodes(
    candidates: Sequence[int], wanted: Shape, nodes: Nodes, jobs_on: Counts
) -> Taken | None:
    """Return the GPUs of a layout on some of the slots with room, sorted; None: too few.

    `jobs_on`: the number of jobs on the node of each slot.
    """
    num_nodes, size = wanted
    if len({int(nodes.node_of[at]) for at in candidates}) < num_nodes:
        return None
    taken: dict[int, int] = {}
    used: set[int] = set()
    for _, alike in groupby(candidates, key=nodes.weights.__getitem__):
        free = [at for at in alike if int(nodes.node_of[at]) not in used]
        runs = _runs(free, nodes.node_of)
        while runs and len(taken) < num_nodes:
            left = num_nodes - len(taken)
            run = _best(runs, left, jobs_on)
            runs.remove(run)
            chosen = [max(run, key=lambda at: jobs_on[at])] if left == 1 else run[:left]
            taken.update(dict.fromkeys(chosen, size))
            used.update(int(nodes.node_of[at]) for at in chosen)
        if len(taken) == num_nodes:
            return taken
    return None


def _runs(slots: Iterable[int], node_of: Counts) -> list[list[int]]:
    """Return the runs of slots on consecutive nodes."""
    runs: list[list[int]] = []
    for at in slots:
        if runs and node_of[at] - node_of[runs[-1][-1]] == 1:
            runs[-1].append(at)
        else:
            runs.append([at])
    return runs


def _best(runs: list[list[int]], num_nodes: int, jobs_on: Counts) -> list[int]:
    enough = [run for run in runs if len(run) >= num_nodes]
    if not enough:
        return max(runs, key=len)
    return min(enough, key=lambda run: sum(_CPUS - int(jobs_on[at]) for at in run))


def take_any(candidates: Sequence[int], size: int, room: Counts, nodes: Nodes) -> Taken | None:
    """Return `size` GPUs on any of the slots, in any split; None where there are too few."""
    if sum(int(room[at]) for at in candidates) < size:
        return None
    taken: dict[int, int] = {}
    left = size
    for _, alike in groupby(candidates, key=nodes.weights.__getitem__):
        group = list(alike)
        whole = [at for at in group if room[at] >= left]
        if whole:
            at = max(whole, key=room.__getitem__) if taken else whole[0]
            return taken | {at: left}
        for at in group:
            taken[at] = min(left, int(room[at]))
            left -= taken[at]
            if not left:
                return taken
    return None
