"""Who holds what in one mode, from round to round."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from hadar_slurm.core.cluster import JobId
from hadar_slurm.journal import gang_from_tree
from hadar_slurm.metrics import Segments
from hadar_slurm.web.lines import Tree, slots_of


@dataclass
class Book:
    """Who holds what in one mode, with the gangs as the journal has them."""

    segments: Segments
    trees: dict[tuple[JobId, int], Tree] = field(default_factory=dict)

    def start(self, job_id: JobId, copy: int, tree: Tree, now_s: float) -> None:
        """Note that a copy has a gang, unless that is known."""
        key = (job_id, copy)
        if self.trees.get(key) == tree:
            return
        self.stop(job_id, copy, now_s)
        self.trees[key] = tree
        gang = gang_from_tree({node: dict(gpus) for node, gpus in tree.items()})
        self.segments.start(job_id, copy, gang, now_s)

    def stop(self, job_id: JobId, copy: int, now_s: float) -> None:
        """Note that a copy has none any more."""
        if self.trees.pop((job_id, copy), None) is not None:
            self.segments.stop(job_id, copy, now_s)

    def hold(self, holds: Mapping[tuple[JobId, int], Tree], now_s: float) -> None:
        """Take in what all jobs hold now."""
        for job_id, copy in [key for key in self.trees if key not in holds]:
            self.stop(job_id, copy, now_s)
        for (job_id, copy), tree in holds.items():
            self.start(job_id, copy, tree, now_s)

    def end(self, job_id: JobId, end_s: float) -> None:
        """Note that a job has ended, and when, which was not before it began."""
        for copy, (_, start_s) in list(self.segments.open.get(job_id, {}).items()):
            self.stop(job_id, copy, max(start_s, end_s))

    def slots(self) -> Counter[tuple[str, str]]:
        """Return how many GPUs are held by (node, type)."""
        held: Counter[tuple[str, str]] = Counter()
        for tree in self.trees.values():
            held.update(slots_of(tree))
        return held
