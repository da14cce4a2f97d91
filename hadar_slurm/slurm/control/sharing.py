"""Whether Slurm has to keep the queue of a partition in mode `hold`. Pure.

Slurm knows nothing of jobs that hadard holds: plain jobs would get every GPU that becomes free, and
QOS would not count. While such jobs wait, hadard steers there.
"""

from __future__ import annotations

from collections.abc import Iterable

from hadar_slurm.jobspec.description import Description
from hadar_slurm.slurm.client.parse import QueueRow
from hadar_slurm.slurm.control.claim import Claim

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


def must_steer(jobs: Iterable[tuple[QueueRow, Description | None, Claim]]) -> bool:
    """Return whether Slurm has to keep the queue of these live jobs.

    It has to while one waits for GPUs without a hold of hadard, and where their QOS differ. Jobs
    that hadard has steered count until they have started, so that the way does not change with
    every plain job that comes and goes.
    """
    qos: set[str] = set()
    for row, description, claim in jobs:
        if not (row.gpus_per_node or row.gpus_otherwise):
            continue
        qos.add(row.qos)
        if waits_for_gpus(row) and _is_outside(description, claim):
            return True
    return len(qos) > 1


def _is_outside(description: Description | None, claim: Claim) -> bool:
    """Return whether a job that waits unheld is not one that hadard has just released to start."""
    is_plain = description is None or description.leaves or not description.is_held
    return is_plain or claim.steers or bool(claim.steered)
