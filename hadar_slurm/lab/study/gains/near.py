"""Whether a simulation is near enough to what was measured that a gain may be stated."""

from __future__ import annotations

from math import log
from typing import NamedTuple

# Relative error of a simulated mean JCT beyond which nothing is said of a gain, and the least
# number of jobs that show it.
FAR, LEAST_JOBS = 0.15, 10


class Check(NamedTuple):
    """Jobs whose end was measured: their mean completion time, and the simulated one, in s."""

    jobs: float
    measured_s: float = 0.0
    simulated_s: float = 0.0

    @property
    def has_enough(self) -> bool:
        """Whether there are enough jobs to say anything."""
        return self.jobs >= LEAST_JOBS

    @property
    def error(self) -> float:
        """Return by which part the simulated time is longer than the measured one."""
        return max(self.simulated_s, 1.0) / max(self.measured_s, 1.0) - 1.0

    @property
    def distance(self) -> float:
        """Return how far the simulated time is off, alike for twice and for half of it."""
        return abs(log(1.0 + self.error))

    @property
    def is_near(self) -> bool:
        """Whether there are enough jobs, and the simulation is near."""
        return self.has_enough and abs(self.error) <= FAR
