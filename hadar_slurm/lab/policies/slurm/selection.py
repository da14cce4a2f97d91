"""select/cons_tres: which nodes Slurm gives a job of those that are free. Pure.

Read in Slurm's source (22.05: _eval_nodes and the filters of GRES), and played beside a real
slurmctld by benchmarks/slurm_fidelity:

* Nodes of lower weight go first. Here each GPU type is a weight, in the order of the cluster's
  nodes. For --gpus=N, nodes of one weight with more free GPUs, up to N, go first.
* Of equal weight: runs of consecutive free nodes that suffice, of these the one with the fewest
  idle CPUs; where none suffices, the one with the most, and then the next. Where one more node will
  do, it is that of the run with the fewest idle CPUs, else nodes are taken in their order.
* --gpus=N takes, in the order of its nodes, all that is free on each, but leaves one GPU for each
  node behind; from 24.11 on in the order in which they are chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from hadar_slurm.core.cluster import Cluster, GpuType, Slot
from hadar_slurm.core.job import Shape

Counts = list[int]
# Slots by their index in `Nodes.slots`, with the number of GPUs taken there.
Taken = Mapping[int, int]

# Of a node; a job is taken to have one on each node, Slurm's own choice for one task.
_CPUS = 16


@dataclass(frozen=True)
class Nodes:
    """The slots of a cluster in the order in which Slurm looks at them."""

    slots: tuple[Slot, ...]
    # By slot: its weight, and its node's index.
    weights: tuple[int, ...]
    node_of: tuple[int, ...]

    @classmethod
    def of(cls, cluster: Cluster) -> Nodes:
        """Return the slots by weight, and in the cluster's order within one weight."""
        weights: dict[GpuType, int] = {}
        found: list[tuple[int, int, Slot]] = []
        for at, node in enumerate(cluster.nodes):
            for slot, _ in node.slots:
                weight = weights.setdefault(slot.gpu_type, len(weights))
                found.append((weight, at, slot))
        found.sort(key=lambda each: each[:2])
        return cls(
            tuple(slot for _, _, slot in found),
            tuple(weight for weight, _, _ in found),
            tuple(at for _, at, _ in found),
        )


def take_nodes(
    candidates: Sequence[int], wanted: Shape, nodes: Nodes, jobs_on: Counts
) -> Taken | None:
    """Return the GPUs of a layout on some of the slots with room, sorted; None: too few.

    `jobs_on`: the number of jobs on the node of each slot.
    """
    num_nodes, size = wanted
    if len({nodes.node_of[at] for at in candidates}) < num_nodes:
        return None
    taken: dict[int, int] = {}
    used: set[int] = set()
    runs = _runs([((nodes.weights[at], 0), at) for at in candidates], nodes.node_of)
    while runs and len(taken) < num_nodes:
        left = num_nodes - len(taken)
        run = _best(runs, partial(_has_nodes, left), jobs_on)
        runs.remove(run)
        free = [at for at in run.slots if nodes.node_of[at] not in used]
        chosen = [_busiest(free, jobs_on)] if left == 1 and free else free[:left]
        taken.update(dict.fromkeys(chosen, size))
        used.update(nodes.node_of[at] for at in chosen)
    return taken if len(taken) == num_nodes else None


def take_any(
    candidates: Sequence[int],
    size: int,
    nodes: Nodes,
    *,
    room: Counts,
    jobs_on: Counts,
    is_newer: bool = False,
) -> Taken | None:
    """Return `size` GPUs on any of the slots, in any split; None where there are too few."""
    if sum(room[at] for at in candidates) < size:
        return None
    # Of one weight, nodes with more free GPUs that the job could use go first.
    runs = _runs(
        [((nodes.weights[at], -min(size, room[at])), at) for at in candidates], nodes.node_of
    )
    chosen: list[int] = []
    got = 0
    while got < size:
        left = size - got
        run = _best(runs, partial(_holds, room, left), jobs_on)
        runs.remove(run)
        enough = [at for at in run.slots if room[at] >= left]
        for at in [_busiest(enough, jobs_on)] if enough else run.slots:
            if got < size:
                chosen.append(at)
                got += room[at]
    in_order = chosen if is_newer else sorted(chosen, key=lambda at: nodes.node_of[at])
    return _split(in_order, size, room)


def _split(chosen: Sequence[int], size: int, room: Counts) -> Taken:
    """Return how many GPUs each of the chosen slots gives: in order, one at least for each."""
    taken: dict[int, int] = {}
    for behind, at in zip(range(len(chosen) - 1, -1, -1), chosen, strict=True):
        taken[at] = min(room[at], size - behind)
        size -= taken[at]
    return taken


class _Run(NamedTuple):
    """Slots of one weight on consecutive nodes."""

    weight: tuple[int, int]
    slots: list[int]


def _runs(slots: Iterable[tuple[tuple[int, int], int]], node_of: tuple[int, ...]) -> list[_Run]:
    """Return the runs of slots, given with their weights in the order of nodes."""
    runs: list[_Run] = []
    for weight, at in slots:
        last = runs[-1] if runs else None
        if last and last.weight == weight and node_of[at] - node_of[last.slots[-1]] == 1:
            last.slots.append(at)
        else:
            runs.append(_Run(weight, [at]))
    return runs


def _best(runs: Sequence[_Run], is_enough: Callable[[_Run], bool], jobs_on: Counts) -> _Run:
    """Return the run that Slurm takes next."""
    best, cpus, suffices = runs[0], _idle(runs[0], jobs_on), is_enough(runs[0])
    for run in runs[1:]:
        idle, enough = _idle(run, jobs_on), is_enough(run)
        is_better = run.weight < best.weight
        if run.weight == best.weight:
            # As Slurm's source has it: a run that does not suffice, but has more idle CPUs, goes
            # before one that does.
            is_better = (not suffices or idle < cpus) if enough else idle > cpus
        if is_better:
            best, cpus, suffices = run, idle, enough
    return best


def _has_nodes(number: int, run: _Run) -> bool:
    return len(run.slots) >= number


def _holds(room: Counts, size: int, run: _Run) -> bool:
    return sum(room[at] for at in run.slots) >= size


def _idle(run: _Run, jobs_on: Counts) -> int:
    return sum(_CPUS - jobs_on[at] for at in run.slots)


def _busiest(slots: Sequence[int], jobs_on: Counts) -> int:
    """Return the slot on the node with the fewest idle CPUs, the first of equal ones."""
    return max(slots, key=lambda at: jobs_on[at])
