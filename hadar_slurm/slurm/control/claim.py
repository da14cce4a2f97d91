"""Whose a job is: hadard's to place, Slurm's alone, or one to give back. Pure.

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
    # It waits under a hold or a pin of ours and is not ours to place: it must not wait for us.
    RESTORE = "restore"


def stance(
    row: QueueRow,
    description: Description,
    ledger: Ledger,
    *,
    mode: Mode,
    plans_for: Mode,
    is_excluding: bool,
    can_run: bool,
) -> Disposition:
    """Return what to do with a described job that waits or holds GPUs.

    `mode` is that of its partition, `plans_for` that of the plan at hand. `is_excluding` says that
    it excludes nodes or is scrontab's, `can_run` that some nodes could hold it at a known speed.
    """
    is_pinned = is_pinned_by_us(row, ledger)
    is_theirs = (
        description.leaves
        or is_excluding
        or row.is_set_apart
        or (bool(row.requested_nodes) and not is_pinned)
        or not can_run
    )
    if row.state != "PENDING":
        # Moved, it would be requeued and released: its owner's hold would be gone.
        is_theirs = is_theirs or row.is_held_as_it_runs
        return Disposition.IGNORE if is_theirs or mode is not plans_for else Disposition.MANAGE
    is_ours = waits_for_us(row, ledger, was_submitted_held=description.is_held)
    if is_theirs or mode is not Mode.ENFORCE:
        if bears_of_us(row, ledger, was_submitted_held=description.is_held):
            return Disposition.RESTORE
        if is_theirs or mode is not plans_for or row.priority == 0:
            return Disposition.IGNORE
        return Disposition.MANAGE
    if plans_for is not Mode.ENFORCE:
        return Disposition.IGNORE
    if is_ours:
        return Disposition.MANAGE
    # Cut in two under another's hold: it would start without its GPUs once that is released.
    # Else neither held nor pinned by us: released or held by its user, or submitted when no daemon
    # was. A pin under another's hold stays: released, the job is placed anew.
    return Disposition.RESTORE if _was_cut(row, ledger) else Disposition.IGNORE


def was_submitted_held(description: Description | None) -> bool:
    """Return whether hadar-sbatch submitted the job under a hold, for us."""
    return description is not None and description.is_held


def waits_for_us(row: QueueRow, ledger: Ledger, *, was_submitted_held: bool) -> bool:
    """Return whether a job waits under a hold or a pin of ours, or with its request cut in two."""
    if row.state != "PENDING":
        return False
    if row.is_held:
        return is_held_by_us(row, ledger, was_submitted_held=was_submitted_held)
    return _was_cut(row, ledger) or is_pinned_by_us(row, ledger)


def bears_of_us(row: QueueRow, ledger: Ledger, *, was_submitted_held: bool) -> bool:
    """Return whether a pending job has a hold, a pin or a cut of ours, whoever else holds it."""
    return row.state == "PENDING" and (
        is_held_by_us(row, ledger, was_submitted_held=was_submitted_held)
        or _was_cut(row, ledger)
        or is_pinned_by_us(row, ledger)
    )


def is_held_by_others(row: QueueRow, ledger: Ledger, *, was_submitted_held: bool) -> bool:
    """Return whether a job waits under a hold that is not ours to lift."""
    return row.is_held and not is_held_by_us(row, ledger, was_submitted_held=was_submitted_held)


def _was_cut(row: QueueRow, ledger: Ledger) -> bool:
    """Return whether a job's request is as we leave it between the two halves of a change."""
    before = ledger[row.key].before
    return row.request.is_cleared and before is not None and not before.is_cleared


def is_held_by_us(row: QueueRow, ledger: Ledger, *, was_submitted_held: bool) -> bool:
    """Return whether the hold on a job is one that we placed, or hadar-sbatch for us."""
    if not row.is_held_by_user:
        return False
    if row.key in ledger:
        entry = ledger[row.key]
        # Slurm itself holds a job that it cannot start where we have pinned it.
        return entry.is_held or (row.reason == "BadConstraints" and is_pinned_by_us(row, ledger))
    # Without a ledger to tell, a job must not wait for somebody who has forgotten it: we may have
    # held any that has run before or is pinned.
    is_suspect = row.restarts > 0 or bool(row.requested_nodes)
    return was_submitted_held or (is_suspect and not ledger.is_whole)


def is_pinned_by_us(row: QueueRow, ledger: Ledger) -> bool:
    """Return whether the nodes that a job asks for were our choice."""
    if not row.requested_nodes:
        return False
    if row.key in ledger:
        # Others are its owner's choice, made since.
        return set(row.requested_nodes) == set(ledger[row.key].pinned)
    return not ledger.is_whole


def has_landed(row: QueueRow, entry: Claim) -> bool:
    """Return whether a hold of ours came as the job started, and would keep it, once requeued.

    A job that started with other nodes than it asked for before that hold did so when the hold was
    in place and released again: one that it shows now is its owner's.
    """
    return (
        row.is_held_as_it_runs
        and row.reason != "JobHeldAdmin"
        and entry.is_held
        and entry.asked_when_held is not None
        and set(row.requested_nodes) == set(entry.asked_when_held)
    )


def is_free(row: QueueRow) -> bool:
    """Return whether a job is under nobody's hold."""
    return row.state == "RUNNING" or (row.state == "PENDING" and row.priority > 0)
