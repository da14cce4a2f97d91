"""Whether Slurm has to keep the queue of a partition in mode `hold`. Pure.

Slurm knows nothing of jobs that hadard holds: plain jobs would get every GPU that becomes free, and
QOS would not count. While such jobs wait, hadard steers there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hadar_slurm.jobspec.description import Description
from hadar_slurm.slurm.client.parse import QueueRow
from hadar_slurm.slurm.client.state import SlurmState
from hadar_slurm.slurm.enforce.claim import Claim
from hadar_slurm.slurm.enforce.modes import Mode, Modes

# Reasons for which a plain job would not take GPUs that are free.
_WAITS_FOR_OTHERS = frozenset(("Dependency", "DependencyNeverSatisfied", "BeginTime"))


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
