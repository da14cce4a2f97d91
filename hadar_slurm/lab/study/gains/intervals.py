"""An interval for the ratio of two mean completion times of the same jobs, from one run of each.

Jobs that depend on each other are taken together: all jobs of a user, and jobs that arrived one
after the other. The variance is the sum of those between users and between such stretches of time,
less the one between the jobs of both (Cameron, Gelbach and Miller 2011, doi
10.1198/jbes.2010.07136), of the logarithm of the ratio to first order. Nothing is drawn.

It says how far the ratio would move with other users and other days like these, at the waits that
were simulated. It does not simulate again: a scheduler that gets one job more or less makes other
choices from then on, which moves single runs further. Several seeds, or loads, show that.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt
from typing import NamedTuple

import numpy as np

from hadar_slurm.policies.solver import Floats

# How often the interval has the ratio, in per cent, and that share of a normal distribution, in
# standard deviations.
PERCENT = 90
_NORMAL = 1.645
# Fewer groups say little of how they differ.
_LEAST_GROUPS = 10


class Interval(NamedTuple):
    """The least and the largest ratio."""

    low: float
    high: float


def ratio_interval(
    ours_s: Sequence[float], theirs_s: Sequence[float], users: Sequence[str]
) -> Interval | None:
    """Return the interval of mean `ours_s` over mean `theirs_s`, in seconds by job.

    Jobs are in the order of their arrival; `users` has "" where a user is not known. Users count
    where there are ten or more and each job has one, stretches of time from a hundred jobs on; None
    where neither does. Raises ValueError for sequences of unlike length, or times of 0 in all.
    """
    if not len(ours_s) == len(theirs_s) == len(users):
        raise ValueError("expected times and users of the same jobs")
    ours, theirs = np.array(ours_s, dtype=float), np.array(theirs_s, dtype=float)
    if not (ours.sum() > 0 and theirs.sum() > 0):
        raise ValueError("expected times above 0")
    number = len(users)
    times = np.arange(number) // max(1, isqrt(number))
    by_user = np.unique(np.array(users), return_inverse=True)[1]
    has_users = all(users) and len(np.unique(by_user)) >= _LEAST_GROUPS
    known = [by_user] * has_users + [times] * (number >= _LEAST_GROUPS**2)
    if not known:
        return None
    # What a job adds to the logarithm of the ratio.
    parts = ours / ours.sum() - theirs / theirs.sum()
    variances = [_variance(parts, groups) for groups in known]
    if len(known) == 2:
        both = _variance(parts, by_user * number + times)
        variances.append(sum(variances) - both)
    freedom = min(len(np.unique(groups)) for groups in known) - 1
    # Student's, to first order.
    deviations = _NORMAL + (_NORMAL**3 + _NORMAL) / (4 * freedom)
    width = np.exp(deviations * max(variances) ** 0.5)
    ratio = ours.sum() / theirs.sum()
    return Interval(float(ratio / width), float(ratio * width))


def _variance(parts: Floats, groups: np.ndarray[tuple[int], np.dtype[np.int64]]) -> float:
    """Return the variance of the sum of `parts`, where those of a group go together."""
    numbers = np.unique(groups, return_inverse=True)[1]
    sums = np.bincount(numbers, weights=parts)
    return float((sums**2).sum()) * len(sums) / (len(sums) - 1)
