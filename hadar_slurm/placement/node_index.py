"""Nodes of one GPU type, indexed by their number of free GPUs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from heapq import heappop, heappush
from operator import attrgetter

from hadar_slurm.core.cluster import Cluster, GpuType, Node, NodeName, Slot

# Sorts nodes: those of a single type first, then those that are awake, then in the cluster's order.
Rank = tuple[bool, int, NodeName]


class NodeIndex:
    """Open nodes with GPUs of one type.

    Nodes of a single type go before all others, so that a request need not name the type; among
    equals those that are powered up go first, then the order is the cluster's.
    """

    def __init__(self, ranks: Mapping[NodeName, Rank], free: Mapping[NodeName, int]) -> None:
        self._rank = ranks
        self._free = dict(free)
        self.total = sum(self._free.values())
        # A heap of ranks for each number of free GPUs; outdated entries are dropped when met. Made
        # when first needed: until then, changes are cheap.
        self._levels: list[list[Rank]] = []

    @classmethod
    def open_nodes(cls, cluster: Cluster, gpu_type: GpuType, free: Mapping[Slot, int]) -> NodeIndex:
        """Return the index of a cluster's open nodes, with the free GPUs of each slot."""
        slots, ranks = _open_ranks(cluster, gpu_type)
        return cls(ranks, dict(zip(ranks, map(free.__getitem__, slots), strict=True)))

    def change(self, name: NodeName, by: int) -> None:
        """Add to the free GPUs of a node; nodes outside the index are ignored."""
        if name not in self._free or not by:
            return
        free = self._free[name] = self._free[name] + by
        self.total += by
        if self._levels:
            self._levels += [[] for _ in range(len(self._levels), free + 1)]
            heappush(self._levels[free], self._rank[name])

    def tightest(
        self, gpus: int, num_nodes: int, among: Collection[NodeName] | None = None
    ) -> list[NodeName] | None:
        """Return `num_nodes` nodes with `gpus` free, the tightest fits, or None."""
        if self.total < gpus * num_nodes:
            return None
        found = self.with_room(gpus, among, num_nodes)
        return found if len(found) == num_nodes else None

    def with_room(self, gpus: int, among: Collection[NodeName] | None, most: int) -> list[NodeName]:
        """Return up to `most` nodes with `gpus` free, the tightest fits first."""
        if among is not None:
            fits = sorted(
                (self._rank[name][0], self._free[name], self._rank[name])
                for name in among
                if self._free.get(name, 0) >= gpus
            )
            return [rank[2] for _, _, rank in fits[:most]]
        if not self._levels:
            self._fill_levels()
        found: list[NodeName] = []
        for is_mixed in (False, True):
            for level in range(gpus, len(self._levels)):
                if len(found) >= most:
                    return found
                found += self._first(level, most - len(found), is_mixed=is_mixed)
        return found

    def _fill_levels(self) -> None:
        """Put each node where its free GPUs are; lists in rising order are heaps."""
        self._levels = [[] for _ in range(max(self._free.values(), default=0) + 1)]
        for name, rank in self._rank.items():
            self._levels[self._free[name]].append(rank)

    def _first(self, level: int, most: int, *, is_mixed: bool) -> list[NodeName]:
        """Return the first nodes of one level in order, without removing them."""
        heap = self._levels[level]
        kept: list[Rank] = []
        names: list[NodeName] = []
        while heap and len(names) < most:
            rank = heappop(heap)
            if self._free[rank[2]] != level or (kept and kept[-1] == rank):
                continue
            kept.append(rank)
            if rank[0] == is_mixed:
                names.append(rank[2])
            elif rank[0]:
                break
        for rank in kept:
            heappush(heap, rank)
        return names

    def scatter(self, gpus: int, among: Collection[NodeName] | None) -> dict[NodeName, int] | None:
        """Return `gpus` GPUs on one node if possible, else on those with most GPUs free first."""
        whole = self.with_room(gpus, among, 1)
        if whole:
            return {whole[0]: gpus}
        some = self._free if among is None else among
        names = [name for name in some if self._free.get(name, 0) > 0]
        counts: dict[NodeName, int] = {}
        for name in sorted(names, key=lambda name: (-self._free[name], self._rank[name])):
            if gpus > 0:
                counts[name] = min(gpus, self._free[name])
                gpus -= counts[name]
        return counts if gpus <= 0 else None


def ranked(nodes: Iterable[Node]) -> dict[NodeName, Rank]:
    """Return the rank of each node, in rising order."""
    awake_first = sorted(nodes, key=attrgetter("is_asleep"))
    ranks = ((not node.has_one_type, index, node.name) for index, node in enumerate(awake_first))
    return {rank[2]: rank for rank in sorted(ranks)}


@lru_cache(maxsize=64)
def _open_ranks(
    cluster: Cluster, gpu_type: GpuType
) -> tuple[tuple[Slot, ...], dict[NodeName, Rank]]:
    """Return the slots of a type on open nodes, and the nodes' ranks in the same order."""
    ranks = ranked(node for node, _ in cluster.open_by_type[gpu_type])
    return tuple(Slot(name, gpu_type) for name in ranks), ranks
