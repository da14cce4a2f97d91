"""The search for the jobs with which no valid plan can be made, for `engine/breakers.py`. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from hadar_slurm.core.cluster import JobId, natural_key
from hadar_slurm.core.plan import Plan
from hadar_slurm.core.snapshot import Snapshot
from hadar_slurm.errors import InvalidPlan

# The most plans of one round; jobs among which it has not found the cause by then are left out.
MOST_PLANS = 24
# These are made even if it is late: else slow plans would never show which job it is.
LEAST_PLANS = 6

Jobs = frozenset[JobId]
# Returns a valid plan, or raises.
Attempt = Callable[[Snapshot], Plan]


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
