"""What former jobs say of how long a job trains. Standard library only, no I/O.

Service is the time that a gang trains, in seconds on its fastest GPU type. It is counted in bins
whose edges are a factor apart. A level of knowledge has, by bin, how many jobs came through it and
how many of these ended in it; jobs that have not ended count as far as they have come (the product
limit estimator; Kaplan and Meier, 1958). The share that ends in a bin is that of the jobs of the
same user, workload and gang, mixed with that of the user's jobs of the workload, of its model, of
all the user's jobs, of the site's and of a prior: the fewer jobs came so far, the more with the
next of these. The prior knows the job's time limit only (`prior`).

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
from functools import cache
from itertools import pairwise

from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.type_failures import Work

# The edges of the bins in seconds: 0, the first, and each a factor after the one before.
_FIRST_S, _FACTOR, _NUM_BINS = 120.0, math.sqrt(2.0), 36
EDGES_S: tuple[float, ...] = (0.0, *(_FIRST_S * _FACTOR**i for i in range(_NUM_BINS)), math.inf)
# Without a time limit, the prior's share of the jobs in a bin that end there. A factor of 2 is
# survived by half.
_PRIOR = (0.5, *(1.0 - 1.0 / _FACTOR for _ in range(_NUM_BINS)))
# With one: the shortest job, and the share of the jobs whose durations are uniform.
_SHORTEST_S, _UNIFORM = 60.0, 0.5
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


@cache
def prior(limit_bin: int = _NUM_BINS) -> Shares:
    """Return the share of the jobs in each bin that end there, where no job is known.

    `limit_bin`: the bin of the time limit. Without a limit, in the last bin, a job that has trained
    for some time trains as long again. With one, there are two kinds of jobs, equally likely. The
    logarithm of the duration is uniform up to the limit (Jeffreys' prior of a scale), or the
    duration itself is, as was found on parallel machines (Mu'alem and Feitelson, IEEE TPDS 12(6),
    2001). So of jobs that have not run those with shorter limits go first, a young job does not
    keep its GPUs for long, and one that has trained for a good part of its limit trains to its end.
    """
    if limit_bin >= _NUM_BINS:  # also that of no limit
        return _PRIOR
    longest_s = EDGES_S[limit_bin + 1]

    def alive(at_s: float) -> float:
        of_scale = math.log(longest_s / max(at_s, _SHORTEST_S)) / math.log(longest_s / _SHORTEST_S)
        return (1.0 - _UNIFORM) * of_scale + _UNIFORM * (1.0 - at_s / longest_s)

    edges_s = EDGES_S[: limit_bin + 1]
    ends = [1.0 - alive(high_s) / alive(low_s) for low_s, high_s in pairwise(edges_s)]
    return (*ends, *(1.0 for _ in range(limit_bin, _NUM_BINS + 1)))


def shares(
    levels: Sequence[tuple[Counts, Counts]],
    prior_jobs: float = _PRIOR_JOBS,
    before_any: Shares = _PRIOR,
) -> Shares:
    """Return the share of the jobs in each bin that end there.

    `levels`: those that ended and those that passed, by bin, the most general level first;
    `before_any`: what is taken without any.
    """
    found = before_any
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
        share, length_s = ends[where], high_s - low_s
        if trained_s > low_s:
            share, length_s = _share_of_rest(share, where, trained_s), high_s - trained_s
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


@dataclass(frozen=True, slots=True)
class Belief:
    """How long a job is believed to train, in seconds on its fastest type.

    `ends`: the share of jobs in each bin that end there; nothing trains longer than `limit_s`.
    """

    ends: Shares
    limit_s: float = math.inf
    # Sizes by the bin to which a job has come.
    _sizes: dict[int, float] = field(default_factory=dict, compare=False)

    def left_s(self, trained_s: float) -> float:
        """Return how long the job is taken to train on.

        Its size is looked up where it came into its bin, so it changes at the edges of bins only.
        """
        where = bin_of(trained_s)
        size_s = self._sizes.get(where)
        if size_s is None:
            came_s = EDGES_S[where]
            size_s = self._sizes[where] = came_s + index_s(self.ends, came_s, self.limit_s)
        left_s = max(size_s - trained_s, _LEAST_LEFT * trained_s)
        return min(left_s, self.limit_s - trained_s) if trained_s < self.limit_s else left_s

    def rest_s(self, trained_s: float, chance: float) -> float:
        """Return the time within which the job, having trained `trained_s`, ends by `chance`.

        For a number that is uniform from 0 to 1 this is drawn from what is believed.
        """
        limit_s = self.limit_s if trained_s < self.limit_s else math.inf
        alive, left = 1.0, 1.0 - chance
        for where in range(bin_of(trained_s), _NUM_BINS):
            low_s, high_s = max(EDGES_S[where], trained_s), EDGES_S[where + 1]
            share = _share_of_rest(self.ends[where], where, low_s)
            if alive * (1.0 - share) <= left and share > 0.0:
                end_s = low_s + (high_s - low_s) * (alive - left) / (alive * share)
                return max(1.0, min(end_s, limit_s) - trained_s)
            alive *= 1.0 - share
            if limit_s <= high_s:
                return max(1.0, limit_s - trained_s)
        return max(trained_s, EDGES_S[1])


def _share_of_rest(share: float, where: int, from_s: float) -> float:
    """Return the share that ends in what is left of a bin, of the jobs that came to `from_s`."""
    rest = (EDGES_S[where + 1] - from_s) / (EDGES_S[where + 1] - EDGES_S[where])
    return share * rest / (1.0 - share * (1.0 - rest)) if rest < 1.0 else share


@dataclass
class Durations:
    """What is known of a site's jobs: of those that have ended, and of those that have not."""

    _levels: dict[tuple[str | int, ...], Level] = field(default_factory=dict)
    # The work of each job that has not ended, and the bin to which it has come.
    _going: dict[JobId, tuple[Work, int]] = field(default_factory=dict)
    # Since the last `renew`; shares by work and the limit's bin, beliefs by work and limit.
    _shares: dict[tuple[Work, int], Shares] = field(default_factory=dict)
    _beliefs: dict[tuple[Work, float], Belief] = field(default_factory=dict)
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
        self._beliefs.clear()
        self._site = None

    def belief(self, work: Work, trained_s: float, limit_s: float = math.inf) -> Belief:
        """Return how long a job is believed to train; a limit that it has outlived says nothing."""
        limit_s = limit_s if trained_s < limit_s else math.inf
        found = self._beliefs.get((work, limit_s))
        if found is None:
            found = self._beliefs[work, limit_s] = Belief(self._of(work, limit_s), limit_s)
        return found

    def left_s(self, work: Work, trained_s: float, limit_s: float = math.inf) -> float:
        """Return how long a job is taken to train on, in seconds on its fastest type."""
        return self.belief(work, trained_s, limit_s).left_s(trained_s)

    def _of(self, work: Work, limit_s: float) -> Shares:
        key = (work, bin_of(limit_s))
        found = self._shares.get(key)
        if found is None:
            if self._site is None:
                self._site = self._of_site()
            levels = [self._levels[each] for each in _keys(work) if each in self._levels]
            known = [(level.ended, level.passed()) for level in levels]
            found = shares([self._site, *known], before_any=prior(key[1]))
            self._shares[key] = found
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
