"""Plans without the jobs with which no valid plan can be made. Pure.

What an invalid plan names is left out first, then what came since the last good plan, and where
neither helps the jobs are halved (`breaker_search.py`, loaded with the first plan that fails). A
policy that fails without any job is no job's fault.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.plan import Plan
from hadar_slurm.core.snapshot import Snapshot

if TYPE_CHECKING:
    from hadar_slurm.engine.breaker_search import Attempt, Breaking


@dataclass
class Breakers:
    """The jobs that broke recent plans; kept from round to round, and may be lost at any time."""

    # Those of the last plan, with their faults.
    left_out: Mapping[JobId, str] = field(default_factory=dict)
    # Those that are left to Slurm. It gives their numbers to no other jobs for long.
    given_up: set[JobId] = field(default_factory=set)
    # None: the last plan was one of all jobs.
    _breaking: Breaking | None = None
    _last_good: Snapshot | None = None

    def plan(self, snapshot: Snapshot, attempt: Attempt, is_late: Callable[[], bool]) -> Plan:
        """Return a plan of all jobs but those in `left_out`; raises the fault where that fails.

        It is searched for breakers until `is_late`, with a bounded number of plans.
        """
        fault = None
        if self._breaking is None:
            try:
                plan = attempt(snapshot)
            except Exception as error:
                fault = error
            else:
                self._last_good = snapshot
                return plan
            from hadar_slurm.engine.breaker_search import Breaking

            self._breaking = Breaking(self._last_good)
        plan = self._breaking.plan(snapshot, attempt, is_late, fault)
        self.left_out = self._breaking.left_out
        self.given_up |= self._breaking.hopeless(snapshot)
        if not self.left_out:
            self._breaking, self._last_good = None, snapshot
        return plan
