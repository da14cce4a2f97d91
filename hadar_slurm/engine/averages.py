"""How often the copies of forked jobs have averaged their parameters, by their reports. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hadar_slurm.core.cluster import JobId

# Reports come from users: more averages of a job than this are not counted.
_MOST_PER_S = 10.0


@dataclass
class Averages:
    """Counts from one observation to the next; averages before the first are not counted."""

    # The last observation, in seconds since the epoch; None: there was none.
    observed_s: float | None = None
    # When an observation first showed a job's newest average, in seconds since the epoch.
    last_s: dict[JobId, float] = field(default_factory=dict)
    _known: dict[JobId, int] = field(default_factory=dict)
    _new: int = 0

    def observe(self, reported: Mapping[JobId, int], now_s: float) -> None:
        """Count the new averages of each forked job, given the number reported so far.

        `reported` has every forked job that Slurm still knows, with 0 where there is no report;
        others are forgotten. `now_s` is in seconds since the epoch.
        """
        if self.observed_s is not None:
            most = int(max(0.0, now_s - self.observed_s) * _MOST_PER_S)
            new = {job: min(max(0, n - self.of(job)), most) for job, n in reported.items()}
            self._new += sum(new.values())
            self.last_s.update((job, now_s) for job, number in new.items() if number)
        # The maximum: a report that is unreadable once must not have all averages counted again.
        self._known = {job: max(number, self.of(job)) for job, number in reported.items()}
        self.last_s = {job: time_s for job, time_s in self.last_s.items() if job in reported}
        self.observed_s = now_s

    def of(self, job: JobId) -> int:
        """Return the number of averages since the job's training began."""
        return self._known.get(job, 0)

    def take(self) -> int:
        """Return the number of new averages since the last call."""
        new, self._new = self._new, 0
        return new
