"""What the jobs that have ended say of the sizes of others. Standard library only, no I/O.

`Durations` turns them into estimates; this has the jobs themselves, so that they can be kept, and
the one rule by which an estimate becomes a number of steps, in replays and for live jobs alike.

Users are not trusted. A run time is Slurm's own measurement, so a user can lie only with jobs that
really run, and these say most of that user's own jobs: for others a user counts as at most thirty
jobs (core/durations.py). No job's size goes beyond its time limit, and a job that outlives what is
known is taken to train about as long again.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.durations import Durations
from hadar_slurm.core.type_failures import Work

# With fewer ended jobs on a site its jobs go by their time limits.
LEAST_JOBS = 20
# The origin of a size names the narrowest level with so many jobs.
_TELLING = 3


class EndedJob(NamedTuple):
    """A job that has ended: its service in seconds on its fastest GPU type."""

    job_id: JobId
    # Since the epoch.
    ended_s: float
    work: Work
    service_s: float

    @property
    def key(self) -> tuple[JobId, int]:
        """Return what tells a job from all others, also from a later one of the same number."""
        return self.job_id, round(self.ended_s)


Key = tuple[JobId, int]


@dataclass
class EndedJobs:
    """The ended jobs of a site. `version` changes with them; `news` are not yet saved."""

    durations: Durations = field(default_factory=Durations)
    jobs: dict[Key, EndedJob] = field(default_factory=dict)
    news: set[Key] = field(default_factory=set)
    version: int = 0
    _counts: Counter[tuple[object, ...]] = field(default_factory=Counter)

    @classmethod
    def of(cls, jobs: Iterable[EndedJob]) -> EndedJobs:
        """Return these jobs, none of them news."""
        found = cls()
        for job in sorted(jobs, key=lambda job: job.ended_s):
            found._count(job)
        found.durations.renew()
        return found

    def add(self, job: EndedJob) -> bool:
        """Count a job, once; return whether it is new."""
        if job.key in self.jobs:
            self.durations.forget(job.job_id)
            return False
        self._count(job)
        self.news.add(job.key)
        return True

    def take_over(self, others: EndedJobs) -> None:
        """Replace all but the news by other jobs; what trains is to be seen again."""
        mine = [self.jobs[key] for key in self.news]
        merged = EndedJobs.of([*others.jobs.values(), *(j for j in mine if j.key not in others)])
        self.durations, self.jobs = merged.durations, merged.jobs
        self._counts = merged._counts
        self.version += 1

    def __contains__(self, key: object) -> bool:
        return key in self.jobs

    @property
    def suffice(self) -> bool:
        """Whether enough jobs have ended to say anything of others."""
        return len(self.jobs) >= LEAST_JOBS

    def origin(self, work: Work) -> str:
        """Return in words which jobs an estimate rests on most."""
        user, family = work.workload.user, work.workload.family
        gpus = "1 GPU" if work.num_gpus == 1 else f"{work.num_gpus} GPUs"
        levels = (
            (_levels(work)[3], f"of {work.workload.name} on {gpus}"),
            (_levels(work)[2], f"of {work.workload.name}"),
            (_levels(work)[1], f"of {family}"),
            (_levels(work)[0], f"of {user}"),
        )
        for key, words in levels:
            if (number := self._counts[key]) >= _TELLING:
                return f"{number} ended jobs {words}"
        return f"{len(self.jobs)} ended jobs of this site"

    def _count(self, job: EndedJob) -> None:
        self.durations.end(job.job_id, job.work, job.service_s)
        self.jobs[job.key] = job
        self._counts.update(_levels(job.work))
        self.version += 1


def _levels(work: Work) -> tuple[tuple[object, ...], ...]:
    user, name, family = work.workload.user, work.workload.name, work.workload.family
    return (user,), (user, "", family), (user, name), (user, name, work.num_gpus)


def learned_steps(
    durations: Durations, work: Work, *, done: float, best: float, limit_steps: float
) -> int:
    """Return the total steps that a job is taken to have.

    `done`: its steps so far, `best`: its steps/s on its fastest type, `limit_steps`: as many as fit
    its time limit, inf without one.
    """
    left_s = durations.left_s(work, done / best, limit_steps / best)
    return max(1, math.ceil(done + left_s * best))
