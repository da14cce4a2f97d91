"""Policy `yarn-cs`: first come, first served, nobody stopped, nobody let past.

Source: the capacity scheduler of Hadoop YARN with one queue, as Tiresias (NSDI'19), Gavel (OSDI'20)
and Hadar (IPDPS'24) compare with it. Applications are served in order of submission; what runs is
never preempted; and since the head of the queue collects containers until its gang is whole, nobody
behind it starts meanwhile (head-of-line blocking).

* Only a job that the open nodes could not hold if they were empty is passed over, for it would
  block all others for good.
* GPU types are one resource to YARN. A job takes the type with the most free GPUs (of equals the
  first by name) on which it fits and trains at all, on as few nodes as there are; or else several.
"""

from __future__ import annotations

from dataclasses import dataclass

from hadar_slurm.core.plan import Plan
from hadar_slurm.core.snapshot import Round, Snapshot
from hadar_slurm.placement.allocator import Allocator
from hadar_slurm.policies.policy import PolicyOptions


@dataclass(frozen=True, slots=True)
class YarnCapacity:
    """The policy."""

    name: str = "yarn-cs"

    def plan(self, snapshot: Snapshot, round_: Round) -> Plan:
        """Return who runs where in `round_`."""
        board = Allocator(snapshot, round_)
        waiting = [job for job in board.jobs if not board.stay(job)]
        for job in sorted(waiting, key=lambda job: job.spec.submitted_s):
            if not board.start(job, board.by_room(job)) and board.could_start(job):
                break
        return board.plan()


def make(_: PolicyOptions) -> YarnCapacity:
    """Return the policy, as its entry point asks for it."""
    return YarnCapacity()
