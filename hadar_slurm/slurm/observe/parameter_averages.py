"""How often the copies of forked jobs were averaged, and when last, by what they report of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hadar_slurm.core.cluster import JobId

# A report is the word of a stranger: more averages of a job are not believed.
_MOST_PER_S = 10.0


@dataclass
class Averages:
    """Counts from look to look; what was there at the first look is not counted.

    `last_s` has when a look first showed the newest average of a job, in seconds since the epoch.
    """

    last_s: dict[JobId, float] = field(default_factory=dict)
    _known: dict[JobId, int] = field(default_factory=dict)
    _looked_s: float | None = None
    _new: int = 0

    def see(self, told: Mapping[JobId, int], now_s: float) -> None:
        """Take in how often each forked job's copies say that they have been made one so far.

        `told` names every such job that Slurm still knows, with 0 where nothing is said; others are
        forgotten. `now_s` is in seconds since the epoch.
        """
        if self._looked_s is not None:
            most = int(max(0.0, now_s - self._looked_s) * _MOST_PER_S)
            for job, number in told.items():
                new = min(max(0, number - self._known.get(job, 0)), most)
                self._new += new
                if new:
                    self.last_s[job] = now_s
        # A report that cannot be read for once must not have all counted again.
        self._known = {job: max(number, self._known.get(job, 0)) for job, number in told.items()}
        self.last_s = {job: time_s for job, time_s in self.last_s.items() if job in told}
        self._looked_s = now_s

    def of(self, job: JobId) -> int:
        """Return how often a job's copies have been averaged since its training began."""
        return self._known.get(job, 0)

    def take(self) -> int:
        """Return how many there were since the last call."""
        new, self._new = self._new, 0
        return new
