"""What former jobs say of how long a job trains. Standard library only, no I/O.

A level of knowledge has, by bin of the service, how many jobs came through it and how many of these
ended in it; jobs that have not ended count as far as they have come (the product limit estimator;
Kaplan and Meier, 1958). There are six levels, each mixed with the ones before: the site's jobs and
the user's, those of the site and of the user with the same time limit, the user's jobs of the
workload, and those on as many GPUs. First of all comes a prior that knows the limit only (`prior`).
The fewer jobs of a level came so far, the more the level before counts. So users who give limits
with care get others than those who leave them at the partition's, another limit and a new name do
not hide a user's record, and a user whose jobs often fail within minutes is known for that, without
a word on the jobs that do not. Jobs whose limits are not known say what they say by the first two.

What comes of this is corrected by how earlier beliefs have turned out (`calibration`).

Users are not trusted. What a user has run says most of that user's own jobs; for others it counts
as at most `_FEW` jobs, in the levels of the site as in the correction.

The constants, of 2026-11-28, were chosen on dayone's ef01, ef06, philly1 and openb and on
hadar480_burst and Sia's philly 1, and judged by ElasticFlow's clusters 03 and 10
(`benchmarks/beliefs.py`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import NamedTuple

from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.lengths.belief import Belief
from hadar_slurm.core.lengths.bins import NUM_BINS, Counts, Shares, bin_of, prior
from hadar_slurm.core.lengths.calibration import Calibration, Coverage
from hadar_slurm.core.type_failures import Unsized

# The level before counts as this many jobs, and a user's jobs count to the site as at most as many.
# With a prior of one job, as before, a single job of a workload made any other length of the next
# one all but impossible, at each level again. The traces that chose differ little: 7 or 13 in place
# of 10 change what beliefs get wrong (`surprise`) by 2 %.
_FEW = 10.0
# Of more jobs than this a level keeps half the weight: older ones count less.
_MOST_JOBS = 400.0
# Jobs that ended before count in the beliefs of others of the next day on.
_REPLAYED_S = 86_400.0
# This number of jobs, the newest, is judged by those before: that takes 1 to 2 s of a core, within
# a round of hadard, whose heartbeat has to go on. Older jobs count as ended only.
MOST_REPLAYED = 5000
# In place of a limit's bin: whatever the limit.
_ANY = -1
_NONE = [0.0] * (NUM_BINS + 1), [0.0] * (NUM_BINS + 1)


@dataclass(slots=True)
class Level:
    """How many jobs ended in each bin, and how many have come to it and not ended."""

    ended: Counts = field(default_factory=lambda: [0.0] * (NUM_BINS + 1))
    going: Counts = field(default_factory=lambda: [0.0] * (NUM_BINS + 1))
    # The sum of `ended`.
    _weight: float = 0.0

    def end(self, where: int) -> None:
        """Count a job that has ended in a bin."""
        self.ended[where] += 1.0
        self._weight += 1.0
        if self._weight > _MOST_JOBS:
            self.ended[:] = [each / 2.0 for each in self.ended]
            self._weight /= 2.0

    def passed(self) -> Counts:
        """Return, by bin, the jobs that ended in it or have left it behind."""
        found, later = [0.0] * len(self.ended), 0.0
        for index in range(len(found) - 1, -1, -1):
            found[index] = later + self.ended[index]
            later = found[index] + self.going[index]
        return found


def shares(
    levels: Sequence[tuple[Counts, Counts]], before_any: Shares, prior_jobs: float = _FEW
) -> Shares:
    """Return the share of the jobs in each bin that end there.

    `levels`: those that ended and those that passed, by bin, the most general level first;
    `before_any`: what is taken without any.
    """
    found = before_any
    for ended, passed in levels:
        found = tuple(
            [  # a list first: a third faster
                (ends + prior_jobs * before) / (came + prior_jobs)
                for ends, came, before in zip(ended, passed, found, strict=True)
            ]
        )
    return found


class Trained(NamedTuple):
    """A job that has ended: when it began and ended, in seconds, and its service."""

    job_id: JobId
    unsized: Unsized
    began_s: float
    ended_s: float
    service_s: float


class _Going(NamedTuple):
    """A job that trains: the bin to which it has come, and its belief before, and corrected."""

    unsized: Unsized
    where: int
    belief: Belief
    corrected: Belief


@dataclass(slots=True)
class _Site:
    """The jobs of the site with a limit, or any: those of each user as `_FEW` at most.

    `changed`: the levels of the users with changes since the jobs were last counted; `is_old`:
    these matter now.
    """

    changed: dict[str, Level] = field(default_factory=dict)
    is_old: bool = True
    _ended: Counts = field(default_factory=lambda: [0.0] * (NUM_BINS + 1))
    _passed: Counts = field(default_factory=lambda: [0.0] * (NUM_BINS + 1))
    _parts: dict[str, tuple[Counts, Counts]] = field(default_factory=dict)

    def counts(self) -> tuple[Counts, Counts]:
        """Return the jobs that ended, and those that passed, by bin."""
        if self.is_old:
            self.is_old = False
            self._recount()
        return self._ended, self._passed

    def _recount(self) -> None:
        for user, level in self.changed.items():
            new = _at_most_few(level.ended, level.passed())
            old = self._parts.get(user, _NONE)
            self._parts[user] = new
            self._ended, self._passed = (
                [max(0.0, a + b - c) for a, b, c in zip(*counts, strict=True)]  # but for rounding
                for counts in ((self._ended, new[0], old[0]), (self._passed, new[1], old[1]))
            )
        self.changed.clear()


@dataclass
class Durations:
    """What is known of a site's jobs: of those that have ended, and of those that have not."""

    calibration: Calibration = field(default_factory=lambda: Calibration(_FEW, _MOST_JOBS))
    _levels: defaultdict[tuple[str | int, ...], Level] = field(
        default_factory=lambda: defaultdict(Level)
    )
    # Of each limit's bin and of `_ANY`.
    _sites: defaultdict[int, _Site] = field(default_factory=lambda: defaultdict(_Site))
    _going: dict[JobId, _Going] = field(default_factory=dict)
    # Since the last `renew`.
    _shares: dict[tuple[object, ...], Shares] = field(default_factory=dict)
    _beliefs: dict[Unsized, Belief] = field(default_factory=dict)

    @classmethod
    def of(cls, jobs: Iterable[Trained]) -> Durations:
        """Return what is known after these jobs; the newest judged by what was known as each began.

        Of more than `MOST_REPLAYED` jobs the older ones are not judged.
        """
        known, jobs = cls(), sorted(jobs, key=lambda job: job.ended_s)
        old, jobs = jobs[:-MOST_REPLAYED], jobs[-MOST_REPLAYED:]
        for job in old:
            known._count(job.unsized, job.service_s)
        begins = ((job.began_s, 1, number) for number, job in enumerate(jobs))
        ends = ((job.ended_s, 0, number) for number, job in enumerate(jobs))
        renewed_s = -math.inf
        for at_s, is_begin, number in sorted([*begins, *ends]):
            job = jobs[number]
            if at_s >= renewed_s + _REPLAYED_S:
                renewed_s = at_s
                known.renew()
            if is_begin:
                known.see(job.job_id, job.unsized, 0.0)
            else:
                known.end(job.job_id, job.unsized, job.service_s)
        known.renew()
        return known

    @property
    def coverage(self) -> Coverage:
        """Return how many of the jobs that ended outlasted what was believed of them."""
        return self.calibration.coverage

    def end(self, job_id: JobId, unsized: Unsized, service_s: float) -> None:
        """Count a job that has ended after a service."""
        self.see(job_id, unsized, 0.0)
        job = self._going[job_id]
        user = job.unsized.work.workload.user
        self.forget(job_id)
        self.calibration.ended(user, job.belief, service_s)
        self.coverage.add(job.corrected, service_s)
        self._count(unsized, service_s)

    def _count(self, unsized: Unsized, service_s: float) -> None:
        for level in self._of(unsized):
            level.end(bin_of(service_s))

    def see(self, job_id: JobId, unsized: Unsized, service_s: float) -> None:
        """Note how far a job has come that has not ended."""
        where, before = bin_of(service_s), self._going.get(job_id)
        if before is None:
            now = _Going(unsized, where, self._belief(unsized), self.belief(unsized, 0.0))
            self.calibration.passed(unsized.work.workload.user, now.belief, 0, where)
        elif where <= before.where:
            return
        else:
            now = before._replace(where=where)
            user = before.unsized.work.workload.user
            self.calibration.passed(user, now.belief, before.where, where)
        self._leave(job_id)
        self._going[job_id] = now
        for level in self._of(now.unsized):
            level.going[where] += 1.0

    def forget(self, job_id: JobId) -> None:
        """Count a job no longer that has left without an end."""
        if job := self._leave(job_id):
            user = job.unsized.work.workload.user
            self.calibration.gone(user, job.belief, job.where)

    def _leave(self, job_id: JobId) -> _Going | None:
        job = self._going.pop(job_id, None)
        if job:
            for level in self._of(job.unsized):
                level.going[job.where] -= 1.0
        return job

    def renew(self) -> None:
        """Let what was counted since the last call matter."""
        self._shares.clear()
        self._beliefs.clear()
        for site in self._sites.values():
            site.is_old = True
        self.calibration.renew()

    def belief(self, unsized: Unsized, trained_s: float) -> Belief:
        """Return how long a job is believed to train; a limit that it has outlived says nothing."""
        if trained_s >= unsized.limit_s:
            unsized = unsized._replace(limit_s=math.inf)
        found = self._beliefs.get(unsized)
        if found is None:
            belief = self._belief(unsized)
            ends = self.calibration.corrected(belief.ends, belief.limit_s)
            found = self._beliefs[unsized] = replace(belief, ends=ends)
        return found

    def _belief(self, unsized: Unsized) -> Belief:
        """Return the belief before it is corrected."""
        asked, most = bin_of(unsized.asked_s), bin_of(unsized.limit_s)
        key = (unsized.work, asked, most)
        found = self._shares.get(key)
        if found is None:
            own = [self._own(each) for each in _keys(unsized)]
            known = [*self._site(_ANY), *own[0], *self._site(asked), *chain.from_iterable(own[1:])]
            found = self._shares[key] = shares(known, prior(most))
        return Belief(found, unsized.limit_s)

    def _own(self, key: tuple[str | int, ...]) -> list[tuple[Counts, Counts]]:
        """Return the jobs of a level by bin, those that ended and that passed; [] of none."""
        level = self._levels.get(key)
        return [(level.ended, level.passed())] if level else []

    def _site(self, asked: int) -> list[tuple[Counts, Counts]]:
        """Return the same of the site's jobs with a limit, each user's as few at most.

        Those with any limit count as few in all: limits differ more than jobs within one.
        """
        if not (site := self._sites.get(asked)):
            return []
        counts = site.counts()
        return [_at_most_few(*counts) if asked == _ANY else counts]

    def _of(self, unsized: Unsized) -> list[Level]:
        """Return the levels to which a job belongs."""
        levels = [self._levels[key] for key in _keys(unsized)]
        for asked, level in zip((_ANY, bin_of(unsized.asked_s)), levels, strict=False):
            self._sites[asked].changed[unsized.work.workload.user] = level
        return levels


def _at_most_few(ended: Counts, passed: Counts) -> tuple[Counts, Counts]:
    """Return these jobs, with less weight where they are more than `_FEW`."""
    weight = min(1.0, _FEW / max(passed[0], 1.0))
    return [weight * count for count in ended], [weight * count for count in passed]


def _keys(unsized: Unsized) -> tuple[tuple[str | int, ...], ...]:
    """Return the levels of the user to which a job belongs, the most general first."""
    user, name = unsized.work.workload.user, unsized.work.workload.name
    asked = bin_of(unsized.asked_s)
    return (_ANY, user), (asked, user), (user, name), (user, name, unsized.work.num_gpus)
