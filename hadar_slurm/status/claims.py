"""Claimed against measured: how far claims of ended jobs were off, and who is believed less. Pure.

A time is off by the run time over the time claimed: above 1 where a job took longer. A throughput
is off by the larger over the smaller of given and measured, 1 where none was given.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from hadar_slurm.core.claims import AS_GOOD_AS_TRUE, HALF_LIFE_DAYS, Credit, Judged
from hadar_slurm.core.cluster import JobId
from hadar_slurm.journal import Line
from hadar_slurm.journal.values import credits_of, judged_of
from hadar_slurm.status.status import current
from hadar_slurm.status.use import number_of

# Judged jobs that are kept, where their number is bounded.
MAX_JUDGED = 20_000
_DAY_S = 86400.0


def believed_again_s(at_s: float, log_off: float) -> float:
    """Return when claims that were off count as they are, if no other job is judged.

    `log_off`: the natural logarithm of the factor at the time `at_s`. Times in seconds since the
    epoch.
    """
    least = math.log(AS_GOOD_AS_TRUE)
    days = math.ceil(HALF_LIFE_DAYS * math.log2(log_off / least)) if log_off > least else 0
    return at_s + days * _DAY_S


@dataclass(frozen=True, slots=True)
class ClaimsOff:
    """How far the claims of one user's jobs were off, of one workload or, if it is None, of all."""

    user: str
    workload: str | None
    jobs: int
    time_median: float
    time_worst: float
    throughput_median: float
    throughput_worst: float

    @classmethod
    def of(cls, user: str, workload: str | None, jobs: Sequence[Judged]) -> ClaimsOff:
        """Return the figures of some jobs."""
        times = [job.lasted_s / max(1.0, job.claimed_s) for job in jobs]
        speeds = [job.speeds_off for job in jobs]
        figures = (f(offs) for offs in (times, speeds) for f in (statistics.median, max))
        return cls(user, workload, len(jobs), *figures)

    @property
    def order(self) -> tuple[float, float, str, str]:
        """Return the key by which the worst are first."""
        median = max(self.time_median, self.throughput_median)
        worst = max(self.time_worst, self.throughput_worst)
        return -median, -worst, self.user, self.workload or ""


@dataclass(frozen=True, slots=True)
class BelievedLess:
    """A user whose claims are corrected now; what is claimed counts again from `until_s` on."""

    user: str
    # From which it was learned.
    jobs: int
    # What steps claimed are multiplied by; 1: they count as claimed.
    steps_times: float
    steps_until_s: float
    # By how much given throughputs were off, so that they do not count; 1: they count.
    throughputs_off: float
    throughputs_until_s: float

    @classmethod
    def of(cls, user: str, credit: Credit, now_s: float) -> BelievedLess:
        """Return what is corrected of a user's claims at a time."""
        times, off = credit.factor(now_s), credit.speeds_factor(now_s)
        steps_until_s = believed_again_s(credit.at_s, credit.log_off)
        speeds_until_s = believed_again_s(credit.at_s, credit.speeds_off)
        return cls(user, credit.jobs, times, steps_until_s, off, speeds_until_s)

    def words(self, day: Callable[[float], str]) -> list[str]:
        """Return sentences about it; `day` formats a date."""
        jobs = "after 1 job" if self.jobs == 1 else f"after {self.jobs} jobs"
        found = []
        if self.steps_times > 1:
            until = f"until {day(self.steps_until_s)} unless other jobs are judged"
            found.append(f"steps claimed count {self.steps_times:.3g} times {jobs}, {until}")
        if self.throughputs_off > 1:
            until = f"until {day(self.throughputs_until_s)} unless other jobs are judged"
            off = f"off by a factor of {self.throughputs_off:.3g}"
            found.append(f"throughputs given do not count ({off} {jobs}), {until}")
        return found


@dataclass(frozen=True, slots=True)
class Replanned:
    """A job that is planned with other steps than its user claims."""

    job: JobId
    user: str
    workload: str
    claimed_steps: int
    steps: int


@dataclass(frozen=True, slots=True)
class Claims:
    """Claimed against measured, the worst first; at the end, who is corrected and which jobs run.

    `judged` counts jobs.
    """

    judged: int = 0
    by_user: tuple[ClaimsOff, ...] = ()
    by_workload: tuple[ClaimsOff, ...] = ()
    believed_less: tuple[BelievedLess, ...] = ()
    replanned: tuple[Replanned, ...] = ()

    def rows(self) -> list[ClaimsOff]:
        """Return each user, followed by the workloads if there are several."""
        of_user: dict[str, list[ClaimsOff]] = {}
        for off in self.by_workload:
            of_user.setdefault(off.user, []).append(off)
        rows = []
        for off in self.by_user:
            workloads = of_user[off.user]
            rows += workloads if len(workloads) == 1 else [off, *workloads]
        return rows


@dataclass
class ClaimsSeen:
    """Collects what lines have of claims; of more than `most` judged jobs, the last ones."""

    most: int | None = None
    # The jobs judged in the last line, without those that were known.
    news: Sequence[Judged] = ()
    _judged: dict[JobId, Judged] = field(default_factory=dict)
    _credits: Mapping[str, Credit] = field(default_factory=dict)
    _newest: dict[str, Line] = field(default_factory=dict)

    def add(self, line: Line) -> None:
        """Add a line; one that is damaged raises an error and changes nothing."""
        self.see(judged_of(line), credits_of(line))
        self._newest[str(line.get("mode", ""))] = line

    def see(self, judged: Iterable[Judged], credits: Mapping[str, Credit]) -> None:
        """Add the claims of a line; the users who are believed less are those of all modes."""
        judged, self._credits = list(judged), credits
        self.news = [job for job in judged if job.job_id not in self._judged]
        for job in judged:  # of several runs of a job the one that was furthest off
            known = self._judged.get(job.job_id, job)
            self._judged[job.job_id] = max(known, job, key=lambda run: run.lasted_s / run.claimed_s)
        while self.most is not None and len(self._judged) > self.most:
            del self._judged[next(iter(self._judged))]

    def believed_less(self, now_s: float) -> tuple[BelievedLess, ...]:
        """Return the users who are believed less at a time, the worst first."""
        found = [BelievedLess.of(user, credit, now_s) for user, credit in self._credits.items()]
        listed = [each for each in found if max(each.steps_times, each.throughputs_off) > 1]
        return tuple(sorted(listed, key=lambda each: (-each.steps_times, -each.throughputs_off)))

    def found(self, now_s: float) -> Claims:
        """Return the figures at a time."""
        users: dict[str, list[Judged]] = {}
        workloads: dict[tuple[str, str], list[Judged]] = {}
        for job in self._judged.values():
            users.setdefault(job.user, []).append(job)
            workloads.setdefault((job.user, job.workload), []).append(job)
        by_user = [ClaimsOff.of(user, None, jobs) for user, jobs in users.items()]
        by_workload = [ClaimsOff.of(*names, jobs) for names, jobs in workloads.items()]
        lines = current(list(self._newest.values()))
        jobs = (job for line in lines for job in line.get("jobs", {}).items())
        return Claims(
            len(self._judged),
            by_user=tuple(sorted(by_user, key=lambda off: off.order)),
            by_workload=tuple(sorted(by_workload, key=lambda off: off.order)),
            believed_less=self.believed_less(now_s),
            replanned=tuple(replanned(jobs)),
        )


def replanned(jobs: Iterable[tuple[str, Line]]) -> list[Replanned]:
    """Return the jobs with GPUs that are planned with other steps than claimed."""
    return [
        Replanned(
            JobId(name),
            user=str(job["user"]),
            workload=str(job["workload"]),
            claimed_steps=int(number_of(job["claimed_steps"])),
            steps=int(number_of(job["steps"])),
        )
        for name, job in jobs
        if job.get("claimed_steps") and job["phase"] != "queued"
    ]
