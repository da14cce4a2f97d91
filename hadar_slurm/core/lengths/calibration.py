"""How well beliefs were calibrated at a site so far, and the correction of later ones by it.

Each job is compared with what was believed of it before it counted itself. Its hazard up to a time
is the number of ends that the belief expects until then; over many jobs these numbers add up to the
ends that were seen, also where jobs train on (standardised mortality ratio; residuals of Cox and
Snell, JRSS B 30, 1968). They are added by band of the believed distribution, each quarter of it and
what is beyond its quantile .9. The ratio of ends seen to ends expected in a band
multiplies the hazard of later beliefs there, so a site whose jobs outlast what is believed gets
wider beliefs, and one whose jobs end earlier gets narrower ones.

Jobs of a user are alike, and even a large number shows little of others': a user counts as a few
jobs at most, and before any has ended it is as if one such user's jobs had been as expected.

A job that leaves without an end that is known, such as one that is requeued, is as if it had never
been: else ends would be expected of it that never come.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from hadar_slurm.core.lengths.belief import Belief
from hadar_slurm.core.lengths.bins import NUM_BINS, Counts, Shares, bin_of, part_of

# The quantiles at which beliefs are judged, and those that bound the bands.
CHANCES = (0.5, 0.75, 0.9)
_EDGES = (0.25, *CHANCES)
_BANDS = len(_EDGES) + 1


@dataclass(slots=True)
class Coverage:
    """How many jobs were judged, and how many of them outlasted each quantile of `CHANCES`."""

    jobs: float = 0.0
    beyond: Counts = field(default_factory=lambda: [0.0] * len(CHANCES))

    def add(self, belief: Belief, service_s: float) -> None:
        """Judge what was believed of a job that has ended after a service.

        Slurm ends jobs some seconds after their limits: these count as ended at the limit, which no
        quantile is beyond.
        """
        self.jobs += 1.0
        service_s = min(service_s, belief.limit_s)
        for place, chance in enumerate(CHANCES):
            self.beyond[place] += service_s > belief.rest_s(0.0, chance)

    def shares(self) -> tuple[float, ...]:
        """Return the share of the jobs beyond each quantile; of a calibrated belief 1 - chance."""
        return tuple(count / self.jobs for count in self.beyond) if self.jobs else ()

    def by_name(self) -> dict[str, float]:
        """Return the same by name: `beyond_q50`, which should be .5, and so on; {} without jobs."""
        names = (f"beyond_q{100 * chance:.0f}" for chance in CHANCES)
        return dict(zip(names, self.shares(), strict=False))


@dataclass(slots=True)
class _Seen:
    """By band, the ends of a user's jobs that were seen, and those that were expected.

    `going`: those expected so far of the jobs that train.
    """

    ended: Counts = field(default_factory=lambda: [0.0] * _BANDS)
    expected: Counts = field(default_factory=lambda: [0.0] * _BANDS)
    going: Counts = field(default_factory=lambda: [0.0] * _BANDS)


@dataclass
class Calibration:
    """What the jobs of all users show. A user counts as `most_of_user` jobs, at most.

    Of more than `most_jobs` jobs older ones count less.
    """

    most_of_user: float
    most_jobs: float
    coverage: Coverage = field(default_factory=Coverage)
    _users: dict[str, _Seen] = field(default_factory=dict)
    _ratios: tuple[float, ...] = (1.0,) * _BANDS

    def passed(self, user: str, belief: Belief, came: int, left: int) -> None:
        """Count that a job, which goes on, has left behind the bins from `came` until `left`.

        `belief` is the uncorrected one of before it trained.
        """
        _expect(self._users.setdefault(user, _Seen()).going, belief, came, left)

    def gone(self, user: str, belief: Belief, came: int) -> None:
        """Count a job that has come to a bin no longer."""
        going = self._users.setdefault(user, _Seen()).going
        _expect(going, belief, 0, came, times=-1.0)
        going[:] = [max(0.0, each) for each in going]  # but for rounding

    def ended(self, user: str, belief: Belief, service_s: float) -> None:
        """Count a job that has ended after a service, which goes on no longer.

        What ends at its limit says nothing of the rest, so it counts until then.
        """
        where, bands = bin_of(service_s), _bands(belief.ends, belief.limit_s)
        seen = self._users.setdefault(user, _Seen())
        _expect(seen.expected, belief, 0, where)
        if where >= len(bands):
            return
        _, band = bands[where]
        seen.expected[band] += _hazard(belief.ends[where] * part_of(where, service_s))
        seen.ended[band] += 1.0
        if sum(seen.ended) > self.most_jobs:
            seen.ended[:] = [each / 2.0 for each in seen.ended]
            seen.expected[:] = [each / 2.0 for each in seen.expected]

    def renew(self) -> None:
        """Let what was counted since the last call matter."""
        ended, expected = [self.most_of_user] * _BANDS, [self.most_of_user] * _BANDS
        for seen in self._users.values():
            awaited = [a + b for a, b in zip(seen.expected, seen.going, strict=True)]
            count = max(sum(seen.ended), sum(awaited))
            weight = min(1.0, self.most_of_user / count) if count else 0.0
            for band in range(_BANDS):
                ended[band] += weight * seen.ended[band]
                expected[band] += weight * awaited[band]
        self._ratios = tuple(e / x for e, x in zip(ended, expected, strict=True))

    def corrected(self, ends: Shares, limit_s: float) -> Shares:
        """Return the shares of jobs that end in each bin, corrected before the bin of the limit."""
        known = _bands(ends, limit_s)
        changed = [1.0 - (1.0 - ends[where]) ** self._ratios[band] for where, band in known]
        return (*changed, *ends[len(changed) :])


def _hazard(share: float) -> float:
    return -math.log(max(1.0 - share, 1e-9))


def _expect(counts: Counts, belief: Belief, came: int, left: int, *, times: float = 1.0) -> None:
    for where, band in _bands(belief.ends, belief.limit_s)[came:left]:
        counts[band] += times * _hazard(belief.ends[where])


def _bands(ends: Shares, limit_s: float) -> list[tuple[int, int]]:
    """Return the bins before the limit's, each with the band in which it begins."""
    found, alive, band = [], 1.0, 0
    for where in range(min(bin_of(limit_s), NUM_BINS)):
        while band < len(_EDGES) and alive <= 1.0 - _EDGES[band]:
            band += 1
        found.append((where, band))
        alive *= 1.0 - ends[where]
    return found
