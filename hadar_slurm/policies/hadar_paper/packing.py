"""Finds nodes for candidates: first those in place, then the largest pieces, best fit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from hadar_slurm.core.cluster import JobId, NodeName, Slot, natural_key
from hadar_slurm.core.gang import Gang
from hadar_slurm.placement.eligibility import Eligibility
from hadar_slurm.policies.hadar_paper.candidates import Candidate


@dataclass
class Packing:
    """Gangs placed so far in one round, and the GPUs left of every slot."""

    reach: Eligibility
    free: dict[Slot, int]
    placed: dict[JobId, tuple[Candidate, Gang]] = field(default_factory=dict)

    @property
    def value(self) -> float:
        """Return the utility of all that is placed."""
        return sum(candidate.value for candidate, _ in self.placed.values())

    def place(self, candidate: Candidate) -> bool:
        """Put a candidate on nodes if it fits; return whether it did."""
        gang = candidate.present or self._find(candidate)
        if gang is None or any(self.free.get(slot, 0) < n for slot, n in gang.slots):
            return False
        for slot, count in gang.slots:
            self.free[slot] -= count
        self.placed[candidate.job.job_id] = (candidate, gang)
        return True

    def _find(self, candidate: Candidate) -> Gang | None:
        """Return nodes for a candidate that is not in place, or None.

        The tightest fit goes first, nodes of a single type before all others, so that the request
        need not name the type.
        """
        gpu_types, size = Counter(candidate.types), candidate.gpus_per_node
        counts: dict[tuple[str, str], int] = {}
        taken: set[NodeName] = set()
        for gpu_type, num_nodes in sorted(gpu_types.items()):
            nodes = self.reach.nodes(candidate.job, gpu_type, is_mixed=len(gpu_types) > 1)
            fits = sorted(
                (not node.has_one_type, left, natural_key(node.name), node.name)
                for node in nodes
                if node.name not in taken
                and (left := self.free.get(Slot(node.name, gpu_type), 0)) >= size
            )
            if len(fits) < num_nodes:
                return None
            for *_, name in fits[:num_nodes]:
                taken.add(name)
                counts[name, gpu_type] = size
        return Gang.of(counts)


def pack(reach: Eligibility, free: Mapping[Slot, int], chosen: Iterable[Candidate]) -> Packing:
    """Place the chosen candidates: those in place, then the others, large pieces first."""
    packing = Packing(reach, dict(free))

    def rank(c: Candidate) -> tuple[object, ...]:
        return (c.present is None, -c.gpus_per_node, -c.value, natural_key(c.job.job_id))

    for candidate in sorted(chosen, key=rank):
        packing.place(candidate)
    return packing
