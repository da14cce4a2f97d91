"""What is believed of how long one job trains: its distribution, and the index to rank it by.

The size of a job that has trained a time a is its Gittins index (Gittins, 1979; for scheduling,
Aalto, Ayesta and Righter, 2009): the least, over all d > 0, of the expected time to its end or to
a + d, whichever is first, over the probability that it ends by then. Its time limit ends every job.
The index is below the mean wherever jobs of many lengths are likely: it ranks, and is no length.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from hadar_slurm.core.lengths.bins import EDGES_S, NUM_BINS, Shares, bin_of, share_of_rest

# What is left of a job is at least this share of what it has trained, unless its limit is near.
_LEAST_LEFT = 0.1


def index_s(ends: Shares, trained_s: float, limit_s: float = math.inf) -> float:
    """Return the Gittins index of a job, in seconds.

    `ends`: the share of jobs in each bin that end there, evenly over the bin. Nothing trains longer
    than `limit_s`, unless it has already.
    """
    if trained_s >= limit_s:
        limit_s = math.inf
    best_s, alive, spent_s = math.inf, 1.0, 0.0
    for where in range(bin_of(trained_s), NUM_BINS):
        low_s, high_s = EDGES_S[where], EDGES_S[where + 1]
        # Those that end in the rest of the bin, of those that have come so far.
        share, length_s = ends[where], high_s - low_s
        if trained_s > low_s:
            share, length_s = share_of_rest(share, where, trained_s), high_s - trained_s
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
        """Return the time within which the job, having trained `trained_s`, ends by `chance`."""
        limit_s = self.limit_s if trained_s < self.limit_s else math.inf
        alive, left = 1.0, 1.0 - chance
        for where in range(bin_of(trained_s), NUM_BINS):
            low_s, high_s = max(EDGES_S[where], trained_s), EDGES_S[where + 1]
            share = share_of_rest(self.ends[where], where, low_s)
            if alive * (1.0 - share) <= left and share > 0.0:
                end_s = low_s + (high_s - low_s) * (alive - left) / (alive * share)
                return max(1.0, min(end_s, limit_s) - trained_s)
            alive *= 1.0 - share
            if limit_s <= high_s:
                return max(1.0, limit_s - trained_s)
        return self._last_s(trained_s)

    def beyond(self, service_s: float) -> float:
        """Return the probability that the job trains longer than `service_s` in all."""
        if service_s >= self.limit_s:
            return 0.0
        where = bin_of(service_s)
        low_s, high_s = EDGES_S[where], EDGES_S[where + 1]
        part = (service_s - low_s) / (high_s - low_s)
        return math.prod(1.0 - e for e in self.ends[:where]) * (1.0 - self.ends[where] * part)

    def _last_s(self, trained_s: float) -> float:
        """Return how long a job that comes to the last bin, or has, trains on after `trained_s`."""
        limit_s = self.limit_s if trained_s < self.limit_s else math.inf
        return min(max(trained_s, EDGES_S[NUM_BINS] - trained_s), limit_s - trained_s)

    def mean_left_s(self, trained_s: float) -> float:
        """Return the mean of the time that the job trains on, having trained `trained_s`.

        Beyond the last edge, of eight months, it trains as long again, as in `rest_s`.
        """
        limit_s = self.limit_s if trained_s < self.limit_s else math.inf
        alive, found_s = 1.0, 0.0
        for where in range(bin_of(trained_s), NUM_BINS):
            low_s, high_s = max(EDGES_S[where], trained_s), EDGES_S[where + 1]
            share = share_of_rest(self.ends[where], where, low_s)
            part = min(1.0, (limit_s - low_s) / (high_s - low_s))
            found_s += alive * part * (high_s - low_s) * (1.0 - 0.5 * part * share)
            if limit_s <= high_s:
                return max(1.0, found_s)
            alive *= 1.0 - share
        to_edge_s = max(0.0, EDGES_S[NUM_BINS] - trained_s)
        return max(1.0, found_s + alive * (self._last_s(trained_s) - to_edge_s))
