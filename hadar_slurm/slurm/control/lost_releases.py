"""Releases that were lost because slurmctld went down before it had saved them.

slurmctld saves its jobs every few seconds. Its successor, on the same machine or another, then
shows a released job, which may even have run, under its former hold and perhaps pin. hadard must
not take that for the owner's hold: the job would stay held. Controllers are distinguished by the
second of their start, so two that started within the same second count as one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hadar_slurm.core.cluster import JobId
from hadar_slurm.slurm.client.parse import QueueRow
from hadar_slurm.slurm.client.protocol import SlurmAdapter
from hadar_slurm.slurm.control.disposition import is_held_while_starting
from hadar_slurm.slurm.control.ledger import Claim, Ledger

# slurmctld has saved a release after this long. 22.05.8 lost the last 15 s.
SAVED_AFTER_S = 60.0
# A hadard started after the release assumes a loss for no longer than this after it.
_UNSEEN_S = 600.0


def lost_releases(
    slurm: SlurmAdapter, ledger: Ledger, queue: Mapping[JobId, QueueRow]
) -> dict[JobId, Claim]:
    """Return the entries of jobs that we released and that are held again.

    Under the slurmctld that took the release, the hold is the owner's. Under another, the release
    was lost and hadard's hold remains, unless the job was observed without a hold for so long that
    the release was saved. An owner's hold set within that time counts as hadard's. Raises
    SlurmUnavailable.
    """
    ledger.booted_s = booted_s = slurm.site().booted_s
    found = {}
    for job, row in queue.items():
        entry = ledger[job]
        if not entry.released_s or not row.is_held_by_user or row.has_failed_to_launch:
            continue
        age_s = ledger.now_s() - entry.released_s
        is_new = entry.released_s >= ledger.opened_s or age_s < _UNSEEN_S
        is_other = 0.0 not in (booted_s, entry.booted_s) and booted_s != entry.booted_s
        lost, owned = replace(entry, is_held=True), replace(entry, released_s=0.0, booted_s=0.0)
        found[job] = lost if is_new and is_other else owned
    return found


def as_seen(entry: Claim, row: QueueRow, now_s: float) -> Claim:
    """Return the entry of a job after an observation without a hold, or with an operator's."""
    if row.is_held_by_operator:
        return replace(entry, is_held=False)  # it has replaced ours
    # Our requeue may still be in progress although its command was not answered.
    is_coming = row.state == "RUNNING" and row.restarts < entry.requeued
    is_free = row.state == "RUNNING" or (row.state == "PENDING" and row.priority > 0)
    if not is_free or is_coming or is_held_while_starting(row, entry):
        return entry
    if entry.released_s > 0 and not 0 <= now_s - entry.released_s < SAVED_AFTER_S:
        if row.requested_nodes:
            return replace(entry, released_s=0.0, booted_s=0.0)
        # No longer held or pinned by us.
        return replace(entry.of_signals, preferred=entry.preferred)
    return replace(entry, is_held=False, requeued=0)
