"""What former jobs say of how long a job trains. Standard library only, no I/O.

Service is the time that a gang trains, in seconds on its fastest GPU type. It is counted in bins
whose edges are a factor apart. A level of knowledge has, by bin, how many jobs came through it and
how many of these ended in it; jobs that have not ended count as far as they have come (the product
limit estimator; Kaplan and Meier, 1958). The share that ends in a bin is that of the jobs of the
same user, workload and gang, mixed with that of the user's jobs of the workload, of its model, of
all the user's jobs, of the site's and of a prior: the fewer jobs came so far, the more with the
next of these. The prior knows no scale: a job that has trained for some time trains as long again.

The size of a job that has trained a time a is its Gittins index (Gittins, 1979; for scheduling,
Aalto, Ayesta and Righter, 2009): the least, over all d > 0, of the expected time to its end or to
a + d, whichever is first, over the probability that it ends by then. Its time limit ends every job.

Users are not trusted. What a user has run says most of that user's own jobs; for others it counts
as at most `_MOST_OF_USER` jobs.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.type_failures import Work

# The edges of the bins in seconds: 0, the first, and each a factor after the one before.
_FIRST_S, _FACTOR, _NUM_BINS = 120.0, math.sqrt(2.0), 36
EDGES_S: tuple[float, ...] = (0.0, *(_FIRST_S * _FACTOR**i for i in range(_NUM_BINS)), math.inf)
# The prior's share of the jobs in a bin that end there. A factor of 2 is survived by half.
_PRIOR = (0.5, *(1.0 - 1.0 / _FACTOR for _ in range(_NUM_BINS)))
# The prior of each level counts as this many jobs.
_PRIOR_JOBS = 1.0
# A user's jobs count to the site as at most this many.
_MOST_OF_USER = 30.0
# Of more jobs than this a level keeps half the weight: older ones count less.
_MOST_JOBS = 400.0
# What is left of a job is at least this share of what it has trained, unless its limit is near.
_LEAST_LEFT = 0.1

# By bin.
Counts = list[float]
Shares = tuple[float, ...]


def bin_of(service_s: float) -> int:
    """Return the bin of a service."""
    return max(0, bisect_right(EDGES_S, service_s) - 1)


@dataclass(slots=True)
class Level:
    """How many jobs ended in each bin, and how many have come to it and not ended."""

    ended: Counts = field(default_factory=lambda: [0.0] * (_NUM_BINS + 1))
    going: Counts = field(default_factory=lambda: [0.0] * (_NUM_BINS + 1))

    @property
    def num_ended(self) -> float:
        """Return the weight of the jobs that have ended."""
        return sum(self.ended)

    def end(self, where: int) -> None:
        """Count a job that has ended in a bin."""
        self.ended[where] += 1.0
        if self.num_ended > _MOST_JOBS:
            self.ended[:] = [each / 2.0 for each in self.ended]

    def passed(self) -> Counts:
        """Return, by bin, the jobs that ended in it or have left it behind."""
        found, later = [0.0] * len(self.ended), 0.0
        for index in range(len(found) - 1, -1, -1):
            found[index] = later + self.ended[index]
            later = found[index] + self.going[index]
        return found


def shares(levels: Sequence[tuple[Counts, Counts]], prior_jobs: float = _PRIOR_JOBS) -> Shares:
    """Return the share of the jobs in each bin that end there.

    `levels`: those that ended and those that passed, by bin, the most general level first.
    """
    found = _PRIOR
    for ended, passed in levels:
        found = tuple(
            (ends + prior_jobs * before) / (came + prior_jobs)
            for ends, came, before in zip(ended, passed, found, strict=True)
        )
    return found


def index_s(ends: Shares, trained_s: float, limit_s: float = math.inf) -> float:
    """Return the Gittins index of a job, in seconds.

    `ends`: the share of jobs in each bin that end there, evenly over the bin. Nothing trains longer
    than `limit_s`, unless it has already.
    """
    if trained_s >= limit_s:
        limit_s = math.inf
    best_s, alive, spent_s = math.inf, 1.0, 0.0
    for where in range(bin_of(trained_s), _NUM_BINS):
        low_s, high_s = EDGES_S[where], EDGES_S[where + 1]
        # Those that end in the rest of the bin, of those that have come so far.
        rest, share = (high_s - max(low_s, trained_s)) / (high_s - low_s), ends[where]
        share = share * rest / (1.0 - share * (1.0 - rest)) if rest < 1.0 else share
        length_s = rest * (high_s - low_s)
        if limit_s <= high_s:
            part = (limit_s - (high_s - length_s)) / length_s
            spent_s += alive * part * length_s * (1.0 - 0.5 * part * share)
            return min(best_s, spent_s)
        spent_s += alive * length_s * (1.0 - 0.5 * share)
        alive *= 1.0 - share
        if alive < 1.0:
            best_s = min(best_s, spent_s / (1.0 - alive))
    # Beyond the last edge: as long again.
    return best_s if best_s < math.inf else max(trained_s, EDGES_S[1])


@dataclass
class Durations:
    """What is known of a site's jobs: of those that have ended, and of those that have not."""

    _levels: dict[tuple[str | int, ...], Level] = field(default_factory=dict)
    # The work of each job that has not ended, and the bin to which it has come.
    _going: dict[JobId, tuple[Work, int]] = field(default_factory=dict)
    # Since the last `renew`; sizes by work, bin and limit.
    _shares: dict[Work, Shares] = field(default_factory=dict)
    _sizes: dict[tuple[Work, int, float], float] = field(default_factory=dict)
    _site: tuple[Counts, Counts] | None = None

    def end(self, job_id: JobId, work: Work, service_s: float) -> None:
        """Count a job that has ended after a service."""
        self._forget(job_id)
        for key in _keys(work):
            self._level(key).end(bin_of(service_s))

    def see(self, job_id: JobId, work: Work, service_s: float) -> None:
        """Note how far a job has come that has not ended."""
        where = bin_of(service_s)
        if self._going.get(job_id) == (work, where):
            return
        self._forget(job_id)
        self._going[job_id] = (work, where)
        for key in _keys(work):
            self._level(key).going[where] += 1.0

    def forget(self, job_id: JobId) -> None:
        """Count a job no longer that has left without an end."""
        self._forget(job_id)

    def renew(self) -> None:
        """Let what was counted since the last call matter."""
        self._shares.clear()
        self._sizes.clear()
        self._site = None

    def left_s(self, work: Work, trained_s: float, limit_s: float = math.inf) -> float:
        """Return how long a job is taken to train on, in seconds on its fastest type.

        Its size is looked up where it came into its bin, so it changes at the edges of bins only.
        """
        key = (work, bin_of(trained_s), limit_s)
        size_s = self._sizes.get(key)
        if size_s is None:
            came_s = EDGES_S[key[1]]
            size_s = self._sizes[key] = came_s + index_s(self._of(work), came_s, limit_s)
        left_s = max(size_s - trained_s, _LEAST_LEFT * trained_s)
        return min(left_s, limit_s - trained_s) if trained_s < limit_s else left_s

    def _of(self, work: Work) -> Shares:
        found = self._shares.get(work)
        if found is None:
            if self._site is None:
                self._site = self._of_site()
            levels = [self._levels[key] for key in _keys(work) if key in self._levels]
            each = ((level.ended, level.passed()) for level in levels)
            found = self._shares[work] = shares([self._site, *each])
        return found

    def _of_site(self) -> tuple[Counts, Counts]:
        ended, passed = [0.0] * (_NUM_BINS + 1), [0.0] * (_NUM_BINS + 1)
        for key, level in self._levels.items():
            if len(key) == 1:
                came = level.passed()
                weight = min(1.0, _MOST_OF_USER / max(came[0], 1.0))
                ended = [
                    sum_ + weight * more for sum_, more in zip(ended, level.ended, strict=True)
                ]
                passed = [sum_ + weight * more for sum_, more in zip(passed, came, strict=True)]
        return ended, passed

    def _forget(self, job_id: JobId) -> None:
        work, where = self._going.pop(job_id, (None, 0))
        for key in _keys(work) if work else ():
            self._levels[key].going[where] -= 1.0

    def _level(self, key: tuple[str | int, ...]) -> Level:
        return self._levels.setdefault(key, Level())


def _keys(work: Work) -> tuple[tuple[str | int, ...], ...]:
    """Return the levels to which a work belongs, the most general first."""
    user, name, model = work.workload.user, work.workload.name, work.workload.family
    return (user,), (user, "", model), (user, name), (user, name, work.num_gpus)
