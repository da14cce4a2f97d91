"""The states of a job under hadard and their transitions, as one table. Pure.

An event is what a reading of Slurm shows of the job, what hadard is about to do, or what a command
answered. `transition` returns the new claim, to be written before the updates are sent, and these
updates. A pair of state and event that `TABLE` lacks cannot occur, and is refused.

A command's answer changes no state: Slurm reports success of updates that it drops, and no answer
for updates that it makes. The next reading decides, except on what the queue does not show: what
is borrowed counts as set once Slurm says so. So hadard may be killed between any two steps.

The table is about holds. Nodes and GPUs that a job requests are compared with the claim's values
(`Claim.pins`, `Claim.has_cleared`): they may differ in every state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from hadar_slurm.core.cluster import NodeName
from hadar_slurm.errors import LedgerError
from hadar_slurm.jobspec.mark import with_mark
from hadar_slurm.jobspec.request import Request
from hadar_slurm.slurm.client import updates
from hadar_slurm.slurm.client.parse import QueueRow, types_in
from hadar_slurm.slurm.client.updates import Update
from hadar_slurm.slurm.enforce.claim import HOLDS, NO_TEXT, Claim, State
from hadar_slurm.slurm.enforce.stoppable import own_signal, signal_of


class Kind(StrEnum):
    """The kinds of events."""

    # The first reading of a job without a claim shows a hold of hadar-sbatch, or one that was
    # hadard's if the ledger is lost; a pin or a cleared request; nothing of hadard.
    FOUND_HELD = "first seen under a hold of hadard"
    FOUND_CHANGED = "first seen with a request of hadard"
    FOUND = "first seen"
    # The same, or a job whose claim lacks them.
    FOUND_EXCLUDED = "seen with nodes that hadar-sbatch has excluded, or with a mark of hadard"
    # A later reading.
    FREE = "pending without a hold, or running"
    USER_HOLD = "pending under a hold that its owner can release"
    OPERATOR_HOLD = "pending under a hold that its owner cannot or should not release"
    BAD_PIN = "held by Slurm, which cannot start it on the nodes that hadard leaves to it"
    RELEASE_LOST = "under a hold of hadard that came late, or that another slurmctld shows again"
    RACED = "running under our hold, which came as it started"
    UNSETTLED = "completing or between two states, or still before our requeue"
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
    # Of SAVE: the end of the grace period. Of REQUEUE: the job has not saved by then.
    until_s: float = 0.0
    is_late: bool = False
    # Of REQUEUE: the part of the job that it keeps without a signal.
    kept_part: float = 0.0
    # Of REFUSED: the claim before. Of EDITED and FOUND_EXCLUDED: the claim after.
    claim: Claim | None = None
    # Of STEER, and of its DONE: what is to be set.
    steering: updates.Steer | None = None
    # Of STEER and PIN: what Slurm shows of what hadard borrows (`SlurmState.shown`).
    shown: Mapping[str, Any] = field(default_factory=dict)
    # Of STEER: the only nodes that are left to the job, if hadard has chosen them.
    aimed: tuple[NodeName, ...] = ()
    # Of STEER and PIN: the owner's part of the excluded nodes (None: as in the claim).
    own_excluded: tuple[NodeName, ...] | None = None
    # Of PIN: the time limit in seconds that is to be set.
    limit_s: int | None = None
    # Of PREFER and STEER: the features to be preferred; None: as before.
    features: str | None = None


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
    # Our hold is gone; it may come back if slurmctld goes away. A hold on a running job is foreign
    # unless it raced with the start.
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
    Kind.RACED: _stay(_S.HOLDING, _S.PINNING, _S.RESTORING, _S.RELEASED),
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
    **dict.fromkeys((Kind.UNSETTLED, Kind.EDITED, Kind.DONE, Kind.REFUSED), _stay(*State)),
}


class RefusedTransition(LedgerError):
    """An event that cannot occur in a state."""


def transition(claim: Claim, event: Event) -> tuple[Claim, tuple[Update, ...]]:
    """Return a job's claim after an event, and the updates that carry out a wish of hadard."""
    target = TABLE[event.kind].get(claim.state)
    if target is None:
        raise RefusedTransition(f"job {event.row.key}: {event.kind!s} while {claim.state!s}")
    after, sent = _wished(claim, event, target)
    after = after if after.state is target else replace(after, state=target)
    if after.holds != claim.holds:
        after = replace(after, since_s=event.now_s, booted_s=event.booted_s)
    return after, sent


def _wished(claim: Claim, event: Event, target: State) -> tuple[Claim, tuple[Update, ...]]:
    """Return a claim's values after a wish, and its updates; see docs/slurm.md for each."""
    row, job, run = event.row, event.row.key, event.row.restarts + 1
    named, asked = tuple(sorted(claim.named_types(row))), row.requested_nodes
    prefer = () if event.features is None else (updates.Prefer(job, event.features),)
    match event.kind:
        case Kind.HOLD:
            return replace(claim, replaced=asked), (updates.Hold(job),)
        case Kind.PIN:
            after = _lent(claim, event, excluded=event.own_excluded, limit_s=event.limit_s)
            after = replace(after, pinned=event.request.nodes, replaced=asked, named=named)
            # Hold again: its owner may have released the job since the last read.
            sent = updates.Hold(job), *_request_updates(event, claim)
            return replace(after, steered=0, aimed=()), sent
        case Kind.RELEASE:
            is_again = target is not State.PINNED and 0 < row.restarts == claim.requeued
            sent = (updates.SetStartNow(job),) if is_again else ()
            return replace(claim, replaced=()), (*sent, updates.Release(job))
        case Kind.SAVE:
            after = replace(claim, signalled_run=run, signalled_until_s=event.until_s)
            return after, (updates.SignalCheckpoint(job, signal_of(row)),)
        case Kind.REQUEUE | Kind.REQUEUE_HELD:
            part = max(claim.kept_part, event.kept_part)
            after = replace(claim, requeued=run, replaced=(), kept_part=part)
            if event.retries:
                after = replace(after, retried_run=run)
            elif row.state == "FAILED" or (event.is_late and own_signal(row)):
                after = replace(after, ended_run=run)
            return after, (updates.Requeue(job),)
        case Kind.RESTORE:
            after = replace(claim, own=event.request, named=named, sized=NO_TEXT)
            if target is State.FOREIGN_HOLD:
                # Ours would replace it, and Slurm does not show which user set a hold.
                return replace(after, replaced=()), _request_updates(event, claim)
            sent = updates.Hold(job), *_request_updates(event, claim)
            return replace(after, replaced=asked), sent
        case Kind.STEER if event.steering is not None:
            after = _steered(claim, event, event.steering)
            steering = replace(event.steering, comment=with_mark(row.comment, row.mark, after.lent))
            return after, (steering, *prefer)
        case Kind.PREFER:
            return _lent(claim, event, preferred=event.features), prefer
        case Kind.RACED:
            return claim, (updates.Release(job),)
    return _read(claim, event, target), ()


def _read(claim: Claim, event: Event, target: State) -> Claim:
    """Return a claim's values after a reading, or an answer."""
    row = event.row
    match event.kind:
        case Kind.FOUND_HELD | Kind.FOUND_CHANGED if event.own is not None:
            named = tuple(sorted(types_in(event.own)))
            return replace(claim, own=event.own, pinned=row.requested_nodes, named=named)
        case Kind.FREE:
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
        case Kind.DONE:
            settled = {name: loan.settled for name, loan in claim.loans.items()}
            if event.steering is None or not event.steering.num_nodes:
                settled["sized"] = claim.sized
            elif not (settled["sized"].is_lent or claim.sized.is_kept):
                settled["sized"] = NO_TEXT
            return replace(claim, **settled)
        case Kind.REFUSED | Kind.EDITED | Kind.FOUND_EXCLUDED if event.claim is not None:
            return event.claim
    return claim


def _lent(claim: Claim, event: Event, **wanted: Any) -> Claim:
    """Return the claim on a job of which this is about to be set, by field; None: it stays."""
    own, excluded = claim.own or event.own, claim.excluded
    known = {name: value for name, value in event.shown.items() if value is not None}
    shown = {name: loan.ours for name, loan in claim.loans.items()} | known
    # Nodes that Slurm does not show yet may still come.
    shown["excluded"] = known.get("excluded") or excluded.ours or excluded.former
    number = own.num_nodes if own is not None else None
    shown["sized"] = shown["sized"] or number
    own_excluded = excluded.owners if event.own_excluded is None else event.own_excluded
    owners: dict[str, Any] = {"excluded": own_excluded, "sized": number}
    loans = {
        name: claim.loans[name].lent(shown[name], value, owners.get(name))
        for name, value in wanted.items()
        if value is not None
    }
    return replace(claim, own=own, **loans)


def _steered(claim: Claim, event: Event, steering: updates.Steer) -> Claim:
    """Return the claim on a job that has, or still has not, what is about to be set."""
    asked = event.row.requested_nodes
    is_ours = claim.pins(asked)
    # Nodes that stay as they are were named by the owner or with a pin.
    is_pinned = is_ours and not steering.clears_nodes
    after = replace(
        claim,
        pinned=asked if is_pinned else (),
        steered=claim.steered if is_pinned else 0,
        aimed=event.aimed,
        replaced=asked if is_ours and not is_pinned else (),
    )
    return _lent(
        replace(after, replaced=claim.replaced) if claim.holds else after,
        event,
        excluded=steering.excluded,
        nice=steering.nice,
        limit_s=steering.limit_s,
        sized=steering.num_nodes or None,
        preferred=event.features,
    )


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


def _request_updates(event: Event, claim: Claim) -> tuple[Update, ...]:
    """Return the two updates that change a request.

    In between the job requests no GPU. If it is released then, or hadard is killed and its owner
    releases it, its begin time keeps it from starting until it is restored. A restored job keeps
    Slurm's delay after a requeue by others: meanwhile a node may still end the last run.
    """
    job, row = event.row.key, event.row
    own, shown = event.own_excluded, event.shown.get("excluded")
    excluded = None if own is None or shown is None or set(own) == set(shown) else own
    ours_until_s = event.now_s + (updates.DELAY_S if row.request.is_cleared else 0)
    is_ours = row.restarts > 0 or row.started_s <= ours_until_s  # else its owner chose that time
    is_same = bool(row.requested_nodes) and set(event.request.nodes) == set(row.requested_nodes)
    keeps = is_same and event.kind is Kind.RESTORE  # they are its owner's
    request = replace(event.request, nodes=()) if keeps else event.request
    soon_s = int(row.restarts > 0)
    if event.kind is Kind.RESTORE and row.restarts > claim.requeued:
        left_s = row.submitted_s + updates.REQUEUE_DELAY_S - event.now_s
        soon_s = max(1, min(round(left_s), updates.REQUEUE_DELAY_S))
    clear = updates.ClearRequest(job, is_ours, excluded, keeps)
    return (clear, updates.SetRequest(job, request, soon_s if is_ours else None, event.limit_s))


def changes(claim: Claim, kind: Kind) -> bool:
    """Return whether a reading of this kind may change a claim; most change none."""
    has_values = bool(claim.replaced or ((claim.since_s or claim.booted_s) and not claim.holds))
    return has_values or bool(claim.may_come) or TABLE[kind].get(claim.state) is not claim.state
