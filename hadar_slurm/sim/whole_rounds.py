"""A simulated cluster under the rules of Gavel's simulator (OSDI'20).

A round lasts until its last job ends or its length is over. Ends and arrivals within a round are
observed at its end. Each round trains whole steps. No run is ended by a time limit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hadar_slurm.engine.backend import Wake
from hadar_slurm.sim.backend import SimBackend
from hadar_slurm.sim.columns import READY, THROUGHPUT, Columns, Floats


@dataclass
class WholeRounds(SimBackend):
    """Simulates `jobs` on `cluster` in whole rounds; time is in seconds and begins at 0."""

    has_limits: bool = False

    def _advance(self, until_s: float) -> Wake:
        """Advance to the end of the round's last job, or to the end of the round."""
        lone_ends_s = self._lone.ends_s(self.now_s)
        lone_until_s = _whole_steps_s(self._lone, self.now_s, until_s, lone_ends_s)
        forked = [(job, job.finish_s(self.now_s)) for job in self._forked.values()]
        trains_until_s = [*lone_until_s.tolist(), *(min(end_s, until_s) for _, end_s in forked)]
        end_s = min(until_s, max(trains_until_s, default=until_s))
        ends = self._lone.advance(self.now_s, end_s, lone_ends_s, lone_until_s)
        for job, finish_s in forked:
            if job.advance(self.now_s, end_s, trains_until_s=min(finish_s, until_s)):
                ends.append((job, finish_s))
        self.now_s = end_s
        for job, ended_s in ends:
            self._end(job, ended_s)
        self._save()
        self._admit_arrivals()
        return Wake.ROUND_END


def _whole_steps_s(columns: Columns, now_s: float, until_s: float, ends_s: Floats) -> Floats:
    """Return when each job has trained the last whole step that fits in a round."""
    ready_s, throughput = columns.used[READY], columns.used[THROUGHPUT]
    begins_s = np.maximum(now_s, ready_s)
    steps = np.floor(throughput * (until_s - begins_s) + 1e-9)
    # A job too slow for one step a round would otherwise never progress.
    whole_s = np.where(steps >= 1, begins_s + steps / throughput, until_s)
    return np.where(ends_s <= until_s, ends_s, whole_s)
