"""Restoring jobs to plain Slurm: their holds are released and their own requests restored.

hadard restores jobs that it may no longer place, `hadar release` all of them.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

from hadar_slurm.core.cluster import JobId, NodeName
from hadar_slurm.engine.loan import joined
from hadar_slurm.engine.rate_limit import MOST_CHANGES, at_once, in_parts
from hadar_slurm.errors import LedgerError, SlurmError
from hadar_slurm.jobspec.request import Request
from hadar_slurm.slurm.client import updates
from hadar_slurm.slurm.client.parse import QueueRow
from hadar_slurm.slurm.client.protocol import SlurmAdapter
from hadar_slurm.slurm.client.state import SlurmState
from hadar_slurm.slurm.enforce.claim import Claim
from hadar_slurm.slurm.enforce.ledger import Ledger
from hadar_slurm.slurm.enforce.state_machine import Event, Kind

log = logging.getLogger(__name__)


class Returned(NamedTuple):
    """The result for one job: `fault` is empty when it is restored."""

    job: JobId
    fault: str = ""


def restore_jobs(
    slurm: SlurmAdapter,
    ledger: Ledger,
    queue: Mapping[JobId, QueueRow],
    jobs: Collection[JobId],
    limits: Mapping[JobId, tuple[NodeName, ...]] | None = None,
) -> list[Returned]:
    """Restore these jobs of a queue that was just read, where hadard has changed them.

    Plain Slurm may start them as they were submitted. A pinned job is held while its request
    changes, and released only once Slurm shows its own request: in between it requests no GPU. A
    job under a foreign hold (its owner's or an operator's) gets its request back and stays held.
    The next call retries failures. The nodes in `limits` are taken from a job before its release:
    so hadard steers it from the beginning.
    """
    limits = limits or {}
    ledger.see(slurm, queue.values())
    unsteered = _unsteer(slurm, ledger, {job: queue[job] for job in jobs if job in queue})
    if unsteered:
        queue = slurm.queue()
        ledger.see(slurm, queue.values())
    rows = {job: queue[job] for job in jobs if job in queue and ledger[job].has_changed(queue[job])}
    faults, queue = _ask_own(slurm, ledger, rows, queue)
    due = {job: queue[job] for job in rows if job in limits and job not in faults and job in queue}
    # Nodes that are named now are its owner's, and may be those of the limit.
    if due := {job: row for job, row in due.items() if not row.requested_nodes}:
        faults |= _limit(slurm, ledger, due, limits)
    ready = [job for job in rows if job not in faults]
    # Another hold is its owner's, also where hadard has borrowed something.
    ours = [job for job in ready if ledger[job].holds or not rows[job].is_held]
    releases = [Event(kind=Kind.RELEASE, row=rows[job], now_s=ledger.now_s()) for job in ours]
    refused, queue = _attempt(slurm, ledger, releases, queue)
    for job in ours:
        if job in queue and queue[job].is_held_by_user:
            refused.setdefault(job, "Slurm says that it is released, and holds it")
    faults |= refused
    _unsteer(slurm, ledger, {k: queue[k] for k in ours if k in queue}, only_nice=True)
    answers = unsteered | {job: faults.get(job) or unsteered.get(job, "") for job in rows}
    return [Returned(job, fault) for job, fault in answers.items()]


def _ask_own(
    slurm: SlurmAdapter, ledger: Ledger, jobs: Collection[JobId], queue: Mapping[JobId, QueueRow]
) -> tuple[dict[JobId, str], Mapping[JobId, QueueRow]]:
    """Give jobs their own requests back; return the faults by job and the queue afterwards."""
    faults: dict[JobId, str] = {}
    due = [k for k in jobs if not asks_for(queue[k], own_request(queue[k], ledger[k], slurm))]
    for some in in_parts(due, at_once(slurm.rpcs_per_s, rpcs=8)):
        asks = [
            Event(kind=Kind.RESTORE, row=row, now_s=ledger.now_s(), request=want)
            for row in (queue[job] for job in some if job in queue)
            if not asks_for(row, want := own_request(row, ledger[row.key], slurm))
        ]
        refused, queue = _attempt(slurm, ledger, asks, queue)
        faults |= refused
        for ask in asks:
            row = queue.get(ask.row.key)  # read again, where there was anything to ask for
            if row and row.state == "PENDING" and not asks_for(row, ask.request):
                faults.setdefault(row.key, f"Slurm kept another request: {row.request}")
    return faults, queue


def _read_again(slurm: SlurmAdapter, ledger: Ledger, queue: Mapping[JobId, QueueRow]) -> SlurmState:
    """Read jobs immediately before they are changed: what their owners have changed is theirs."""
    try:
        return ledger.read_again(slurm, queue)
    except SlurmError as error:
        log.warning("what is borrowed is given back without owners' last changes: %s", error)
        return SlurmState({**queue}, (), {})


def _unsteer(
    slurm: SlurmAdapter, ledger: Ledger, queue: Mapping[JobId, QueueRow], *, only_nice: bool = False
) -> dict[JobId, str]:
    """Give back what waiting jobs have lent, or the nice value only; return the faults, or ""."""
    lent = [job for job, row in queue.items() if unsteering(row, ledger[job]) is not None]
    faults: dict[JobId, str] = {}
    for some in in_parts(lent, at_once(slurm.rpcs_per_s, most=MOST_CHANGES)):
        part = {job: queue[job] for job in some}
        faults |= _unsteer_now(slurm, ledger, part, only_nice=only_nice)
    return faults


def _unsteer_now(
    slurm: SlurmAdapter, ledger: Ledger, queue: Mapping[JobId, QueueRow], *, only_nice: bool
) -> dict[JobId, str]:
    """Give back what jobs have lent, after one reading of them."""
    shown, events = _read_again(slurm, ledger, queue), {}
    for job, row in shown.queue.items():
        claim, now = ledger[job], shown.excluded.get(job)
        if only_nice and (row.is_held or not claim.nice.is_lent):
            continue
        if (steering := unsteering(row, claim, now)) is None:
            continue
        now = claim.excluded.ours if now is None else now
        own = claim.excluded.owner_of(now)
        if job in ledger.unlistable:
            known = {row.node.name for row in slurm.nodes()}
            own = tuple(node for node in own if node in known)
            steering = replace(steering, excluded=own)
        if only_nice:
            steering = updates.Steer(job, now, nice=steering.nice)
        events[job] = Event(
            kind=Kind.STEER,
            row=row,
            steering=steering,
            shown=shown.shown(job),
            own_excluded=own,
            features=claim.preferred.owners if claim.preferred.is_lent and not only_nice else None,
        )
    faults = ledger.attempt(slurm, events, must_be_written=False) if events else {}
    return {job: str(faults.get(job, "")) for job in events}


def unsteering(
    row: QueueRow, claim: Claim, shown: tuple[NodeName, ...] | None = None
) -> updates.Steer | None:
    """Return what removes the limits of a job that excludes `shown`; None: it has none."""
    is_steered = claim.steered or claim.steers or row.mark
    if row.state != "PENDING" or claim.own is None or not is_steered:
        return None
    # A number that the owner has set stays; of a pin it goes with the request.
    is_sized = claim.steered or (claim.sized.is_lent and not claim.pins(row.requested_nodes))
    # A request that was changed under a hold is restored under one.
    return updates.Steer(
        row.key,
        claim.excluded.owners if shown is None else claim.excluded.owner_of(shown),
        claim.own.num_nodes if is_sized else "",
        # Of a held job later: Slurm releases one whose nice value changes (22.05.8).
        nice=claim.nice.owners if claim.nice.is_lent and not row.is_held else None,
        limit_s=round(claim.limit_s.owners) if claim.limit_s.is_lent else None,
        clears_nodes=bool(claim.steered) and claim.pins(row.requested_nodes),
    )


def _limit(
    slurm: SlurmAdapter,
    ledger: Ledger,
    queue: Mapping[JobId, QueueRow],
    limits: Mapping[JobId, tuple[NodeName, ...]],
) -> dict[JobId, str]:
    """Exclude nodes beside those of the owners of `queue`; return the faults."""
    shown, events = _read_again(slurm, ledger, queue), {}
    for job in queue:
        row, now = shown.queue.get(job), shown.excluded.get(job)
        if row is not None and now is not None and not ledger[job].excluded.is_kept:
            own = ledger.excluded_by_owner(row, now)
            events[job] = Event(
                kind=Kind.STEER,
                row=row,
                own=shown.request(row),
                steering=updates.Steer(job, joined(limits[job], own)),
                shown=shown.shown(job),
                own_excluded=own,
            )
    faults = ledger.attempt(slurm, events, must_be_written=False)
    changed = "its owner has just changed the nodes that it excludes"
    return dict.fromkeys(queue.keys() - events, changed) | {k: str(v) for k, v in faults.items()}


def changed_jobs(ledger: Ledger, rows: Iterable[QueueRow]) -> list[JobId]:
    """Return the pending jobs that hadard has changed, also those under a foreign hold."""
    return [row.key for row in rows if ledger[row.key].has_changed(row)]


def _attempt(
    slurm: SlurmAdapter, ledger: Ledger, events: Sequence[Event], queue: Mapping[JobId, QueueRow]
) -> tuple[dict[JobId, str], Mapping[JobId, QueueRow]]:
    """Carry out events; return the faults by job and the queue afterwards."""
    if not events:
        return {}, queue
    # The jobs are held or pinned already: an unwritable ledger must not keep them so.
    wishes = {event.row.key: event for event in events}
    faults = ledger.carry_out(slurm, wishes, must_be_written=False)
    queue = slurm.queue()
    ledger.see(slurm, queue.values())
    with suppress(LedgerError):
        ledger.note({})
    return {job: str(fault) for job, fault in faults.items()}, queue


def own_request(row: QueueRow, claim: Claim, slurm: SlurmAdapter) -> Request:
    """Return the request that a job is to have once it is restored.

    Where Slurm keeps types, a request that has named a GPU type must go on naming it.
    """
    if claim.own is None:
        return row.request
    from hadar_slurm.jobspec.owners_gpus import with_edits

    own = with_edits(claim.own, row.request, row.comment, claim.pinned)
    if (asked := row.requested_nodes) and not claim.pins(asked):
        own = replace(own, nodes=asked)  # the owner's later choice
    if slurm.abilities.keeps_types and len(claim.named_types(row)) == 1:
        (gpu_type,) = claim.named_types(row)
        typed: dict[str, Any] = {
            key: re.sub(r"\bgpu(?=:\d|$)", f"gpu:{gpu_type}", getattr(own, key))
            for key in ("per_node", "per_job", "per_task", "per_socket")
        }
        return replace(own, **typed)
    return own


def asks_for(row: QueueRow, request: Request) -> bool:
    """Compare nodes and GPUs, but not the number of nodes, which may be that of the last run."""
    return replace(row.request, num_nodes=request.num_nodes) == request.without_sizes
