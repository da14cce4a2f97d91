"""Giving jobs back to plain Slurm: their holds released, their own requests restored.

hadard does so with jobs that it may no longer place, `hadar release` with all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from hadar_slurm.core.cluster import JobId
from hadar_slurm.errors import LedgerError, SlurmError
from hadar_slurm.jobspec.description import Description
from hadar_slurm.slurm.client.parse import QueueRow
from hadar_slurm.slurm.client.protocol import SlurmAdapter
from hadar_slurm.slurm.client.scontrol import gres_prefix
from hadar_slurm.slurm.client.updates import (
    ClearRequest,
    DelayStart,
    Hold,
    Release,
    Request,
    SetRequest,
    SetStartNow,
    Update,
)
from hadar_slurm.slurm.control.claim import is_held_by_others, is_pinned_by_us, was_submitted_held
from hadar_slurm.slurm.control.ledger import Claim, Ledger

# Slurm 22.05.8, just started, may start jobs without their GPUs on nodes that have not yet reported
# to it: for so long jobs are not given back. A node that is dead counts as down by and by.
NODES_REPORT_WITHIN_S = 30.0

# A pending job and what hadar-sbatch said of it, if that can still be read.
Waiting = tuple[QueueRow, Description | None]


@dataclass(frozen=True, slots=True)
class Returned:
    """What came of one job: `fault` is empty when Slurm has it again."""

    job: JobId
    fault: str = ""


def give_back(slurm: SlurmAdapter, ledger: Ledger, jobs: Mapping[JobId, Waiting]) -> list[Returned]:
    """Let these pending jobs start under plain Slurm, as they were submitted.

    A job that was pinned is held while its request changes, and released only once Slurm shows its
    own request again: in between it asks for no GPU. One that somebody else holds, its owner or an
    operator, gets its request back and stays held. What fails is tried again by the next call.
    """
    others = {
        job
        for job, (row, description) in jobs.items()
        if is_held_by_others(row, ledger, was_submitted_held=was_submitted_held(description))
    }
    wanted = {
        job: _own_request(
            row, description, ledger[job], slurm, is_pinned=is_pinned_by_us(row, ledger)
        )
        for job, (row, description) in jobs.items()
    }
    changed = {job: want for job, want in wanted.items() if not _asks(jobs[job][0], want)}
    faults: dict[JobId, str] = {}
    if changed:
        # Held or pinned they are: that it cannot be written down again must not keep them so.
        with suppress(LedgerError):
            ledger.note(
                {
                    job: replace(ledger[job], before=want)
                    if job in others
                    else replace(
                        ledger[job],
                        is_held=True,
                        before=want,
                        asked_when_held=jobs[job][0].requested_nodes,
                    )
                    for job, want in changed.items()
                }
            )
        batch: list[tuple[JobId, Update]] = []
        for job, want in changed.items():
            changes: tuple[Update, ...] = (Hold(job), ClearRequest(job), SetRequest(job, want))
            if job in others:
                changes = _changes_under_anothers_hold(jobs[job][0], want, ledger.now_s())
            batch += [(job, change) for change in changes]
        faults |= _attempt(slurm, batch)
        queue = slurm.queue()
        for job, want in changed.items():
            row = queue.get(job)
            if row is not None and row.state == "PENDING" and not _asks(row, want):
                faults.setdefault(job, f"Slurm kept another request: {row.request}")
            if row is not None and row.is_held_by_operator:
                others.add(job)  # theirs has taken the place of ours
    ready = [job for job in jobs if job not in faults and job not in others]
    batch = []
    for job in ready:
        if jobs[job][0].restarts > 0:
            batch.append((job, SetStartNow(job)))
        batch.append((job, Release(job)))
    faults |= _attempt(slurm, batch)
    queue = slurm.queue()
    for job in ready:
        if job in queue and queue[job].is_held_by_user:
            faults.setdefault(job, "Slurm says that it is released, and holds it")
    with suppress(LedgerError):
        # Its pin is remembered for as long as Slurm may forget all this.
        ledger.note(
            {
                job: replace(
                    ledger[job],
                    is_held=False,
                    released_s=ledger.now_s(),
                    booted_s=ledger.booted_s,
                )
                for job in ready
                if job not in faults
            }
        )
    return [Returned(job, faults.get(job, "")) for job in jobs]


def _changes_under_anothers_hold(row: QueueRow, want: Request, now_s: float) -> tuple[Update, ...]:
    """Return what gives a job its own request back while somebody else holds it.

    A hold of ours would take the place of theirs: then nobody could tell whose it is. Should they
    release the job meanwhile, its begin time keeps it from starting while it asks for no GPU.
    """
    if row.restarts == 0 and row.started_s > now_s:
        return ClearRequest(row.key), SetRequest(row.key, want)  # its owner has chosen a later time
    return DelayStart(row.key), ClearRequest(row.key), SetRequest(row.key, want, begins_soon=True)


def _attempt(slurm: SlurmAdapter, batch: Iterable[tuple[JobId, Update]]) -> dict[JobId, str]:
    """Make changes; return what was wrong by job."""
    pairs = list(batch)
    faults: list[SlurmError | None] = slurm.change([change for _, change in pairs])
    return {job: str(fault) for (job, _), fault in zip(pairs, faults, strict=True) if fault}


def _own_request(
    row: QueueRow,
    description: Description | None,
    entry: Claim,
    slurm: SlurmAdapter,
    *,
    is_pinned: bool,
) -> Request:
    """Return what a job asked for before it was pinned.

    Without a record of it, what its description comes to. Where Slurm keeps types, a request that
    has come to name one must go on naming it.
    """
    seen = row.request
    if entry.before is None and not is_pinned and not (seen.is_cleared and description):
        return seen
    own = entry.before or (described_request(description, slurm) if description else row.request)
    asked = row.requested_nodes
    if asked and not is_pinned and set(asked) != set(entry.asked_when_held or ()):
        # Its owner's choice, made since; the others are a pin of ours that was being replaced.
        own = replace(own, nodes=asked)
    named = row.named_types
    if slurm.abilities.keeps_types and len(named) == 1:
        (gpu_type,) = named
        return replace(
            own,
            per_node=_typed(own.per_node, gpu_type),
            per_job=_typed(own.per_job, gpu_type),
            per_task=_typed(own.per_task, gpu_type),
            per_socket=_typed(own.per_socket, gpu_type),
        )
    return own


def described_request(description: Description, slurm: SlurmAdapter) -> Request:
    """Return what a job's description comes to as a request, where its own is not known."""
    gres = gres_prefix(slurm.version)
    if description.shape is not None:
        nodes = description.shape.nodes
        return Request(
            num_nodes=f"{nodes}-{nodes}", per_node=f"{gres}gpu:{description.shape.gpus_per_node}"
        )
    return Request(num_nodes=f"1-{description.gpus}", per_job=f"{gres}gpu:{description.gpus}")


def _typed(text: str, gpu_type: str) -> str:
    return re.sub(r"\bgpu(?=:\d|$)", f"gpu:{gpu_type}", text)


def _asks(row: QueueRow, request: Request) -> bool:
    """Return whether a job asks for this; the number of nodes may be that of its last run."""
    seen = row.request
    return (seen.nodes, seen.per_node, seen.per_job, seen.per_task, seen.per_socket) == (
        request.nodes,
        request.per_node,
        request.per_job,
        request.per_task,
        request.per_socket,
    )
