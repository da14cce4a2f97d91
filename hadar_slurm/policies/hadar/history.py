"""What was seen of the jobs so far: how many there were, and how they came."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from hadar_slurm.core.job import Job

# The arrivals of this last stretch of time are expected once more; if that is longer, the time in
# which the last few came.
_WINDOW_S, _FEW = 7200.0, 8


@dataclass(frozen=True, slots=True)
class History:
    """The jobs in view since observation began."""

    since_s: float
    # When jobs were last seen, and how many.
    seen_s: float
    num_jobs: int
    # The integral of the number of jobs over the time observed.
    job_seconds: float = 0.0
    # The last arrivals, the newest last, and the longest time between two so far.
    recent: tuple[Job, ...] = ()
    longest_gap_s: float = 0.0

    @property
    def observed_s(self) -> float:
        """Return how long jobs have been observed."""
        return self.seen_s - self.since_s

    @classmethod
    def begin(cls, jobs: Sequence[Job], now_s: float) -> History:
        """Return the history of a first sight; its jobs do not count as arrivals."""
        return cls(now_s, now_s, len(jobs))

    def after(self, jobs: Sequence[Job], now_s: float) -> History:
        """Return the history with what is seen now; arrivals are jobs younger than all before."""
        newest_s = self.recent[-1].spec.submitted_s if self.recent else self.since_s
        came = [job for job in jobs if job.spec.submitted_s > newest_s]
        recent = (*self.recent, *sorted(came, key=lambda job: job.spec.submitted_s))
        times_s = [newest_s, *(job.spec.submitted_s for job in recent[len(self.recent) :])]
        num_fresh = sum(now_s - job.spec.submitted_s < _WINDOW_S for job in recent)
        return replace(
            self,
            seen_s=now_s,
            num_jobs=len(jobs),
            job_seconds=self.job_seconds + self.num_jobs * (now_s - self.seen_s),
            recent=recent[-max(num_fresh, _FEW + 1) :],
            longest_gap_s=max([self.longest_gap_s, *(b - a for a, b in pairwise(times_s))]),
        )

    def expected(self) -> list[tuple[float, Job]]:
        """Return the arrivals to be expected: in how many seconds, and a job like it.

        Those of the last 2 h, or the last 8 if these took longer, come once more, as far apart;
        none, if for longer than that and than ever before nothing has come.
        """
        ages = [(self.seen_s - job.spec.submitted_s, job) for job in self.recent]
        if not ages or ages[-1][0] > max(_WINDOW_S, self.longest_gap_s):
            return []
        window_s = self.observed_s
        if len(ages) > _FEW:
            window_s = min(window_s, max(_WINDOW_S, ages[0][0]))
        return [(window_s - age_s, job) for age_s, job in ages if age_s < window_s]

    def mean_num_jobs(self, job_seconds: float, for_s: float) -> float:
        """Return the mean number of jobs, with those of the next `for_s` seconds."""
        time_s = max(1.0, self.observed_s + for_s)
        return (self.job_seconds + job_seconds) / time_s
