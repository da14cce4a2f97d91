"""What comes of reading a trace: jobs, where each stood, and what was left out and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.job import JobSpec


@dataclass(frozen=True, slots=True)
class Skipped:
    """Records left out for one reason; `first` is the place and the name of the first of them."""

    reason: str
    count: int
    first: str

    def __str__(self) -> str:
        return f"{self.count} left out: {self.reason}, such as {self.first}"


@dataclass(frozen=True, slots=True)
class Trace:
    """A workload as read; `jobs` are in the order of their arrival, the first at 0 s or later.

    `places` has the `file:line` of every job, `skipped` all records that became no job, and `notes`
    say in sentences what was assumed or not used.
    """

    form: str
    jobs: tuple[JobSpec, ...]
    places: Mapping[JobId, str]
    skipped: tuple[Skipped, ...] = ()
    notes: tuple[str, ...] = ()

    def first(self, number: int | None) -> Trace:
        """Return the trace with the first so many jobs only; None takes all."""
        jobs = self.jobs[:number]
        return replace(self, jobs=jobs, places={job.job_id: self.place(job) for job in jobs})

    def place(self, job: JobSpec) -> str:
        """Return the `file:line` a job came from."""
        return self.places[job.job_id]


def by_arrival(jobs: Sequence[JobSpec]) -> tuple[JobSpec, ...]:
    """Return jobs in the order of their submission, times counted from the first, in seconds.

    Jobs of one instant stay in the order they are given in.
    """
    start_s = min(job.submitted_s for job in jobs)
    in_order = sorted(jobs, key=lambda job: job.submitted_s)
    return tuple(replace(job, submitted_s=job.submitted_s - start_s) for job in in_order)


class Tally:
    """Counts what is left out, by reason, in the order in which the reasons first came up."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[int, str]] = {}

    def add(self, reason: str, example: str) -> None:
        """Count one record; `example` is its place and name."""
        count, first = self._found.get(reason, (0, example))
        self._found[reason] = (count + 1, first)

    def skipped(self, before: Iterable[Skipped] = ()) -> tuple[Skipped, ...]:
        """Return all that was counted, after what others counted `before`."""
        return (
            *before,
            *(Skipped(reason, count, first) for reason, (count, first) in self._found.items()),
        )
