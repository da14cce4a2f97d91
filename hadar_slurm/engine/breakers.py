"""Finds the jobs with which no valid plan can be made, and plans the others. Pure.

What an invalid plan names is left out first, then what came since the last good plan, and where
neither helps the jobs are halved. A policy that fails without any job is no job's fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from hadar_slurm.core.cluster import JobId, natural_key, summed
from hadar_slurm.core.plan import Plan
from hadar_slurm.core.snapshot import Snapshot
from hadar_slurm.errors import HadarError, InvalidPlan

# The most plans of one round; jobs among which it has not found the cause by then are left out.
MOST_PLANS = 24
# These are made even if it is late: else slow plans would never show which job it is.
LEAST_PLANS = 6
# After this number of rounds it is planned with a job again that broke the plan.
ROUNDS = 10

Jobs = frozenset[JobId]
# Returns a valid plan, or raises.
Attempt = Callable[[Snapshot], Plan]


def without(snapshot: Snapshot, jobs: Jobs) -> Snapshot:
    """Return the snapshot without some jobs; what they hold is occupied."""
    if not jobs:
        return snapshot
    held = (job.allocation.slots for job in snapshot.jobs if job.job_id in jobs)
    occupied = summed([*snapshot.occupied, *(slot for slots in held for slot in slots)])
    return Snapshot.of(
        now_s=snapshot.now_s,
        cluster=snapshot.cluster,
        jobs=[job for job in snapshot.jobs if job.job_id not in jobs],
        occupied=occupied,
        rules=snapshot.rules,
        ended=snapshot.ended,
    )


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
        out = self._remembered(snapshot)
        search = _Search(snapshot, attempt, is_late)
        if not search.works(out):
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

    def _remembered(self, snapshot: Snapshot) -> Jobs:
        if not self._until:
            return frozenset()
        there = snapshot.by_id.keys()
        self._until = {job: n for job, n in self._until.items() if job in there}
        return frozenset(job for job, until in self._until.items() if until > self._round)

    def _found(self, search: _Search, out: Jobs, fault: Exception) -> Jobs:
        """Return what to leave out where `out` is not enough; raises `fault` if nothing helps."""
        if self._round < self._search_from:
            raise fault
        for suspects in self._suspects(search, out):
            if suspects and search.works(out | suspects):
                found = search.smallest(out, suspects)
                planned = [job.job_id for job in search.snapshot.plannable if not job.left_out]
                if planned and out.union(found).issuperset(planned):
                    break
                self._unsure = found if search.is_spent() else frozenset()
                return out | found
        self._search_from = self._round + ROUNDS
        raise fault

    def _suspects(self, search: _Search, out: Jobs) -> Iterator[Jobs]:
        """Yield the jobs that may be to blame, the likely ones first, all of them last."""
        there = search.snapshot.by_id.keys() - out
        named: Jobs = frozenset()
        while more := (search.named & there) - named:
            named |= more
            yield named
        yield frozenset(self._until) & there
        if self._last_good is not None:
            yield frozenset(there - self._last_good.by_id.keys())
        yield frozenset(there)


def _text(fault: Exception) -> str:
    name = "" if isinstance(fault, HadarError) else f"{type(fault).__name__}: "
    return f"{name}{fault}"


@dataclass
class _Search:
    """Plans without some of the jobs of one snapshot."""

    snapshot: Snapshot
    attempt: Attempt
    is_late: Callable[[], bool]
    plans: int = 0
    fault: Exception = field(default_factory=Exception)
    # Those that it named.
    named: Jobs = frozenset()
    found: dict[Jobs, Plan] = field(default_factory=dict)

    def is_spent(self) -> bool:
        """Whether no other plan may be attempted."""
        return self.plans >= MOST_PLANS or (self.plans >= LEAST_PLANS and self.is_late())

    def works(self, out: Jobs) -> bool:
        """Return whether there is a valid plan without the jobs `out`; False if it may not try."""
        if out in self.found:
            return True
        if self.is_spent():
            return False
        self.plans += 1
        try:
            self.found[out] = self.attempt(without(self.snapshot, out))
        except Exception as error:
            self.fault = error
            jobs = error.jobs if isinstance(error, InvalidPlan) else ()
            self.named = frozenset(map(JobId, jobs))
            return False
        return True

    def smallest(self, out: Jobs, suspects: Jobs) -> Jobs:
        """Return few of `suspects`: it works without `out` and them, not without `out` alone."""
        if len(suspects) == 1 or self.is_spent():
            return suspects
        ordered = sorted(suspects, key=natural_key)
        parts = [frozenset(ordered[: len(ordered) // 2]), frozenset(ordered[len(ordered) // 2 :])]
        for part in parts:
            if self.works(out | part):
                return self.smallest(out, part)
        if self.is_spent():
            return suspects
        late = self.smallest(out | parts[0], parts[1])
        return late | self.smallest(out | late, parts[0])
