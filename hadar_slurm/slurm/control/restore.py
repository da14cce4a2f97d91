"""Restoring jobs to plain Slurm: their holds are released and their own requests restored.

hadard restores jobs that it may no longer place, `hadar release` all of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
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
from hadar_slurm.slurm.control.disposition import has_foreign_hold, is_pinned_by_us
from hadar_slurm.slurm.control.ledger import Claim, Ledger

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
    changes = {job: (jobs[job][0], want) for job, want in wanted.items()}
    changed = {job: change for job, change in changes.items() if not _asks(*change)}
    faults = _restore_requests(slurm, ledger, changed, foreign) if changed else {}
    ready = [job for job in jobs if job not in faults and job not in foreign]
    faults |= _release(slurm, {job: jobs[job][0] for job in ready})
    # The pins are kept while Slurm may forget the release.
    now_s, booted_s = ledger.now_s(), ledger.booted_s
    free = {job: replace(ledger[job], is_held=False) for job in ready if job not in faults}
    with suppress(LedgerError):
        ledger.note({j: replace(free[j], released_s=now_s, booted_s=booted_s) for j in free})
    return [Returned(job, faults.get(job, "")) for job in jobs]


def _restore_requests(
    slurm: SlurmAdapter,
    ledger: Ledger,
    changed: Mapping[JobId, tuple[QueueRow, Request]],
    foreign: set[JobId],
) -> dict[JobId, str]:
    """Record and make these changes; return the faults by job.

    `foreign` are the jobs under a foreign hold; those that an operator now holds are added to it.
    """
    entries: dict[JobId, Claim] = {}
    batch: list[tuple[JobId, Update]] = []
    for job, (row, want) in changed.items():
        entries[job] = replace(ledger[job], before=want)
        clear, ask = updates.ClearRequest(job), updates.SetRequest(job, want)
        changes: list[Update] = [clear, ask]
        if job not in foreign:
            asked = row.requested_nodes
            entries[job] = replace(entries[job], is_held=True, asked_when_held=asked)
            changes = [updates.Hold(job), clear, ask]
        elif row.restarts > 0 or row.started_s <= ledger.now_s():  # else its owner chose that time
            # Our hold would replace the foreign one, and Slurm does not show which user set a hold.
            # If the job is released now, its begin time prevents a start while it requests no GPU.
            changes = [updates.DelayStart(job), clear, replace(ask, begins_soon=True)]
        batch += [(job, change) for change in changes]
    # The jobs are held or pinned already: an unwritable ledger must not keep them so.
    with suppress(LedgerError):
        ledger.note(entries)
    faults = _attempt(slurm, batch)
    queue = slurm.queue()
    for job, (_, want) in changed.items():
        if job in queue and queue[job].state == "PENDING" and not _asks(queue[job], want):
            faults.setdefault(job, f"Slurm kept another request: {queue[job].request}")
    # An operator's hold has replaced ours.
    foreign |= {job for job in changed if job in queue and queue[job].is_held_by_operator}
    return faults


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
