"""Nodes and the GPUs they hold.

A GPU type keeps the spelling Slurm gives it, because Slurm's updates need it; look-ups of
throughputs ignore case (`throughput.Throughputs`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import NamedTuple, NewType, TypeAlias, TypeVar

JobId = NewType("JobId", str)
NodeName = NewType("NodeName", str)
GpuType = NewType("GpuType", str)
# An index into the cluster's GPU types in canonical order, as in `Allocator.gpu_types`.
TypeIndex: TypeAlias = int

K = TypeVar("K")
N = TypeVar("N", bound=str)


class Slot(NamedTuple):
    """Where GPUs can be taken: one GPU type on one node."""

    node: NodeName
    gpu_type: GpuType


@dataclass(frozen=True)
class Node:
    """A machine with `gpus` of each type.

    `is_schedulable` is false while the node is down, drained or reserved: what runs there may
    stay, nothing new may start. A node that `is_asleep` is powered up for a job: others go first.
    """

    name: NodeName
    gpus: tuple[tuple[GpuType, int], ...]
    is_schedulable: bool = True
    is_asleep: bool = False

    @classmethod
    def of(
        cls,
        name: str,
        gpus: Mapping[str, int],
        *,
        is_schedulable: bool = True,
        is_asleep: bool = False,
    ) -> Node:
        """Return a node from a mapping of GPU type to count."""
        counts = sorted((GpuType(gpu_type), count) for gpu_type, count in gpus.items() if count)
        return cls(NodeName(name), tuple(counts), is_schedulable, is_asleep)

    @cached_property
    def by_type(self) -> Mapping[GpuType, int]:
        """Return the number of GPUs by type."""
        return dict(self.gpus)

    @property
    def has_one_type(self) -> bool:
        """Whether all GPUs of the node are of one type."""
        return len(self.gpus) == 1

    @cached_property
    def slots(self) -> tuple[tuple[Slot, int], ...]:
        """Return each slot of the node with its number of GPUs."""
        return tuple((Slot(self.name, gpu_type), count) for gpu_type, count in self.gpus)


@dataclass(frozen=True)
class Cluster:
    """All nodes, by name in natural order."""

    nodes: tuple[Node, ...]

    @classmethod
    def of(cls, nodes: Iterable[Node]) -> Cluster:
        """Return a cluster with its nodes in canonical order."""
        return cls(tuple(sorted(nodes, key=lambda node: natural_key(node.name))))

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(self.nodes)

    @cached_property
    def by_name(self) -> Mapping[NodeName, Node]:
        """Return the nodes by name."""
        return {node.name: node for node in self.nodes}

    @cached_property
    def capacity(self) -> Mapping[Slot, int]:
        """Return the number of GPUs in every slot, schedulable or not."""
        return {slot: count for node in self.nodes for slot, count in node.slots}

    @cached_property
    def gpus_by_type(self) -> Mapping[GpuType, int]:
        """Return the number of GPUs of each type, schedulable or not."""
        total = summed((slot.gpu_type, count) for slot, count in self.capacity.items())
        return dict(sorted(total.items()))

    @cached_property
    def open_by_type(self) -> Mapping[GpuType, tuple[tuple[Node, Slot], ...]]:
        """Return, by type, the nodes that take work and have such GPUs, with their slots."""
        found: dict[GpuType, list[tuple[Node, Slot]]] = {name: [] for name in self.gpus_by_type}
        for node in self.nodes:
            for slot, _ in node.slots if node.is_schedulable else ():
                found[slot.gpu_type].append((node, slot))
        return {gpu_type: tuple(pairs) for gpu_type, pairs in found.items()}

    @cached_property
    def open_names(self) -> frozenset[NodeName]:
        """Return the names of the nodes that take work."""
        return frozenset(node.name for node in self.nodes if node.is_schedulable)

    @cached_property
    def is_plain(self) -> bool:
        """Whether every node has a single GPU type."""
        return all(node.has_one_type for node in self.nodes)

    def largest_node(self, gpu_type: GpuType) -> int:
        """Return the most GPUs of one type that a single node has."""
        return self._largest.get(gpu_type, 0)

    @cached_property
    def _largest(self) -> dict[GpuType, int]:
        by_size = sorted(self.capacity.items(), key=lambda item: item[1])
        return {slot.gpu_type: count for slot, count in by_size}

    def all_open(self) -> Cluster:
        """Return the cluster as it would be if every node took work."""
        return Cluster(tuple(replace(node, is_schedulable=True) for node in self.nodes))


def summed(pairs: Iterable[tuple[K, int]]) -> Counter[K]:
    """Return the sum of the numbers of each key."""
    total: dict[K, int] = {}
    for key, number in pairs:
        total[key] = total.get(key, 0) + number
    return Counter(total)


def naturally_sorted(names: Iterable[N]) -> list[N]:
    """Return names sorted by `natural_key`."""
    # Without a key of two parts; almost sorted names, the usual case, take little time.
    by_length = groupby(sorted(names, key=len), key=len)
    return [name for _, alike in by_length for name in sorted(alike)]


def natural_key(name: str) -> tuple[int, str]:
    """Return a sort key that puts n2 before n10 and job 9 before job 10."""
    return (len(name), name)
