"""Values of jobs in canonical order, of which copies cost little."""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from hadar_slurm.core.cluster import JobId, natural_key

V = TypeVar("V")


@dataclass(eq=False, slots=True)
class InOrder(Generic[V]):
    """Some jobs, each with a value."""

    # In canonical order.
    ids: list[JobId] = field(default_factory=list)
    _values: dict[JobId, V] = field(default_factory=dict)

    def put(self, job_id: JobId, value: V) -> None:
        """Give a job a value; add the job if it is not there."""
        if job_id not in self._values:
            insort(self.ids, job_id, key=natural_key)
        self._values[job_id] = value

    def drop(self, job_id: JobId) -> None:
        """Remove a job if it is there."""
        if job_id in self._values:
            del self._values[job_id]
            del self.ids[bisect_left(self.ids, natural_key(job_id), key=natural_key)]

    def copy(self) -> dict[JobId, V]:
        """Return the values by job, in order."""
        return dict(zip(self.ids, map(self._values.__getitem__, self.ids), strict=True))
