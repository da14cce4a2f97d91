"""The bins in which service is counted, and what is believed of a job before any other is known.

Service is the time that a gang trains, in seconds on its fastest GPU type. The edges of the bins
are a factor apart.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from functools import cache
from itertools import pairwise

# The edges of the bins in seconds: 0, the first, and each a factor after the one before.
_FIRST_S, _FACTOR, NUM_BINS = 120.0, math.sqrt(2.0), 36
EDGES_S: tuple[float, ...] = (0.0, *(_FIRST_S * _FACTOR**i for i in range(NUM_BINS)), math.inf)
# Without a time limit, the prior's share of the jobs in a bin that end there. A factor of 2 is
# survived by half.
_PRIOR = (0.5, *(1.0 - 1.0 / _FACTOR for _ in range(NUM_BINS)))
# With one: the shortest job, and the share of the jobs whose durations are uniform.
_SHORTEST_S, _UNIFORM = 60.0, 0.5

# By bin.
Counts = list[float]
Shares = tuple[float, ...]


def bin_of(service_s: float) -> int:
    """Return the bin of a service."""
    return max(0, bisect_right(EDGES_S, service_s) - 1)


@cache
def prior(limit_bin: int = NUM_BINS) -> Shares:
    """Return the share of the jobs in each bin that end there, where no job is known.

    `limit_bin`: the bin of the time limit. Without a limit, in the last bin, a job that has trained
    for some time trains as long again. With one, there are two kinds of jobs, equally likely. The
    logarithm of the duration is uniform up to the limit (Jeffreys' prior of a scale), or the
    duration itself is, as was found on parallel machines (Mu'alem and Feitelson, IEEE TPDS 12(6),
    2001). So of jobs that have not run those with shorter limits go first, a young job does not
    keep its GPUs for long, and one that has trained for a good part of its limit trains to its end.
    """
    if limit_bin >= NUM_BINS:  # also that of no limit
        return _PRIOR
    longest_s = EDGES_S[limit_bin + 1]

    def alive(at_s: float) -> float:
        of_scale = math.log(longest_s / max(at_s, _SHORTEST_S)) / math.log(longest_s / _SHORTEST_S)
        return (1.0 - _UNIFORM) * of_scale + _UNIFORM * (1.0 - at_s / longest_s)

    edges_s = EDGES_S[: limit_bin + 1]
    ends = [1.0 - alive(high_s) / alive(low_s) for low_s, high_s in pairwise(edges_s)]
    return (*ends, *(1.0 for _ in range(limit_bin, NUM_BINS + 1)))


def share_of_rest(share: float, where: int, from_s: float) -> float:
    """Return the share that ends in what is left of a bin, of the jobs that came to `from_s`."""
    rest = (EDGES_S[where + 1] - from_s) / (EDGES_S[where + 1] - EDGES_S[where])
    return share * rest / (1.0 - share * (1.0 - rest)) if rest < 1.0 else share


def part_of(where: int, service_s: float) -> float:
    """Return the share of a bin that has passed after a service; 0 in the last, without an end."""
    low_s, high_s = EDGES_S[where], EDGES_S[where + 1]
    return (service_s - low_s) / (high_s - low_s) if high_s < math.inf else 0.0
