"""How a job is treated, and in mode `hold` whether Slurm has to keep a partition's queue. Pure.

Users' own choices win: the nodes they name, and their holds. Slurm knows nothing of jobs that
hadard holds: while plain jobs wait, they would get every GPU that becomes free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from enum import StrEnum

from hadar_slurm.engine.modes import Mode, Modes
from hadar_slurm.jobspec.description import Description
from hadar_slurm.slurm.client.parse import QueueRow
from hadar_slurm.slurm.client.state import SlurmState
from hadar_slurm.slurm.enforce.claim import NO_TEXT, Claim

# Reasons for which a plain job would not take GPUs that are free.
_WAITS_FOR_OTHERS = frozenset(("Dependency", "DependencyNeverSatisfied", "BeginTime"))


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
    is_apart = description.leaves or row.is_set_apart or claim.sized.is_kept
    is_unmanaged = is_apart or not is_placeable or names_nodes
    is_planned = not is_unmanaged and is_planned_here
    if row.state != "PENDING":
        # A migration would requeue and release it, and so remove its owner's hold.
        may_migrate = is_planned and not row.is_held_as_it_runs
        return Disposition.MANAGE if may_migrate else Disposition.IGNORE
    if is_planned and mode is Mode.STEER and not row.is_held:
        return Disposition.MANAGE
    if is_planned and mode is Mode.ADVISE:
        claim = replace(claim, preferred=NO_TEXT)  # that is to stay
    is_changed = claim.has_changed(row)
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


def waits_for_gpus(row: QueueRow) -> bool:
    """Return whether Slurm would start a job on GPUs that become free."""
    return (
        row.state == "PENDING"
        and not row.is_held
        and row.reason not in _WAITS_FOR_OTHERS
        and bool(row.gpus_per_node or row.gpus_otherwise)
    )


def jobs_beside_held(state: SlurmState, modes: Modes) -> list[QueueRow]:
    """Return the live jobs in partitions that share nodes with one of mode `hold`."""
    # By node with such a partition.
    shared = [
        frozenset(node.partitions)
        for node in state.nodes
        if any(modes.of(name) is Mode.HOLD for name in node.partitions)
    ]
    near = {
        partition: any(not names.isdisjoint(wanted) for names in shared)
        for partition in {row.partition for row in state.queue.values()}
        for wanted in [partition.split(",")]
    }
    return [row for row in state.queue.values() if row.is_live and near[row.partition]]


def must_steer(rows: Iterable[QueueRow], is_other: Callable[[QueueRow], bool]) -> bool:
    """Return whether Slurm has to keep the queue of these live jobs.

    It has to while a job that `is_other` waits for GPUs, and where their QOS differ.
    """
    qos: set[str] = set()
    for row in rows:
        if not (row.gpus_per_node or row.gpus_otherwise):
            continue
        qos.add(row.qos)
        if waits_for_gpus(row) and is_other(row):
            return True
    return len(qos) > 1


def is_outside(description: Description | None, claim: Claim) -> bool:
    """Return whether a job that waits unheld is not one that hadard has just released to start.

    A job that hadard has steered counts until it has started, so that the way does not change with
    every plain job that comes and goes.
    """
    is_plain = description is None or description.leaves or not description.is_held
    return is_plain or claim.steers or bool(claim.aimed or claim.steered)
