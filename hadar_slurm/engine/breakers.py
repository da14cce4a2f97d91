"""Plans without the jobs with which no valid plan can be made. Pure.

What an invalid plan names is left out first, then what came since the last good plan, and where
neither helps the jobs are halved (`breaker_search.py`, loaded with the first plan that fails). A
policy that fails without any job is no job's fault.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.plan import Plan
from hadar_slurm.core.snapshot import Snapshot
from hadar_slurm.errors import HadarError

if TYPE_CHECKING:
    from hadar_slurm.engine.breaker_search import Attempt, Jobs, Search

# After this number of rounds it is planned with a job again that broke the plan.
ROUNDS = 10


@dataclass
class Breakers:
    """The jobs that broke recent plans; kept from round to round, and may be lost at any time."""

    # Those of the last plan, with their faults.
    left_out: dict[JobId, str] = field(default_factory=dict)
    # The round from which on it is planned with them again.
    _until: dict[JobId, int] = field(default_factory=dict)
    # Left out because of others among them: the next rounds find out because of which.
    _unsure: Jobs = frozenset()
    _last_good: Snapshot | None = None
    _round: int = 0
    # After a failure that is no job's fault, the next search is in a later round.
    _search_from: int = 0

    def plan(self, snapshot: Snapshot, attempt: Attempt, is_late: Callable[[], bool]) -> Plan:
        """Return a plan of all jobs but those in `left_out`; raises the fault where that fails.

        It is searched for breakers until `is_late`, with LEAST_PLANS to MOST_PLANS plans.
        """
        self._round += 1
        out, fault = self._remembered(snapshot), None
        if not out:
            # The usual case needs no search.
            try:
                plan = attempt(snapshot)
            except Exception as error:
                fault = error
            else:
                self._last_good, self._search_from = snapshot, 0
                self.left_out, self._until = {}, {}
                return plan
        from hadar_slurm.engine.breaker_search import Search

        search = Search(snapshot, attempt, is_late)
        if fault is not None:
            search.note(fault)
        if fault is not None or not search.works(out):
            out = self._found(search, out, search.fault)
        elif unsure := self._unsure & out:
            sure = out - unsure
            out = sure if search.works(sure) else sure | search.smallest(sure, unsure)
            self._unsure = unsure & out if search.is_spent() else frozenset()
        self._last_good, self._search_from = snapshot, 0
        self.left_out = {job: self.left_out.get(job, _text(search.fault)) for job in out}
        new = self._round + ROUNDS
        self._until = {job: self._until.get(job, new) for job in out}
        return search.found[out]

    def _found(self, search: Search, out: Jobs, fault: Exception) -> Jobs:
        """Return what to leave out where `out` is not enough; raises `fault` if nothing helps."""
        found: Jobs = frozenset()
        if self._round >= self._search_from:
            found = search.breakers(out, frozenset(self._until), self._last_good)
            self._search_from = self._search_from if found else self._round + ROUNDS
        if not found:
            raise fault
        self._unsure = found if search.is_spent() else frozenset()
        return out | found

    def _remembered(self, snapshot: Snapshot) -> Jobs:
        if not self._until:
            return frozenset()
        there = snapshot.by_id.keys()
        self._until = {job: n for job, n in self._until.items() if job in there}
        return frozenset(job for job, until in self._until.items() if until > self._round)


def _text(fault: Exception) -> str:
    name = "" if isinstance(fault, HadarError) else f"{type(fault).__name__}: "
    return f"{name}{fault}"
