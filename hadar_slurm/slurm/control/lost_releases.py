"""Releases that a slurmctld has forgotten, which went down before it had saved them.

It saves its jobs every few seconds. The one that comes after it, on the same machine or on another,
then shows a job under the hold, and maybe on the pin, that it had before, though it has been
released, and may even have run. For its owner's hold that must not be taken: nobody would ever
release it. One slurmctld is told from another by the second of its start, so two that started
within the same second are one here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hadar_slurm.core.cluster import JobId
from hadar_slurm.slurm.client.parse import QueueRow
from hadar_slurm.slurm.client.protocol import SlurmAdapter
from hadar_slurm.slurm.control.claim import has_landed, is_free
from hadar_slurm.slurm.control.ledger import Claim, Ledger

# What a slurmctld has not forgotten after so many seconds it has saved. 22.05.8 forgot 15.
SAVED_AFTER_S = 60.0
# Who has not looked on since the release believes for no longer than this that it is forgotten.
_UNSEEN_S = 600.0


def lost_releases(
    slurm: SlurmAdapter, ledger: Ledger, queue: Mapping[JobId, QueueRow]
) -> dict[JobId, Claim]:
    """Return what the ledger should say of jobs that were released and are under a hold again.

    Under the slurmctld that was told of the release, the hold is the owner's. Under another, the
    release was forgotten, and the hold is ours, for as long as the release may have been unsaved:
    nobody has seen the job without a hold for long enough. An owner's hold of that very time counts
    as ours. Raises SlurmUnavailable.
    """
    ledger.booted_s = booted_s = slurm.site().booted_s
    found = {}
    for job, row in queue.items():
        entry = ledger[job]
        if not entry.released_s or not row.is_held_by_user or row.has_failed_to_launch:
            continue
        is_new = (
            entry.released_s >= ledger.opened_s or ledger.now_s() - entry.released_s < _UNSEEN_S
        )
        is_other = 0.0 not in (booted_s, entry.booted_s) and booted_s != entry.booted_s
        if is_new and is_other:
            found[job] = replace(entry, is_held=True)
        else:
            found[job] = replace(entry, released_s=0.0, booted_s=0.0)
    return found


def as_seen(entry: Claim, row: QueueRow, now_s: float) -> Claim:
    """Return an entry with what a job under nobody's hold, or an operator's, tells of ours."""
    if row.is_held_by_operator:
        return replace(entry, is_held=False)  # theirs has taken the place of ours
    # A requeue of ours may be on its way still, though its command was not answered.
    is_coming = row.state == "RUNNING" and row.restarts < entry.requeued
    if not is_free(row) or is_coming or has_landed(row, entry):
        return entry
    if entry.released_s > 0 and not 0 <= now_s - entry.released_s < SAVED_AFTER_S:
        if row.requested_nodes:
            return replace(entry, released_s=0.0, booted_s=0.0)
        # Neither held nor pinned by us any more.
        return replace(entry.of_signals, preferred=entry.preferred)
    return replace(entry, is_held=False, requeued=0)
