"""Classifies a job as managed, unmanaged or to be restored. Pure.

Users' own choices win: the nodes they name, and their holds.
"""

from __future__ import annotations

from enum import StrEnum

from hadar_slurm.jobspec.description import Description
from hadar_slurm.slurm.client.parse import QueueRow
from hadar_slurm.slurm.enforce.claim import Claim
from hadar_slurm.slurm.enforce.modes import Mode


class Disposition(StrEnum):
    """What to do with a job."""

    MANAGE = "manage"
    IGNORE = "ignore"
    # It waits under our hold or pin, but hadard may not place it.
    RESTORE = "restore"


def disposition_of(
    row: QueueRow,
    description: Description,
    claim: Claim,
    *,
    mode: Mode,
    is_planned_here: bool,
    is_placeable: bool,
) -> Disposition:
    """Classify a described job that is pending or holds GPUs.

    `mode` is that of its partition now; `is_planned_here`: the current plan is for that.
    `is_placeable`: the job is not scrontab's, and some of the nodes that its owner allows fit it
    with a known throughput.
    """
    names_nodes = bool(row.requested_nodes) and not claim.pins(row.requested_nodes)
    is_unmanaged = description.leaves or row.is_set_apart or not is_placeable or names_nodes
    is_planned = not is_unmanaged and is_planned_here
    if row.state != "PENDING":
        # A migration would requeue and release it, and so remove its owner's hold.
        may_migrate = is_planned and not row.is_held_as_it_runs
        return Disposition.MANAGE if may_migrate else Disposition.IGNORE
    is_changed = claim.has_changed(row)
    if is_planned and mode is Mode.STEER and not row.is_held:
        return Disposition.MANAGE
    if is_unmanaged or not mode.places:
        if is_changed:
            return Disposition.RESTORE
        return Disposition.MANAGE if is_planned and row.priority != 0 else Disposition.IGNORE
    if not is_planned:
        return Disposition.IGNORE
    if is_changed and (claim.holds or not row.is_held):
        return Disposition.MANAGE
    # A job with a cleared request under a foreign hold must get its request back: it would start
    # without GPUs once that hold is released. Any other job here is not under our hold: its user
    # has released it or holds it, or no hadard ran at its submission. A pin under a foreign hold
    # stays, because hadard places the job again once the hold is released.
    return Disposition.RESTORE if claim.has_cleared(row) else Disposition.IGNORE
