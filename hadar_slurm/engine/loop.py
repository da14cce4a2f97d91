"""The scheduling loop. There is one, for the simulator and for Slurm.

Faults: observation fails -> do nothing; the policy fails or its plan is invalid -> change nothing;
one action fails -> go on, the next round retries. No fault stops a running job.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from hadar_slurm.core.plan import Plan, WaitReason, check_plan
from hadar_slurm.core.snapshot import Round, Snapshot
from hadar_slurm.engine.actions import Outcome, Start, Status, Stop
from hadar_slurm.engine.backend import Backend, Wake
from hadar_slurm.engine.reconcile import reconcile
from hadar_slurm.errors import HadarError, SlurmError
from hadar_slurm.policies.policy import Policy

T = TypeVar("T")
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """One round: the journal's line."""

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


@dataclass
class Stopwatch:
    """Times the parts of a round with the clock it is given."""

    clock: Callable[[], float]
    parts: dict[str, float] = field(default_factory=dict)

    def timed(self, part: str, act: Callable[[], T]) -> T:
        """Return what `act` returns, adding its time to `part` even if it raises."""
        start = self.clock()
        try:
            return act()
        finally:
            self.parts[part] = self.parts.get(part, 0.0) + self.clock() - start


def run_round(
    backend: Backend, policy: Policy, round_: Round, *, wake: str, clock: Callable[[], float]
) -> RoundRecord:
    """Observe, plan, check, reconcile and apply once."""
    watch = Stopwatch(clock)
    snapshot: Snapshot | None = None
    plan: Plan | None = None
    outcomes: Sequence[Outcome] = ()
    errors: tuple[str, ...] = ()
    try:
        snapshot = watch.timed("observe", backend.observe)
        seen = snapshot
        round_ = replace(round_, start_s=snapshot.now_s)
        proposed = watch.timed("plan", lambda: policy.plan(seen.for_policies, round_))
        proposed = proposed.with_waiting(seen.left_out, WaitReason.LIMITED)
        watch.timed("check", lambda: check_plan(seen, proposed))
        plan = proposed
        actions = reconcile(snapshot, plan)
        outcomes = watch.timed("apply", lambda: backend.apply(actions))
    except SlurmError as error:
        errors = (str(error),)
    except Exception as error:  # a fault in a policy must not take the daemon down
        if not isinstance(error, HadarError):
            log.exception("round %d failed", round_.index)
        errors = (f"{type(error).__name__}: {error}",)
    return RoundRecord(round_, wake, policy.name, snapshot, plan, outcomes, watch.parts, errors)


def run_rounds(
    backend: Backend,
    policy: Policy,
    record: Callable[[RoundRecord], None],
    *,
    length_s: float,
    now_s: Callable[[], float],
    clock: Callable[[], float],
    max_rounds: int | None = None,
) -> int:
    """Run rounds until the backend says stop, or for `max_rounds`; return how many were run.

    `now_s` returns the backend's time, in which rounds are measured; `clock` times the loop's work.
    Every round goes to `record` before the wait. A plan's `memory` goes to the policy's next round;
    a round without a plan keeps the previous one.
    """
    index = 0
    wake = "start"
    ends_s = now_s()
    memory: object = None
    while True:
        begun_s = now_s()
        # A backend may end a round early when no job runs.
        may_move = begun_s >= ends_s or wake == Wake.ROUND_END
        ends_s = begun_s + length_s if may_move else ends_s
        round_ = Round(index, begun_s, length_s, may_move, memory)
        line = run_round(backend, policy, round_, wake=wake, clock=clock)
        memory = line.plan.memory if line.plan else memory
        _log(line)
        record(line)
        index += 1
        if index == max_rounds:
            return index
        waited = backend.wait(ends_s)
        if waited is Wake.STOP:
            return index
        wake = str(waited)


def _log(line: RoundRecord) -> None:
    """Write one summary line a round, and one for every refused action and error."""
    log.info(
        "round=%d wake=%r jobs=%d start=%d stop=%d observe_s=%.3f plan_s=%.3f apply_s=%.3f",
        line.round.index,
        line.wake,
        len(line.snapshot.jobs) if line.snapshot else 0,
        sum(isinstance(outcome.action, Start) for outcome in line.outcomes),
        sum(isinstance(outcome.action, Stop) for outcome in line.outcomes),
        *(line.durations.get(part, 0.0) for part in ("observe", "plan", "apply")),
    )
    for outcome in line.outcomes:
        if outcome.status is Status.REFUSED:
            log.warning("refused: %s: %s", outcome.action, outcome.detail)
    for error in line.errors:
        log.error("round=%d %s", line.round.index, error)
