"""From a candidate to nodes: keep who stays, then the largest pieces first, best fit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from hadar_slurm.core.cluster import (
    Cluster,
    GpuType,
    JobId,
    Node,
    NodeName,
    Slot,
    natural_key,
)
from hadar_slurm.core.gang import Gang
from hadar_slurm.core.job import Job
from hadar_slurm.core.snapshot import Snapshot
from hadar_slurm.policies.candidates import Candidate


@dataclass
class Packing:
    """Gangs placed so far in one round, and what is left of every slot."""

    snapshot: Snapshot
    free: dict[Slot, int]
    placed: dict[JobId, tuple[Candidate, Gang]] = field(default_factory=dict)

    @property
    def value(self) -> float:
        """Return the utility of all that is placed."""
        return sum(candidate.value for candidate, _ in self.placed.values())

    def place(self, candidate: Candidate) -> bool:
        """Put a candidate on nodes if it fits, and say whether it did."""
        gang = candidate.present or self._find(candidate)
        if gang is None or any(self.free.get(slot, 0) < n for slot, n in gang.slots):
            return False
        for slot, count in gang.slots:
            self.free[slot] -= count
        self.placed[candidate.job.job_id] = (candidate, gang)
        return True

    def _find(self, candidate: Candidate) -> Gang | None:
        """Return nodes for a candidate that is to start anew, or None."""
        kinds = Counter(candidate.types)
        counts: dict[tuple[str, str], int] = {}
        taken: set[NodeName] = set()
        for kind, num_nodes in sorted(kinds.items()):
            fits = self._nodes_that_fit(candidate, kind, len(kinds) > 1, taken)
            if len(fits) < num_nodes:
                return None
            for name in fits[:num_nodes]:
                taken.add(name)
                counts[name, kind] = candidate.gpus_per_node
        return Gang.of(counts)

    def _nodes_that_fit(
        self, candidate: Candidate, kind: GpuType, is_mixed: bool, taken: set[NodeName]
    ) -> list[NodeName]:
        """Return nodes able to give a candidate its GPUs of `kind`, the tightest fit first.

        Nodes of a single type go first: on others the request has to name the type. Where that
        binds, a job that may move takes only its fastest type there, not to be bound to a slow one.
        """
        job = candidate.job
        may_name = (
            not self.snapshot.rules.naming_binds
            or job.bound_type is not None
            or not job.spec.can_checkpoint
            or kind in _fastest_types(job, self.snapshot.cluster)
        )

        def is_open(node: Node) -> bool:
            # Slurm cannot be told which type to take where the request names none.
            is_open_request = is_mixed and self.snapshot.rules.is_uniform
            is_clear = node.has_one_type or (may_name and not is_open_request)
            is_allowed = job.may_use(node.name) and node.name not in taken
            return node.is_schedulable and is_clear and is_allowed

        fits = [
            (
                not node.has_one_type,
                self.free.get(Slot(node.name, kind), 0),
                natural_key(node.name),
                node.name,
            )
            for node in self.snapshot.cluster.nodes
            if is_open(node)
        ]
        return [name for _, left, _, name in sorted(fits) if left >= candidate.gpus_per_node]


def _fastest_types(job: Job, cluster: Cluster) -> frozenset[GpuType]:
    """Return the GPU types on which a job trains fastest, of those that could hold its gang."""
    rates: dict[GpuType, float] = {}
    for shape in job.spec.shapes:
        num_nodes = Counter(
            slot.gpu_type
            for slot, count in cluster.capacity.items()
            if count >= shape.gpus_per_node and job.may_use(slot.node)
        )
        for kind in (kind for kind, number in num_nodes.items() if number >= shape.nodes):
            rate = job.spec.rates.on(kind, job.spec.num_gpus, is_spread=shape.nodes > 1)
            rates[kind] = max(rate, rates.get(kind, 0.0))
    return frozenset(kind for kind, rate in rates.items() if rate >= max(rates.values()))


def pack(snapshot: Snapshot, free: Mapping[Slot, int], chosen: Iterable[Candidate]) -> Packing:
    """Place the chosen candidates: those that stay, then the others, large pieces first."""
    packing = Packing(snapshot, dict(free))
    order = sorted(
        chosen,
        key=lambda c: (
            c.present is None,
            -c.gpus_per_node,
            -c.value,
            natural_key(c.job.job_id),
        ),
    )
    for candidate in order:
        packing.place(candidate)
    return packing
