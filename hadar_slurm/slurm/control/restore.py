"""Restoring jobs to plain Slurm: their holds are released and their own requests restored.

hadard restores jobs that it may no longer place, `hadar release` all of them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from hadar_slurm.core.cluster import JobId
from hadar_slurm.errors import LedgerError
from hadar_slurm.jobspec.description import Description
from hadar_slurm.slurm.client import updates
from hadar_slurm.slurm.client.parse import QueueRow
from hadar_slurm.slurm.client.protocol import SlurmAdapter
from hadar_slurm.slurm.client.scontrol import gres_prefix
from hadar_slurm.slurm.client.updates import Request, Update
from hadar_slurm.slurm.control.claim import has_foreign_hold, is_pinned_by_us
from hadar_slurm.slurm.control.ledger import Ledger

# Slurm 22.05.8, just started, may start jobs without their GPUs on nodes that have not yet reported
# to it: no job is restored for this long. Slurm marks a dead node as down later.
NODES_REPORT_WITHIN_S = 30.0

# A pending job and its description; None where the comment holds no valid one.
Waiting = tuple[QueueRow, Description | None]


@dataclass(frozen=True, slots=True)
class Returned:
    """The result for one job: `fault` is empty when it is restored."""

    job: JobId
    fault: str = ""


def restore_jobs(
    slurm: SlurmAdapter, ledger: Ledger, jobs: Mapping[JobId, Waiting]
) -> list[Returned]:
    """Restore these pending jobs: plain Slurm may start them as they were submitted.

    A pinned job is held while its request changes, and released only once Slurm shows its own
    request: in between it requests no GPU. A job under a foreign hold (its owner's or an
    operator's) gets its request back and stays held. The next call retries failures.
    """
    wanted = {job: _own_request(*waiting, ledger, slurm) for job, waiting in jobs.items()}
    foreign = {job for job, waiting in jobs.items() if has_foreign_hold(*waiting, ledger)}
    changed = {job: want for job, want in wanted.items() if not _asks(jobs[job][0], want)}
    faults: dict[JobId, str] = {}
    if changed:
        _record_restores(ledger, jobs, changed, foreign)
        faults, held_by_operator = _restore_requests(slurm, ledger, jobs, changed, foreign)
        foreign |= held_by_operator
    ready = [job for job in jobs if job not in faults and job not in foreign]
    faults |= _release(slurm, {job: jobs[job][0] for job in ready})
    # The pins are kept while Slurm may forget the release.
    now_s, booted_s = ledger.now_s(), ledger.booted_s
    free = {job: replace(ledger[job], is_held=False) for job in ready if job not in faults}
    with suppress(LedgerError):
        ledger.note({j: replace(free[j], released_s=now_s, booted_s=booted_s) for j in free})
    return [Returned(job, faults.get(job, "")) for job in jobs]


def _record_restores(
    ledger: Ledger,
    jobs: Mapping[JobId, Waiting],
    changed: Mapping[JobId, Request],
    foreign: Collection[JobId],
) -> None:
    """Record the requests to restore, and our holds while they change."""
    entries = {job: replace(ledger[job], before=want) for job, want in changed.items()}
    for job in entries.keys() - set(foreign):
        asked = jobs[job][0].requested_nodes
        entries[job] = replace(entries[job], is_held=True, asked_when_held=asked)
    # The jobs are held or pinned already: an unwritable ledger must not keep them so.
    with suppress(LedgerError):
        ledger.note(entries)


def _restore_requests(
    slurm: SlurmAdapter,
    ledger: Ledger,
    jobs: Mapping[JobId, Waiting],
    changed: Mapping[JobId, Request],
    foreign: Collection[JobId],
) -> tuple[dict[JobId, str], set[JobId]]:
    """Change the requests; return the faults by job, and the jobs that an operator now holds."""
    batch: list[tuple[JobId, Update]] = []
    for job, want in changed.items():
        ask = updates.SetRequest(job, want)
        changes: tuple[Update, ...] = (updates.Hold(job), updates.ClearRequest(job), ask)
        if job in foreign:
            changes = _changes_under_foreign_hold(jobs[job][0], ask, ledger.now_s())
        batch += [(job, change) for change in changes]
    faults = _attempt(slurm, batch)
    queue = slurm.queue()
    rows = {job: queue[job] for job in changed if job in queue}
    for job, row in rows.items():
        if row.state == "PENDING" and not _asks(row, changed[job]):
            faults.setdefault(job, f"Slurm kept another request: {row.request}")
    # An operator's hold has replaced ours.
    return faults, {job for job, row in rows.items() if row.is_held_by_operator}


def _release(slurm: SlurmAdapter, rows: Mapping[JobId, QueueRow]) -> dict[JobId, str]:
    """Release jobs; return the faults by job, also for jobs that Slurm still shows as held."""
    batch: list[tuple[JobId, Update]] = []
    for job, row in rows.items():
        batch += [(job, updates.SetStartNow(job))] * (row.restarts > 0)
        batch.append((job, updates.Release(job)))
    faults = _attempt(slurm, batch)
    queue = slurm.queue()
    for job in rows:
        if job in queue and queue[job].is_held_by_user:
            faults.setdefault(job, "Slurm says that it is released, and holds it")
    return faults


def _changes_under_foreign_hold(
    row: QueueRow, ask: updates.SetRequest, now_s: float
) -> tuple[Update, ...]:
    """Return the changes that restore a request under a foreign hold.

    Our hold would replace the foreign one, and Slurm does not show which user set a hold. If the
    job is released meanwhile, its begin time prevents a start while it requests no GPU.
    """
    clear = updates.ClearRequest(row.key)
    if row.restarts == 0 and row.started_s > now_s:
        return clear, ask  # its owner has chosen a later time
    return updates.DelayStart(row.key), clear, replace(ask, begins_soon=True)


def _attempt(slurm: SlurmAdapter, batch: Sequence[tuple[JobId, Update]]) -> dict[JobId, str]:
    faults = slurm.change([change for _, change in batch])
    return {job: str(fault) for (job, _), fault in zip(batch, faults, strict=True) if fault}


def _own_request(
    row: QueueRow, description: Description | None, ledger: Ledger, slurm: SlurmAdapter
) -> Request:
    """Return the job's request before it was pinned; without a record, that of its description.

    Where Slurm keeps types, a request that has named a GPU type must go on naming it.
    """
    entry, is_pinned, asked = ledger[row.key], is_pinned_by_us(row, ledger), row.requested_nodes
    if entry.before is None and not is_pinned and not (row.request.is_cleared and description):
        return row.request
    own = entry.before or (described_request(description, slurm) if description else row.request)
    if asked and not is_pinned and set(asked) != set(entry.asked_when_held or ()):
        # The owner's later choice; `asked_when_held` is a pin of hadard that was being replaced.
        own = replace(own, nodes=asked)
    if slurm.abilities.keeps_types and len(row.named_types) == 1:
        (gpu_type,) = row.named_types
        typed: dict[str, Any] = {
            key: re.sub(r"\bgpu(?=:\d|$)", f"gpu:{gpu_type}", getattr(own, key))
            for key in ("per_node", "per_job", "per_task", "per_socket")
        }
        return replace(own, **typed)
    return own


def described_request(description: Description, slurm: SlurmAdapter) -> Request:
    """Return the request that a description stands for, where the original is not known."""
    gpu = f"{gres_prefix(slurm.version)}gpu"
    if (shape := description.shape) is not None:
        num_nodes = f"{shape.nodes}-{shape.nodes}"
        return Request(num_nodes=num_nodes, per_node=f"{gpu}:{shape.gpus_per_node}")
    return Request(num_nodes=f"1-{description.gpus}", per_job=f"{gpu}:{description.gpus}")


def _asks(row: QueueRow, request: Request) -> bool:
    """Compare requests except the number of nodes, which may be that of the job's last run."""
    return replace(row.request, num_nodes=request.num_nodes) == request
