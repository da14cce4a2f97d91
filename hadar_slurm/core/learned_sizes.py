"""What the jobs that have ended say of the sizes of others. Standard library only, no I/O.

`Durations` turns them into estimates; this has the jobs themselves, so that they can be kept, and
the one rule by which an estimate becomes a number of steps, in replays and for live jobs alike.

Users are not trusted. A run time is Slurm's own measurement, so a user can lie only with jobs that
really run, and these say most of that user's own jobs: for others a user counts as at most ten
jobs (core/lengths/durations.py). No job's size goes beyond its time limit, and a job that outlives
what is known is taken to train about as long again.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.type_failures import Unsized, Work

if TYPE_CHECKING:
    from hadar_slurm.core.lengths.belief import Belief
    from hadar_slurm.core.lengths.durations import Durations

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
    # Its time limit as its user gave it; inf: none, or not known.
    asked_s: float = math.inf

    @property
    def unsized(self) -> Unsized:
        """Return what was known of it before it trained."""
        return Unsized(self.work, self.asked_s, self.asked_s)

    @property
    def trained(self) -> tuple[JobId, Unsized, float, float, float]:
        """Return it as lengths.Trained, as if it had run on its fastest type."""
        began_s = self.ended_s - self.service_s
        return self.job_id, self.unsized, began_s, self.ended_s, self.service_s

    @property
    def key(self) -> tuple[JobId, int]:
        """Return what tells a job from all others, also from a later one of the same number."""
        return self.job_id, round(self.ended_s)


Key = tuple[JobId, int]


@dataclass
class EndedJobs:
    """The ended jobs of a site. `version` changes with them; `news` are not yet saved."""

    jobs: dict[Key, EndedJob] = field(default_factory=dict)
    news: set[Key] = field(default_factory=set)
    version: int = 0
    _counts: Counter[tuple[object, ...]] = field(default_factory=Counter)
    _durations: Durations | None = None  # until it is asked for
    # The version of which the coverage was last asked for.
    _told: int = 0

    @classmethod
    def of(cls, jobs: Iterable[EndedJob]) -> EndedJobs:
        """Return these jobs, none of them news."""
        found = cls()
        for job in sorted(jobs, key=lambda job: job.ended_s):
            found._count(job)
        return found

    @property
    def durations(self) -> Durations:
        """Return what the jobs say of others."""
        if self._durations is None:
            # Loaded where enough jobs have ended.
            from hadar_slurm.core.lengths.durations import Durations, Trained

            self._durations = Durations.of(Trained(*job.trained) for job in self.jobs.values())
        return self._durations

    def take_coverage(self) -> dict[str, float]:
        """Return how many jobs were judged, and the share beyond each believed quantile.

        {} where too few have ended, and where none has since the last call.
        """
        if not self.suffice or self._told == self.version:
            return {}
        self._told, coverage = self.version, self.durations.coverage
        return {"jobs": round(coverage.jobs), **coverage.by_name()}

    def add(self, job: EndedJob) -> bool:
        """Count a job, once; return whether it is new."""
        known = self.jobs.get(job.key)
        if known and self._durations:
            self._durations.forget(job.job_id)
        if known and not known.asked_s == math.inf > job.asked_s:
            return False
        self.news.add(job.key)
        if known:  # kept by a version without time limits
            self.jobs[job.key] = job
            return False
        if self._durations:
            self._durations.end(job.job_id, job.unsized, job.service_s)
        self._count(job)
        return True

    def take_over(self, others: EndedJobs) -> None:
        """Replace all but the news by other jobs; what trains is to be seen again."""
        merged = EndedJobs.of(others.jobs.values())
        for key in sorted(self.news):
            merged.add(self.jobs[key])
        self.jobs, self._counts, self._durations = merged.jobs, merged._counts, None
        self.version += 1

    def __contains__(self, key: object) -> bool:
        return key in self.jobs

    @property
    def suffice(self) -> bool:
        """Whether enough jobs have ended to say anything of others."""
        return len(self.jobs) >= LEAST_JOBS

    def origin(self, work: Work) -> str:
        """Return in words which jobs an estimate rests on most."""
        user = work.workload.user
        gpus = "1 GPU" if work.num_gpus == 1 else f"{work.num_gpus} GPUs"
        levels = (
            (_levels(work)[2], f"of {work.workload.name} on {gpus}"),
            (_levels(work)[1], f"of {work.workload.name}"),
            (_levels(work)[0], f"of {user}"),
        )
        for key, words in levels:
            if (number := self._counts[key]) >= _TELLING:
                return f"{number} ended jobs {words}"
        return f"{len(self.jobs)} ended jobs of this site"

    def _count(self, job: EndedJob) -> None:
        self.jobs[job.key] = job
        self._counts.update(_levels(job.work))
        self.version += 1


def _levels(work: Work) -> tuple[tuple[object, ...], ...]:
    user, name = work.workload.user, work.workload.name
    return (user,), (user, name), (user, name, work.num_gpus)


def learned_steps(
    durations: Durations, unsized: Unsized, *, done: float, best: float, stays: bool
) -> tuple[int, Belief]:
    """Return the total steps that a job is taken to have, and what is believed of its length.

    `done`: its steps so far, `best`: its steps/s on its fastest type. `stays`: it has still to
    start, and will then run to its end. Its rank is then by its mean (Rothkopf, Management Science
    12(5), 1966); that of others is the index, as they may be stopped, or end, before.
    """
    belief, trained_s = durations.belief(unsized, done / best), done / best
    left_s = (belief.mean_left_s if stays else belief.left_s)(trained_s)
    return max(1, math.ceil(done + left_s * best)), belief
