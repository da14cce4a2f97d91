"""The search for the jobs with which no valid plan can be made, for `engine/breakers.py`. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from hadar_slurm.core.cluster import JobId, natural_key
from hadar_slurm.core.job import Phase
from hadar_slurm.core.plan import Plan
from hadar_slurm.core.snapshot import Snapshot
from hadar_slurm.errors import HadarError, InvalidPlan

# The most plans of one round; jobs among which it has not found the cause by then are left out.
MOST_PLANS = 24
# These are made even if it is late: else slow plans would never show which job it is.
LEAST_PLANS = 6
# After this number of rounds it is planned with a job again that broke the plan.
ROUNDS = 10
# A waiting job is left to Slurm once it has broken this number of plans in a row: as many as rounds
# may fail before nothing waits for hadard (`state/heartbeat.py`).
MOST_BROKEN = 3
_LEFT = f"; left to Slurm after {MOST_BROKEN} such plans"

Jobs = frozenset[JobId]
# Returns a valid plan, or raises.
Attempt = Callable[[Snapshot], Plan]


@dataclass
class Breaking:
    """The jobs that break plans, from the first such plan to the next one of all jobs."""

    last_good: Snapshot | None
    # Those of the last plan, with their faults and what follows.
    left_out: dict[JobId, str] = field(default_factory=dict)
    _faults: dict[JobId, str] = field(default_factory=dict)
    # The round from which on it is planned with them again.
    _until: dict[JobId, int] = field(default_factory=dict)
    # How many plans each has broken in a row.
    _broken: dict[JobId, int] = field(default_factory=dict)
    # Left out because of others among them: the next rounds find out because of which.
    _unsure: Jobs = frozenset()
    _round: int = 0
    # After a failure that is no job's fault, the next search is in a later round.
    _search_from: int = 0

    def plan(
        self,
        snapshot: Snapshot,
        attempt: Attempt,
        is_late: Callable[[], bool],
        fault: Exception | None,
    ) -> Plan:
        """Return a plan of all jobs but those in `left_out`; raises the fault where that fails.

        It is searched for breakers until `is_late`, with LEAST_PLANS to MOST_PLANS plans. `fault`:
        why a plan of all jobs has just failed.
        """
        self._round += 1
        out = self._remembered(snapshot)
        search = Search(snapshot, attempt, is_late)
        if fault is not None:
            search.note(fault)
        if fault is not None or not search.works(out):
            out = self._found(search, out, search.fault)
        elif unsure := self._unsure & out:
            sure = out - unsure
            out = sure if search.works(sure) else sure | search.smallest(sure, unsure)
            self._unsure = unsure & out if search.is_spent() else frozenset()
        self.last_good, self._search_from = snapshot, 0
        self._faults = {job: self._faults.get(job, search.fault_text) for job in out}
        due = {job for job in out if self._until.get(job, 0) <= self._round}
        new = self._round + ROUNDS
        self._until = {job: new if job in due else self._until[job] for job in out}
        self._broken = {job: self._broken.get(job, 0) + (job in due) for job in out}
        ends = dict.fromkeys(self.hopeless(snapshot), _LEFT)
        self.left_out = {job: fault + ends.get(job, "") for job, fault in self._faults.items()}
        return search.found[out]

    def hopeless(self, snapshot: Snapshot) -> Jobs:
        """Return the waiting jobs of the last plan's snapshot that have broken too many plans."""
        named = [job for job, number in self._broken.items() if number >= MOST_BROKEN]
        return frozenset(job for job in named if snapshot.by_id[job].phase is Phase.QUEUED)

    def _found(self, search: Search, out: Jobs, fault: Exception) -> Jobs:
        """Return what to leave out where `out` is not enough; raises `fault` if nothing helps."""
        found: Jobs = frozenset()
        if self._round >= self._search_from:
            found = search.breakers(out, frozenset(self._until), self.last_good)
            self._search_from = self._search_from if found else self._round + ROUNDS
        if not found:
            raise fault
        self._unsure = found if search.is_spent() else frozenset()
        return out | found

    def _remembered(self, snapshot: Snapshot) -> Jobs:
        there = snapshot.by_id.keys()
        self._until = {job: n for job, n in self._until.items() if job in there}
        return frozenset(job for job, until in self._until.items() if until > self._round)


@dataclass
class Search:
    """Plans without some of the jobs of one snapshot."""

    snapshot: Snapshot
    attempt: Attempt
    is_late: Callable[[], bool]
    plans: int = 0
    fault: Exception = field(default_factory=Exception)
    # Those that it named.
    named: Jobs = frozenset()
    found: dict[Jobs, Plan] = field(default_factory=dict)

    @property
    def fault_text(self) -> str:
        """Return why the last plan could not be made."""
        name = "" if isinstance(self.fault, HadarError) else f"{type(self.fault).__name__}: "
        return f"{name}{self.fault}"

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
            self.found[out] = self.attempt(self.snapshot.without(out))
        except Exception as error:
            self._fail(error)
            return False
        return True

    def note(self, fault: Exception) -> None:
        """Count a plan of all jobs that has failed."""
        self.plans += 1
        self._fail(fault)

    def _fail(self, fault: Exception) -> None:
        jobs = fault.jobs if isinstance(fault, InvalidPlan) else ()
        self.fault, self.named = fault, frozenset(map(JobId, jobs))

    def breakers(self, out: Jobs, former: Jobs, last_good: Snapshot | None) -> Jobs:
        """Return few jobs without which it works, beside `out`; none where no job is to blame.

        `former` have broken plans before; `last_good` is the snapshot of the last good plan.
        """
        for suspects in self._suspects(out, former, last_good):
            if suspects and self.works(out | suspects):
                found = self.smallest(out, suspects)
                planned = [job.job_id for job in self.snapshot.plannable if not job.left_out]
                is_all = planned and out.union(found).issuperset(planned)
                return frozenset() if is_all else found
        return frozenset()

    def _suspects(self, out: Jobs, former: Jobs, last_good: Snapshot | None) -> Iterator[Jobs]:
        """Yield the jobs that may be to blame, the likely ones first, all of them last."""
        there = self.snapshot.by_id.keys() - out
        named: Jobs = frozenset()
        while more := (self.named & there) - named:
            named |= more
            yield named
        yield former & there
        if last_good is not None:
            yield frozenset(there - last_good.by_id.keys())
        yield frozenset(there)

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
