"""Which samples of a step this process trains."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from hadar_slurm.runtime.intervals.member import Member
from hadar_slurm.runtime.samples import part_of

# (samples of a step, one of its parts, number of parts) -> which of the samples.
Share = Callable[[int, int, int], slice]


@dataclass(frozen=True)
class Sharing:
    """The share of one process of one copy."""

    member: Member

    def of(self, size: int, part: int = 0, parts: int = 1) -> slice:
        """Return which of a step's `size` samples are this process's, in one of `parts` parts.

        To be called for the current step: copies that train it together expect the gradients.
        Raises ValueError where `part` is not one of `parts`.
        """
        synchronous = self.member.synchronous
        if synchronous is None:
            return self._own(size, part, parts)
        synchronous.fitness.expect(parts)
        if not synchronous.is_training:
            return self._own(size, part, parts)
        return _within(synchronous.part(size, parts), size, part, parts)

    def foreseen(self) -> Share:
        """Return a function like `of` for the steps to come, by what is known now."""
        synchronous = self.member.synchronous
        if synchronous is None or not synchronous.is_training:
            return self._own
        pace, copy = replace(synchronous.grouping.pace), synchronous.copy
        return lambda size, part, parts: _within(pace.part(copy, size, parts)[0], size, part, parts)

    def _own(self, size: int, part: int, parts: int) -> slice:
        """Return the share of this process in a step that its copy trains alone."""
        rank, ranks = self.member.where.rank, self.member.where.ranks
        return part_of(size, part * ranks + rank, parts * ranks)


def _within(share: slice, size: int, part: int, parts: int) -> slice:
    mine = range(size)[share]
    found = mine[part_of(len(mine), part, parts)]
    return slice(found.start, found.stop)
