"""A parsed trace: jobs, their places in the file, and skipped records with reasons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.job import JobSpec
from hadar_slurm.lab.traces.speeds import TypeSpeed


@dataclass(frozen=True, slots=True)
class Skipped:
    """Records skipped for one reason; `first` is the place and name of the first one."""

    reason: str
    count: int
    first: str

    def __str__(self) -> str:
        return f"{self.count} left out: {self.reason}, such as {self.first}"


class RecordedTimes(NamedTuple):
    """When a job really started and ended, in seconds after its submission."""

    queued_s: float
    jct_s: float


@dataclass(frozen=True, slots=True)
class Trace:
    """A parsed workload."""

    form: str
    # In order of arrival, from 0 s.
    jobs: tuple[JobSpec, ...]
    # The `file:line` of every job.
    places: Mapping[JobId, str]
    # Records that are no jobs.
    skipped: tuple[Skipped, ...] = ()
    # Sentences on assumptions and unused values.
    notes: tuple[str, ...] = ()
    # The speeds of GPU types that jobs have without throughputs of their own.
    speeds: tuple[TypeSpeed, ...] = ()
    # The GPU types that each job held, in lower case; empty for formats that do not say it.
    held: Mapping[JobId, frozenset[str]] = field(default_factory=dict)
    # What was recorded of jobs whose start is known; empty for formats that do not say it.
    recorded: Mapping[JobId, RecordedTimes] = field(default_factory=dict)

    def first(self, number: int | None) -> Trace:
        """Return the trace with the first `number` jobs only; None keeps all."""
        jobs = self.jobs[:number]
        return replace(self, jobs=jobs, places={job.job_id: self.place(job) for job in jobs})

    def place(self, job: JobSpec) -> str:
        """Return the `file:line` of a job."""
        return self.places[job.job_id]


def by_arrival(jobs: Sequence[JobSpec]) -> tuple[JobSpec, ...]:
    """Return jobs in order of submission, times in seconds from the first submission.

    Jobs submitted at the same time keep their order.
    """
    start_s = min(job.submitted_s for job in jobs)
    in_order = sorted(jobs, key=lambda job: job.submitted_s)
    return tuple(replace(job, submitted_s=job.submitted_s - start_s) for job in in_order)


class Tally:
    """Counts skipped records by reason, in order of first occurrence."""

    def __init__(self) -> None:
        self._found: dict[str, Skipped] = {}

    def add(self, reason: str, example: str) -> None:
        """Count one record; `example` is its place and name."""
        before = self._found.get(reason, Skipped(reason, 0, example))
        self._found[reason] = replace(before, count=before.count + 1)

    def skipped(self) -> tuple[Skipped, ...]:
        """Return all counts."""
        return tuple(self._found.values())
