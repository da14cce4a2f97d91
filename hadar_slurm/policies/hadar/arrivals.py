"""Whether further jobs are to be expected, by those that have come."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from hadar_slurm.core.job import Job
from hadar_slurm.policies.hadar import tuning


@dataclass(frozen=True, slots=True)
class Arrivals:
    """When jobs have come; times in seconds."""

    last_s: float = -math.inf
    # The longest time between two; 0: all came at once, as to a queue that is to be worked off.
    longest_gap_s: float = 0.0

    def after(self, jobs: Sequence[Job]) -> Arrivals:
        """Return what is known now; `jobs`: all in view.

        Those that were restarted have come before: to Slurm a requeue is a submission.
        """
        known_s = (job.spec.submitted_s for job in jobs if not job.progress.restarts)
        times_s = sorted({time_s for time_s in known_s if time_s > self.last_s})
        if not times_s:
            return self
        is_first = self.last_s == -math.inf
        gaps = [b - a for a, b in pairwise(times_s if is_first else (self.last_s, *times_s))]
        longest_s = max([self.longest_gap_s, *gaps])
        # Of those seen at first, jobs that came between two may have ended.
        return Arrivals(times_s[-1], min(longest_s, tuning.EXPECTED_S) if is_first else longest_s)

    def are_expected(self, now_s: float) -> bool:
        """Return whether more are to be expected.

        None if nothing has come for longer than ever before, and than two hours.
        """
        most_s = max(tuning.EXPECTED_S, self.longest_gap_s)
        return self.longest_gap_s > 0.0 and now_s - self.last_s <= most_s

    def critical_share(self, now_s: float, *, can_move: bool) -> float:
        """Return on which share of GPUs critical jobs go first: all if some of a batch can move."""
        share = tuning.CRITICAL_SHARE if self.are_expected(now_s) else tuning.LAST_SHARE
        return share if self.longest_gap_s or not can_move else 1.0
