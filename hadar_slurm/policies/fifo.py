"""Policy `yarn-cs`: strict FIFO, no preemption, no backfill.

Source: the capacity scheduler of Hadoop YARN with one queue, as Tiresias (NSDI'19), Gavel (OSDI'20)
and Hadar (IPDPS'24) compare with it. Applications are served in order of submission and never
preempted; the head of the queue collects containers until its gang is complete, so no job behind it
starts meanwhile (head-of-line blocking).

* Only a job too large for the empty open nodes is skipped, since it would block all later ones.
* GPU types are one resource to YARN. A job takes the type with the most free GPUs (of equals the
  first by name) on which it fits and trains, on the fewest nodes; or else several types.
"""

from __future__ import annotations

from dataclasses import dataclass

from hadar_slurm.core.plan import Plan
from hadar_slurm.core.snapshot import Round, Snapshot
from hadar_slurm.placement.allocator import Allocator
from hadar_slurm.policies.entry_point import without_options


@dataclass(frozen=True, slots=True)
class YarnCapacity:
    """The policy."""

    name: str = "yarn-cs"

    def plan(self, snapshot: Snapshot, round_: Round) -> Plan:
        """Return which jobs run in `round_`, and on which GPUs."""
        allocator = Allocator(snapshot, round_)
        waiting = [job for job in allocator.jobs if not allocator.stay(job)]
        for job in sorted(waiting, key=lambda job: job.spec.submitted_s):
            if not allocator.start(job, allocator.by_room(job)) and allocator.could_start(job):
                break
        return allocator.plan()


make = without_options(YarnCapacity)
