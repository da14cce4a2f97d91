"""The scheduling loop. There is one, for the simulator and for Slurm.

Faults: observation fails -> do nothing; the policy fails or its plan is invalid -> change nothing;
one action fails -> go on, the next round retries. No fault stops a running job.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from hadar_slurm.core.cluster import JobId, naturally_sorted
from hadar_slurm.core.job import Phase
from hadar_slurm.core.plan import Plan, WaitReason, is_plainly_valid
from hadar_slurm.core.snapshot import Round, Snapshot
from hadar_slurm.engine.actions import Outcome, Start, Status, Stop
from hadar_slurm.engine.backend import Backend, Wake
from hadar_slurm.engine.breakers import Breakers
from hadar_slurm.engine.reconcile import Renewals, reconcile
from hadar_slurm.errors import HadarError, SlurmError, SlurmUnavailable
from hadar_slurm.policies.policy import Policy, heeds_gangs

if TYPE_CHECKING:
    from hadar_slurm.engine.breaker_search import Attempt

log = logging.getLogger(__name__)

# Where the changes of this many jobs are all refused, the reason is not in the jobs.
_SEVERAL = 3
# The search for jobs that break the plan lasts at most these seconds, and this share of a round.
_SEARCH_S, _SEARCH_SHARE = 10.0, 0.25


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """One round, from which the journal's line is made."""

    round: Round
    wake: str
    policy: str
    # None if the observation failed; `errors` says why.
    snapshot: Snapshot | None = None
    # None if nothing was decided.
    plan: Plan | None = None
    outcomes: Sequence[Outcome] = ()
    # Seconds by part: observe, plan, check, apply.
    durations: dict[str, float] = field(default_factory=dict)
    errors: tuple[str, ...] = ()
    # The world gave no answer: that is no fault of the round's.
    is_unread: bool = False
    # Jobs with which no valid plan can be made, and why.
    left_out: Mapping[JobId, str] = field(default_factory=dict)

    @property
    def failed_in(self) -> str:
        """The part that failed: observe, plan or apply; empty: the round succeeded.

        Changes that are refused fail a round only where they are those of several jobs, and all
        that were tried.
        """
        if self.errors:
            return "apply" if self.plan else "plan" if self.snapshot else "observe"
        if self._concerns_one_user():
            return ""
        changes = [out for out in self.outcomes if isinstance(out.action, (Start, Stop))]
        if any(out.status is Status.DONE for out in changes):
            return ""
        refused = {out.action.job_id for out in changes if out.status is Status.REFUSED}
        return "apply" if len(refused) >= _SEVERAL else ""

    def _concerns_one_user(self) -> bool:
        """Return whether only one of several users has refused changes."""
        refused = {o.action.job_id for o in self.outcomes if o.status is Status.REFUSED}
        jobs = self.snapshot.jobs if self.snapshot and refused else ()
        owners = {job.job_id: job.spec.user for job in jobs}
        return len({owners.get(job) for job in refused}) == 1 and len({*owners.values()}) > 1

    @property
    def fault(self) -> str:
        """What went wrong in the part that failed."""
        details = [out.detail for out in self.outcomes if out.status is Status.REFUSED]
        return "; ".join(self.errors) or f"all changes are refused: {details[0] if details else ''}"


@contextmanager
def _timed(part: str, durations: dict[str, float], clock: Callable[[], float]) -> Iterator[None]:
    """Add the time of the body, which may raise, to `durations`."""
    start = clock()
    try:
        yield
    finally:
        durations[part] = durations.get(part, 0.0) + clock() - start


@dataclass
class Carried:
    """What rounds leave to the next ones of one world; it may be lost at any time."""

    renewals: Renewals = field(default_factory=Renewals)
    # None: a round fails where no valid plan can be made with all jobs, as in simulations.
    breakers: Breakers | None = None
    # What the log has said of the last round: jobs left out, and a fault with its trace.
    named: Mapping[JobId, str] = field(default_factory=dict)
    fault: str = ""


def run_round(
    backend: Backend,
    policy: Policy,
    round_: Round,
    *,
    wake: str,
    clock: Callable[[], float],
    carried: Carried | None = None,
) -> RoundRecord:
    """Observe, plan, check, reconcile and apply once.

    Where `carried` has `breakers`, jobs with which no valid plan can be made are left out of it
    (`RoundRecord.left_out`).
    """
    carried = carried or Carried()
    record = RoundRecord(round_, wake, policy.name)
    durations = record.durations
    try:
        with _timed("observe", durations, clock):
            snapshot = backend.observe()
        round_ = replace(round_, start_s=snapshot.now_s)
        record = replace(record, round=round_, snapshot=snapshot)
        late_s = clock() + min(_SEARCH_S, _SEARCH_SHARE * round_.length_s)
        make = partial(_valid_plan, policy, round_, durations, clock)
        plan = _planned(snapshot, make, carried.breakers, lambda: clock() > late_s)
        left_out = dict(carried.breakers.left_out) if carried.breakers else {}
        actions = reconcile(snapshot.without(left_out.keys()), plan, carried.renewals)
        waiting = [job for job in left_out if snapshot.by_id[job].phase is Phase.QUEUED]
        plan = plan.with_waiting(waiting, WaitReason.BREAKS_PLAN)
        record = replace(record, plan=plan, left_out=left_out)
        with _timed("apply", durations, clock):
            record = replace(record, outcomes=backend.apply(actions))
    except SlurmError as error:
        is_unread = record.snapshot is None and isinstance(error, SlurmUnavailable)
        record = replace(record, errors=(str(error),), is_unread=is_unread)
    except Exception as error:  # a fault in a policy must not take the daemon down
        text = f"{type(error).__name__}: {error}"
        if not isinstance(error, HadarError) and text != carried.fault:
            carried.fault = text
            log.exception("round %d failed", round_.index)
        record = replace(record, errors=(text,))
    return record


def _planned(
    snapshot: Snapshot, make: Attempt, breakers: Breakers | None, is_late: Callable[[], bool]
) -> Plan:
    return breakers.plan(snapshot, make, is_late) if breakers else make(snapshot)


def _valid_plan(
    policy: Policy,
    round_: Round,
    durations: dict[str, float],
    clock: Callable[[], float],
    snapshot: Snapshot,
) -> Plan:
    """Return the policy's plan; raises what the policy raises, and InvalidPlan."""
    with _timed("plan", durations, clock):
        seen = snapshot.for_policy(sizes_by_type=heeds_gangs(policy))
        plan = policy.plan(seen, round_)
        if snapshot.plain_jobs:
            from hadar_slurm.engine.plain_jobs import without_further_copies

            plan = without_further_copies(snapshot, plan, may_stop=round_.may_move)
    plan = plan.with_waiting(snapshot.left_out, WaitReason.LIMITED)
    with _timed("check", durations, clock):
        if not is_plainly_valid(snapshot, plan):
            from hadar_slurm.core.broken_plan import check_plan

            check_plan(snapshot, plan)
    return plan


def run_rounds(
    backend: Backend,
    policy: Policy,
    record: Callable[[RoundRecord], None],
    *,
    length_s: float,
    now_s: Callable[[], float],
    clock: Callable[[], float],
    max_rounds: int | None = None,
    memory: object = None,
    is_logged: bool = True,
    retry_s: float = math.inf,
    carried: Carried | None = None,
) -> int:
    """Run rounds until the backend says stop, or for `max_rounds`; return how many were run.

    `now_s` returns the backend's time, in which rounds are measured; `clock` times the loop's work.
    Every round goes to `record` before the wait. A plan's `memory` goes to the policy's next round;
    a round without a plan keeps the previous one, and the first has `memory`. A plan may end the
    round early. One that has failed, though the backend's world can be read, is run again as it was
    `retry_s` later. `carried` is what earlier rounds of this world have left.
    """
    index, wake, carried = 0, "start", carried or Carried()
    wait_until_s = ends_s = now_s()
    while True:
        begun_s = now_s()
        # A backend may end a round early when no job runs.
        may_move = begun_s >= ends_s or (wake == Wake.ROUND_END and wait_until_s == ends_s)
        ends_s = begun_s + length_s if may_move else ends_s
        round_ = Round(index, begun_s, length_s, may_move, memory, ends_s)
        result = run_round(backend, policy, round_, wake=str(wake), clock=clock, carried=carried)
        if result.plan:
            memory = result.plan.memory
            ends_s = min(ends_s, result.plan.next_round_s or ends_s)
        if is_logged:
            _log(result, carried.named)
        carried.named = result.left_out
        record(result)
        index += 1
        wait_until_s = ends_s
        if result.failed_in and not result.is_unread:
            wait_until_s = min(ends_s, now_s() + retry_s)
            ends_s = wait_until_s if may_move else ends_s
        if index == max_rounds or (wake := backend.wait(wait_until_s)) is Wake.STOP:
            return index


def _log(record: RoundRecord, named: Mapping[JobId, str]) -> None:
    """Write a line on a round, each refused action and error, and each job left out anew."""
    if log.isEnabledFor(logging.INFO):
        _log_summary(record)
    for job in naturally_sorted(record.left_out.keys() - named.keys()):
        log.warning("job %s is left out of the plan: %s", job, record.left_out[job])
    refused = Status.REFUSED
    for outcome in record.outcomes:
        if outcome.status is refused:
            log.warning("refused: %s: %s", outcome.action, outcome.detail)
    for error in record.errors:
        log.error("round=%d %s", record.round.index, error)


def _log_summary(record: RoundRecord) -> None:
    log.info(
        "round=%d wake=%r jobs=%d start=%d stop=%d observe_s=%.3f plan_s=%.3f apply_s=%.3f",
        record.round.index,
        record.wake,
        len(record.snapshot.jobs) if record.snapshot else 0,
        sum(isinstance(outcome.action, Start) for outcome in record.outcomes),
        sum(isinstance(outcome.action, Stop) for outcome in record.outcomes),
        *(record.durations.get(part, 0.0) for part in ("observe", "plan", "apply")),
    )
