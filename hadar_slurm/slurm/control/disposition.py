"""Classifies a job as managed, unmanaged or to be restored. Pure.

Users' own choices win: the nodes they name or exclude, their reservations, their holds.
"""

from __future__ import annotations

from enum import StrEnum

from hadar_slurm.jobspec.description import Description
from hadar_slurm.slurm.client.parse import QueueRow
from hadar_slurm.slurm.control.ledger import Claim, Ledger
from hadar_slurm.slurm.control.modes import Mode


class Disposition(StrEnum):
    """What to do with a job."""

    MANAGE = "manage"
    IGNORE = "ignore"
    # It waits under our hold or pin, but hadard may not place it.
    RESTORE = "restore"


def disposition_of(
    row: QueueRow,
    description: Description,
    ledger: Ledger,
    *,
    mode: Mode,
    plans_for: Mode,
    is_placeable: bool,
) -> Disposition:
    """Classify a described job that is pending or holds GPUs.

    `mode` is that of its partition, `plans_for` that of the current plan. `is_placeable`: the job
    excludes no nodes, is not scrontab's, and some nodes fit it with a known throughput.
    """
    names_nodes = bool(row.requested_nodes) and not is_pinned_by_us(row, ledger)
    is_unmanaged = description.leaves or row.is_set_apart or not is_placeable or names_nodes
    is_planned = not is_unmanaged and mode is plans_for
    if row.state != "PENDING":
        # A migration would requeue and release it, and so remove its owner's hold.
        may_migrate = is_planned and not row.is_held_as_it_runs
        return Disposition.MANAGE if may_migrate else Disposition.IGNORE
    is_changed = is_changed_by_us(row, description, ledger)
    if is_unmanaged or mode is not Mode.ENFORCE:
        if is_changed:
            return Disposition.RESTORE
        return Disposition.MANAGE if is_planned and row.priority != 0 else Disposition.IGNORE
    if not is_planned:
        return Disposition.IGNORE
    if is_changed and not has_foreign_hold(row, description, ledger):
        return Disposition.MANAGE
    # A job with a cleared request under a foreign hold must get its request back: it would start
    # without GPUs once that hold is released. Any other job here is not under our hold: its user
    # has released it or holds it, or no hadard ran at its submission. A pin under a foreign hold
    # stays, because hadard places the job again once the hold is released.
    return Disposition.RESTORE if _was_cleared(row, ledger) else Disposition.IGNORE


def is_changed_by_us(row: QueueRow, description: Description | None, ledger: Ledger) -> bool:
    """Return whether hadard has held, pinned or cleared a pending job, foreign hold or not."""
    return row.state == "PENDING" and (
        is_held_by_us(row, description, ledger)
        or _was_cleared(row, ledger)
        or is_pinned_by_us(row, ledger)
    )


def has_foreign_hold(row: QueueRow, description: Description | None, ledger: Ledger) -> bool:
    """Return whether a job waits under a foreign hold, which hadard must not release."""
    return row.is_held and not is_held_by_us(row, description, ledger)


def _was_cleared(row: QueueRow, ledger: Ledger) -> bool:
    """Return whether a request is cleared, as between the two updates of a change by hadard."""
    before = ledger[row.key].before
    return row.request.is_cleared and before is not None and not before.is_cleared


def is_held_by_us(row: QueueRow, description: Description | None, ledger: Ledger) -> bool:
    """Return whether hadard, or hadar-sbatch for it, set the hold on a job."""
    if not row.is_held_by_user:
        return False
    if row.key in ledger:
        # Slurm holds a job that it cannot start on the nodes of its pin.
        has_bad_pin = row.reason == "BadConstraints" and is_pinned_by_us(row, ledger)
        return ledger[row.key].is_held or has_bad_pin
    # Without a ledger, any hold on a job that has run before or names nodes is suspect: no job may
    # wait for a hadard that has lost its record.
    is_suspect = row.restarts > 0 or bool(row.requested_nodes)
    was_submitted_held = description is not None and description.is_held
    return was_submitted_held or (is_suspect and not ledger.was_read)


def is_pinned_by_us(row: QueueRow, ledger: Ledger) -> bool:
    """Return whether hadard chose the nodes that a job requests."""
    nodes = set(row.requested_nodes)
    # Different nodes are its owner's later choice.
    was_by_us = nodes == set(ledger[row.key].pinned) if row.key in ledger else not ledger.was_read
    return bool(nodes) and was_by_us


def is_held_while_starting(row: QueueRow, entry: Claim) -> bool:
    """Return whether our hold raced with the job's start and is still set on the running job.

    A job that started with other nodes than it requested before that hold started after the hold
    was released: the hold that it now shows is its owner's.
    """
    return (
        row.is_held_as_it_runs
        and row.reason != "JobHeldAdmin"
        and entry.is_held
        and entry.asked_when_held is not None
        and set(row.requested_nodes) == set(entry.asked_when_held)
    )
