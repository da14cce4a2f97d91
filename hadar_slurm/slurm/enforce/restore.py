"""Restoring jobs to plain Slurm: their holds are released and their own requests restored.

hadard restores jobs that it may no longer place, `hadar release` all of them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from hadar_slurm.core.cluster import JobId, NodeName
from hadar_slurm.errors import LedgerError
from hadar_slurm.slurm.client import updates
from hadar_slurm.slurm.client.parse import QueueRow
from hadar_slurm.slurm.client.protocol import SlurmAdapter
from hadar_slurm.slurm.client.updates import Request
from hadar_slurm.slurm.enforce.claim import Claim, State
from hadar_slurm.slurm.enforce.ledger import Ledger
from hadar_slurm.slurm.enforce.state_machine import Event, Kind

# Slurm 22.05.8, just started, may start jobs without their GPUs on nodes that have not yet reported
# to it: no job is restored for this long. Slurm marks a dead node as down later.
NODES_REPORT_WITHIN_S = 30.0


@dataclass(frozen=True, slots=True)
class Returned:
    """The result for one job: `fault` is empty when it is restored."""

    job: JobId
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Exclusion:
    """The nodes that a job is to exclude, those that Slurm shows, and its owner's part of them.

    `request` is its owner's, for a job whose claim has none.
    """

    wanted: tuple[NodeName, ...]
    request: Request
    shown: tuple[NodeName, ...] = ()
    own: tuple[NodeName, ...] = ()


NO_LIMITS: Mapping[JobId, Exclusion] = {}


def restore_jobs(
    slurm: SlurmAdapter,
    ledger: Ledger,
    queue: Mapping[JobId, QueueRow],
    jobs: Collection[JobId],
    excluded: Mapping[JobId, Exclusion] = NO_LIMITS,
) -> list[Returned]:
    """Restore these jobs of a queue that was just read, where hadard has changed them.

    Plain Slurm may start them as they were submitted. A pinned job is held while its request
    changes, and released only once Slurm shows its own request: in between it requests no GPU. A
    job under a foreign hold (its owner's or an operator's) gets its request back and stays held.
    The next call retries failures. Nodes in `excluded` are taken from a job before its release: so
    hadard steers it from the beginning.
    """
    ledger.see(slurm, queue.values())
    unsteered = _unsteer(slurm, ledger, [queue[job] for job in jobs if job in queue])
    if unsteered:
        queue = slurm.queue()
        ledger.see(slurm, queue.values())
    rows = {job: queue[job] for job in jobs if job in queue and ledger[job].has_changed(queue[job])}
    wanted = {job: own_request(row, ledger[job], slurm) for job, row in rows.items()}
    changed = {job: want for job, want in wanted.items() if not asks_for(rows[job], want)}
    now_s = ledger.now_s()
    asks = [
        Event(kind=Kind.RESTORE, row=rows[job], now_s=now_s, request=want)
        for job, want in changed.items()
    ]
    faults, queue = _attempt(slurm, ledger, asks, queue)
    for job, want in changed.items():
        if job in queue and queue[job].state == "PENDING" and not asks_for(queue[job], want):
            faults.setdefault(job, f"Slurm kept another request: {queue[job].request}")
    limits = {
        job: Event(
            kind=Kind.STEER,
            row=queue[job],
            now_s=now_s,
            own=excluded[job].request,
            steering=updates.Steer(job, excluded[job].wanted),
            excluded=excluded[job].shown,
            own_excluded=excluded[job].own,
        )
        for job, want in wanted.items()
        if job in queue and job not in faults and job in excluded
    }
    unlimited = ledger.attempt(slurm, limits, must_be_written=False) if limits else {}
    faults |= {job: str(fault) for job, fault in unlimited.items()}
    ready = [job for job in rows if job not in faults]
    ours = [job for job in ready if ledger[job].state is not State.FOREIGN_HOLD]
    releases = [Event(kind=Kind.RELEASE, row=rows[job], now_s=now_s) for job in ours]
    refused, queue = _attempt(slurm, ledger, releases, queue)
    for job in ours:
        if job in queue and queue[job].is_held_by_user:
            refused.setdefault(job, "Slurm says that it is released, and holds it")
    faults |= refused
    _restore_nice(slurm, ledger, [queue[job] for job in ours if job in queue])
    answers = unsteered | {job: faults.get(job) or unsteered.get(job, "") for job in rows}
    return [Returned(job, fault) for job, fault in answers.items()]


def _unsteer(slurm: SlurmAdapter, ledger: Ledger, rows: Iterable[QueueRow]) -> dict[JobId, str]:
    """Remove the limits of steered jobs; return the fault of each, or ""."""
    events = {}
    for row in rows:
        claim = ledger[row.key]
        if (steering := unsteering(row, claim)) is None:
            continue
        events[row.key] = Event(
            kind=Kind.STEER, row=row, steering=steering, nice=claim.nice, limit_s=claim.limit_s
        )
    faults = ledger.attempt(slurm, events, must_be_written=False) if events else {}
    return {job: str(faults.get(job, "")) for job in events}


def unsteering(row: QueueRow, claim: Claim) -> updates.Steer | None:
    """Return the change that removes the limits of a steered job; None: it has none."""
    is_steered = bool(claim.steered or claim.aimed)
    if row.state != "PENDING" or claim.own is None or not (is_steered or claim.steers):
        return None
    # A request that was changed under a hold is restored under one.
    return updates.Steer(
        row.key,
        claim.own_excluded,
        claim.own.num_nodes if is_steered else "",
        # Of a held job later: Slurm releases one whose nice value changes (22.05.8).
        nice=claim.own_nice if claim.is_nice and not row.is_held else None,
        limit_s=claim.own_limit_s if claim.is_prolonged else None,
        clears_nodes=bool(claim.steered) and claim.pins(row.requested_nodes),
    )


def _restore_nice(slurm: SlurmAdapter, ledger: Ledger, rows: Iterable[QueueRow]) -> None:
    """Give jobs that are no longer held their owners' nice values; the next call retries."""
    events = {}
    for row in rows:
        claim = ledger[row.key]
        if row.state == "PENDING" and not row.is_held and claim.is_nice:
            steering = updates.Steer(row.key, claim.excluded, nice=claim.own_nice)
            events[row.key] = Event(
                kind=Kind.STEER, row=row, own=claim.own, steering=steering, nice=claim.nice
            )
    if events:
        ledger.attempt(slurm, events, must_be_written=False)


def changed_jobs(ledger: Ledger, rows: Iterable[QueueRow]) -> list[JobId]:
    """Return the pending jobs with a hold or pin of hadard, also those under a foreign hold."""
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
    own, asked = claim.own, row.requested_nodes
    if asked and not claim.pins(asked):
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
