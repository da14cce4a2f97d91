"""The states of a job under hadard and their transitions, as one table. Pure.

An event is what a reading of Slurm shows of the job, what hadard is about to do, or what a command
answered. `transition` returns the new claim, to be written before the updates are sent, and these
updates. A pair of state and event that `TABLE` lacks cannot occur, and is refused.

A command's answer changes no state: Slurm reports success of updates that it drops, and no answer
for updates that it makes. The next reading decides, except on what the queue does not show: nodes
that hadard excludes and its nice value count as set once Slurm says so. So hadard may be killed
between any two steps.

The table is about holds. Nodes and GPUs that a job requests are compared with the claim's values
(`Claim.pins`, `Claim.has_cleared`): they may differ in every state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from hadar_slurm.core.cluster import NodeName
from hadar_slurm.errors import LedgerError
from hadar_slurm.jobspec.mark import with_mark
from hadar_slurm.jobspec.request import Request
from hadar_slurm.slurm.client import updates
from hadar_slurm.slurm.client.parse import QueueRow, types_in
from hadar_slurm.slurm.client.updates import Update
from hadar_slurm.slurm.enforce.claim import HOLDS, Claim, State


class Kind(StrEnum):
    """The kinds of events."""

    # The first reading of a job without a claim shows a hold of hadar-sbatch, or one that was
    # hadard's if the ledger is lost; a pin or a cleared request; nothing of hadard.
    FOUND_HELD = "first seen under a hold of hadard"
    FOUND_CHANGED = "first seen with a request of hadard"
    FOUND = "first seen"
    # The same, or a job whose claim lacks them.
    FOUND_EXCLUDED = "seen with nodes that hadar-sbatch has excluded, or with a mark of hadard"
    # A reading shows the job pending ...
    FREE = "pending without a hold"
    USER_HOLD = "pending under a hold that its owner can release"
    OPERATOR_HOLD = "pending under a hold that its owner cannot or should not release"
    BAD_PIN = "held by Slurm, which cannot start it on the nodes that hadard leaves to it"
    RELEASE_LOST = "under a hold of hadard that came late, or that another slurmctld shows again"
    # ... or running ...
    RUNNING = "running"
    RACED = "running under our hold, which came as it started"
    # ... or neither, or still before our requeue.
    UNSETTLED = "completing or between two states"
    EDITED = "pending with a value of its owner where hadard had set one"
    # It has been without a hold for so long that slurmctld has saved that.
    SAVED_PLACED = "without a hold for long, on nodes of hadard"
    SAVED_FREE = "without a hold for long, with its own request"
    # hadard is about to do this.
    HOLD = "hold"
    PIN = "pin"
    RELEASE = "release"
    SAVE = "save"
    REQUEUE = "requeue"
    # The owner has held the job while it ran.
    REQUEUE_HELD = "requeue under a foreign hold"
    RESTORE = "restore"
    STEER = "steer"
    PREFER = "prefer"
    # A command was answered.
    DONE = "done"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An event of a job, as `row` showed it last."""

    kind: Kind
    row: QueueRow
    now_s: float = 0.0
    # The start of slurmctld, in seconds since the epoch; 0: not known.
    booted_s: float = 0.0
    # Of FOUND_HELD, FOUND_CHANGED, PIN and STEER: the owner's request, unless the claim has it.
    own: Request | None = None
    # Of PIN and RESTORE: the request to be set.
    request: Request = field(default_factory=Request)
    # Of REQUEUE and REQUEUE_HELD: the run has failed early (jobs/run_outcomes.py), and was not
    # ended by USR1.
    retries: bool = False
    # Of SAVE: the end of the grace period.
    until_s: float = 0.0
    # Of REQUEUE: the part of the job that it keeps without a signal.
    kept_part: float = 0.0
    # Of REFUSED: the claim before. Of EDITED and FOUND_EXCLUDED: the claim after.
    claim: Claim | None = None
    # Of STEER, and of its DONE: what is to be set, and what Slurm shows of it.
    steering: updates.Steer | None = None
    nice: int = 0
    # Of STEER: the only nodes that are left to the job, if hadard has chosen them.
    aimed: tuple[NodeName, ...] = ()
    # Of STEER and PIN: the nodes that the job excludes, and the owner's part of
    # them (None: as in the claim).
    excluded: tuple[NodeName, ...] = ()
    own_excluded: tuple[NodeName, ...] | None = None
    # Of STEER and PIN: the time limit in seconds that Slurm shows; of PIN also the one to be set.
    limit_s: int = 0
    new_limit_s: int | None = None
    # Of PREFER, after it was set: the features.
    features: str = ""


def _to(state: State, *origins: State) -> dict[State, State]:
    return dict.fromkeys(origins, state)


def _stay(*states: State) -> dict[State, State]:
    return {state: state for state in states}


_S = State
# hadard has never held these jobs, or no longer holds them.
_NEVER = (_S.UNMANAGED, _S.STEERED)
_FREED = (_S.RELEASED, _S.PLACED, _S.SAVING)
_ALL_BUT_FOREIGN = (*_NEVER, *HOLDS, *_FREED)

# By event and state before: the state after.
TABLE: Mapping[Kind, Mapping[State, State]] = {
    Kind.FOUND_HELD: _to(_S.HELD, _S.UNMANAGED),
    Kind.FOUND_CHANGED: _to(_S.RELEASED, _S.UNMANAGED),
    Kind.FOUND: _stay(_S.UNMANAGED),
    Kind.FOUND_EXCLUDED: {**_stay(*State), **_to(_S.STEERED, _S.UNMANAGED)},
    # Our hold is gone; it may come back if slurmctld goes away.
    Kind.FREE: {
        **_stay(*_NEVER, _S.RELEASED, _S.PLACED),
        **_to(_S.RELEASED, *HOLDS, _S.SAVING, _S.FOREIGN_HOLD),
    },
    Kind.USER_HOLD: {
        **_stay(*_NEVER, _S.FOREIGN_HOLD),
        **_to(_S.HELD, *HOLDS),
        **_to(_S.FOREIGN_HOLD, *_FREED),
    },
    # A job has one hold: an operator's replaces ours.
    Kind.OPERATOR_HOLD: {
        **_stay(*_NEVER, _S.FOREIGN_HOLD),
        **_to(_S.FOREIGN_HOLD, *HOLDS, *_FREED),
    },
    Kind.BAD_PIN: _to(_S.HELD, *_ALL_BUT_FOREIGN, _S.FOREIGN_HOLD),
    Kind.RELEASE_LOST: _to(_S.HELD, _S.RELEASED, _S.SAVING, _S.FOREIGN_HOLD),
    # A hold on a running job is foreign unless it raced with the start.
    Kind.RUNNING: {
        **_stay(*_NEVER, _S.RELEASED, _S.PLACED),
        **_to(_S.RELEASED, *HOLDS, _S.SAVING, _S.FOREIGN_HOLD),
    },
    Kind.RACED: _stay(_S.HOLDING, _S.PINNING, _S.RESTORING, _S.RELEASED),
    Kind.UNSETTLED: _stay(*State),
    Kind.EDITED: _stay(*State),
    Kind.SAVED_PLACED: _to(_S.PLACED, _S.RELEASED, _S.PLACED),
    Kind.SAVED_FREE: _to(_S.UNMANAGED, _S.RELEASED, _S.PLACED),
    # hadard never replaces a foreign hold, except where it only puts back the request under it.
    Kind.HOLD: _to(_S.HOLDING, *_ALL_BUT_FOREIGN),
    Kind.PIN: _to(_S.PINNING, *_ALL_BUT_FOREIGN),
    Kind.RELEASE: {**_stay(*_ALL_BUT_FOREIGN), **_to(_S.PINNED, _S.PINNING)},
    # A requeue without an answer may still come: its hold stays ours.
    Kind.SAVE: {**_to(_S.SAVING, *_NEVER, *_FREED), **_stay(*HOLDS)},
    Kind.REQUEUE: _to(_S.REQUEUING, *_ALL_BUT_FOREIGN),
    Kind.REQUEUE_HELD: {
        **_to(_S.REQUEUING, *HOLDS),
        **_to(_S.FOREIGN_HOLD, *_NEVER, *_FREED, _S.FOREIGN_HOLD),
    },
    Kind.RESTORE: {**_to(_S.RESTORING, *_ALL_BUT_FOREIGN), **_stay(_S.FOREIGN_HOLD)},
    Kind.STEER: {**_stay(*State), **_to(_S.STEERED, _S.UNMANAGED)},
    Kind.PREFER: {**_stay(*State), **_to(_S.STEERED, _S.UNMANAGED)},
    Kind.DONE: _stay(*State),
    Kind.REFUSED: _stay(*State),
}


class RefusedTransition(LedgerError):
    """An event that cannot occur in a state."""


def transition(claim: Claim, event: Event) -> tuple[Claim, tuple[Update, ...]]:
    """Return a job's claim after an event, and the updates that carry out a wish of hadard."""
    target = TABLE[event.kind].get(claim.state)
    if target is None:
        raise RefusedTransition(f"job {event.row.key}: {event.kind!s} while {claim.state!s}")
    after = _values(claim, event, target)
    after = after if after.state is target else replace(after, state=target)
    if after.holds != claim.holds:
        after = replace(after, since_s=event.now_s, booted_s=event.booted_s)
    return after, _updates(event, after)


def _values(claim: Claim, event: Event, target: State) -> Claim:
    """Return the claim's values after an event."""
    row, run = event.row, event.row.restarts + 1
    match event.kind:
        case Kind.FOUND_HELD | Kind.FOUND_CHANGED if event.own is not None:
            named = tuple(sorted(types_in(event.own)))
            return replace(claim, own=event.own, pinned=row.requested_nodes, named=named)
        case Kind.FREE | Kind.RUNNING:
            return _read_back(claim, row)
        case Kind.USER_HOLD if target is State.FOREIGN_HOLD:
            # Set under the slurmctld that took our release, which is no longer in doubt.
            return replace(claim, since_s=0.0, booted_s=0.0)
        case Kind.USER_HOLD | Kind.OPERATOR_HOLD | Kind.BAD_PIN | Kind.RELEASE_LOST:
            return replace(_read_back(claim, row), may_come=0)
        case Kind.SAVED_PLACED:
            return replace(_read_back(claim, row), since_s=0.0, booted_s=0.0, may_come=0)
        case Kind.SAVED_FREE:
            # Slurm may still show what is borrowed.
            kept = replace(claim, own=claim.own if claim.steers else None, pinned=(), replaced=())
            kept = replace(kept, named=(), steered=0, requeued=0)
            return replace(kept, since_s=0.0, booted_s=0.0, may_come=0)
        case Kind.HOLD:
            return replace(claim, replaced=row.requested_nodes)
        case Kind.PIN:
            return replace(
                _prolonged(claim, event, event.new_limit_s),
                own=claim.own or event.own,
                pinned=event.request.nodes,
                steered=0,
                aimed=(),
                excluded=claim.excluded.lent(event.excluded, *[_excluded(claim, event)] * 2),
                replaced=row.requested_nodes,
                named=tuple(sorted(claim.named_types(row))),
            )
        case Kind.RELEASE:
            return replace(claim, replaced=())
        case Kind.SAVE:
            return replace(claim, signalled_run=run, signalled_until_s=event.until_s)
        case Kind.REQUEUE | Kind.REQUEUE_HELD if event.retries:
            return replace(claim, requeued=run, retried_run=run, replaced=())
        case Kind.REQUEUE | Kind.REQUEUE_HELD:
            ended = run if row.state == "FAILED" else claim.ended_run
            part = max(claim.kept_part, event.kept_part)
            return replace(claim, requeued=run, ended_run=ended, kept_part=part, replaced=())
        case Kind.RESTORE:
            replaced = () if target is State.FOREIGN_HOLD else row.requested_nodes
            restored = replace(claim, own=event.request, replaced=replaced, sized="")
            return replace(restored, named=tuple(sorted(claim.named_types(row))))
        case Kind.PREFER:
            return replace(claim, preferred=event.features)
        case Kind.STEER if event.steering is not None:
            return _steered(claim, event, event.steering)
        case Kind.DONE if event.steering is not None:
            sized = claim.sized if event.steering.num_nodes in ("", claim.sized) else ""
            settled = {name: loan.settled for name, loan in claim.loans.items()}
            return replace(claim, sized=sized, **settled)
        case Kind.REFUSED | Kind.EDITED | Kind.FOUND_EXCLUDED if event.claim is not None:
            return event.claim
    return claim


def _prolonged(claim: Claim, event: Event, limit_s: int | None) -> Claim:
    """Return the claim on a job whose time limit is about to be set; None: it stays."""
    if limit_s is None:
        return claim
    return replace(claim, limit_s=claim.limit_s.lent(event.limit_s, limit_s))


def _excluded(claim: Claim, event: Event) -> tuple[NodeName, ...]:
    """Return the nodes that the owner excludes."""
    return claim.excluded.owners if event.own_excluded is None else event.own_excluded


def _steered(claim: Claim, event: Event, steering: updates.Steer) -> Claim:
    """Return the claim on a job that has, or still has not, what is about to be set."""
    asked, own, number = event.row.requested_nodes, claim.own or event.own, steering.num_nodes
    is_ours = claim.pins(asked)
    # Nodes that stay as they are were named by the owner or with a pin.
    is_pinned = is_ours and not steering.clears_nodes
    after = replace(
        claim,
        own=own,
        pinned=asked if is_pinned else (),
        steered=claim.steered if is_pinned else 0,
        aimed=event.aimed,
        sized=claim.sized if number in ("", own and own.num_nodes) else number,
        excluded=claim.excluded.lent(
            event.excluded or claim.excluded.ours or claim.excluded.former,
            steering.excluded,
            _excluded(claim, event),
        ),
    )
    after = _prolonged(after, event, steering.limit_s)
    if not claim.holds:
        after = replace(after, replaced=asked if is_ours and not is_pinned else ())
    if steering.nice is None:
        return after
    return replace(after, nice=claim.nice.lent(event.nice, steering.nice))


def _read_back(claim: Claim, row: QueueRow) -> Claim:
    """Return a claim whose last change has been read back, or the lack of it.

    A job that still requests what it did before our last change has its former pin.
    """
    is_former = bool(claim.replaced) and set(row.requested_nodes) == set(claim.replaced)
    if is_former and (claim.state is State.PINNING or not claim.holds):
        claim = replace(claim, pinned=claim.replaced, steered=int(not claim.holds))
    elif claim.state is State.PINNING and claim.pins(row.requested_nodes):
        claim = replace(claim, excluded=claim.excluded.settled, limit_s=claim.limit_s.settled)
    return replace(claim, replaced=())


def _updates(event: Event, after: Claim) -> tuple[Update, ...]:
    """Return the updates of an event, in their order; see docs/slurm.md for each."""
    row, job = event.row, event.row.key
    match event.kind:
        case Kind.HOLD:
            return (updates.Hold(job),)
        case Kind.RELEASE if after.state is not State.PINNED and 0 < row.restarts == after.requeued:
            return (updates.SetStartNow(job), updates.Release(job))
        case Kind.RELEASE | Kind.RACED:
            return (updates.Release(job),)
        case Kind.SAVE:
            return (updates.SignalCheckpoint(job),)
        case Kind.STEER if event.steering is not None:
            lent = after.lent
            if after.own is not None and event.steering.num_nodes == after.own.num_nodes:
                lent.pop("num_nodes", None)
            return (replace(event.steering, comment=with_mark(row.comment, row.mark, lent)),)
        case Kind.REQUEUE | Kind.REQUEUE_HELD:
            return (updates.Requeue(job),)
        case Kind.RESTORE if after.state is State.FOREIGN_HOLD:
            # Our hold would replace the foreign one, and Slurm does not show which user set a hold.
            return _request_updates(event, after)
        case Kind.PIN | Kind.RESTORE:
            # Hold again: its owner may have released the job since the last read.
            return (updates.Hold(job), *_request_updates(event, after))
    return ()


def _request_updates(event: Event, after: Claim) -> tuple[Update, ...]:
    """Return the two updates that change a request.

    In between the job requests no GPU. If it is released then, or hadard is killed and its owner
    releases it, its begin time keeps it from starting until it is restored. A restored job keeps
    Slurm's delay after a requeue by others: meanwhile a node may still end the last run.
    """
    job, row = event.row.key, event.row
    own = event.own_excluded
    excluded = None if own is None or set(own) == set(event.excluded) else own
    ours_until_s = event.now_s + (updates.DELAY_S if row.request.is_cleared else 0)
    is_ours = row.restarts > 0 or row.started_s <= ours_until_s  # else its owner chose that time
    is_same = bool(row.requested_nodes) and set(event.request.nodes) == set(row.requested_nodes)
    keeps = is_same and event.kind is Kind.RESTORE  # they are its owner's
    request = replace(event.request, nodes=()) if keeps else event.request
    soon_s = int(row.restarts > 0)
    if event.kind is Kind.RESTORE and row.restarts > after.requeued:
        left_s = row.submitted_s + updates.REQUEUE_DELAY_S - event.now_s
        soon_s = max(1, min(round(left_s), updates.REQUEUE_DELAY_S))
    clear = updates.ClearRequest(job, is_ours, excluded, keeps)
    return (clear, updates.SetRequest(job, request, soon_s if is_ours else None, event.new_limit_s))


def changes(claim: Claim, kind: Kind) -> bool:
    """Return whether a reading of this kind may change a claim; most change none."""
    has_values = bool(claim.replaced or ((claim.since_s or claim.booted_s) and not claim.holds))
    return has_values or bool(claim.may_come) or TABLE[kind].get(claim.state) is not claim.state
