"""Sends updates so that none but a hold takes effect on a job that has started meanwhile.

Slurm up to 23.11 takes required nodes as a resize where the job runs, whatever else is in the
update (22.05.8). So they are set only once the job was held and its request cleared, which Slurm
refuses for a running job; it can then not start before the nodes are set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hadar_slurm.core.cluster import JobId
from hadar_slurm.errors import SlurmError
from hadar_slurm.slurm.client.protocol import SlurmAdapter
from hadar_slurm.slurm.client.updates import ClearRequest, SetRequest, Update


def send(slurm: SlurmAdapter, wished: Mapping[JobId, Sequence[Update]]) -> dict[JobId, SlurmError]:
    """Send the updates of each job in order; return the first fault of each.

    A request is set only where the clearing before it was not refused.
    """
    faults: dict[JobId, SlurmError] = {}
    left = {job: list(updates) for job, updates in wished.items()}
    while left:
        batch: list[tuple[JobId, Update]] = []
        for job, updates in left.items():
            is_first = True
            while updates and (is_first or not isinstance(updates[0], SetRequest)):
                batch.append((job, updates.pop(0)))
                is_first = False
        answers = slurm.change([update for _, update in batch])
        for (job, update), fault in zip(batch, answers, strict=True):
            if fault is not None:
                faults.setdefault(job, fault)
                if isinstance(update, ClearRequest):
                    left[job].clear()
        left = {job: updates for job, updates in left.items() if updates}
    return faults
