"""Policy `tiresias`: discretised two-dimensional least attained service.

Source: Tiresias (NSDI'19, section 3.3, Discretized 2D-LAS) and its published simulator. A job's
attained service is GPUs x seconds. It begins in queue 0 and falls to the next queue for each limit
that it has reached; the limits are those the simulator ships, 3,250 and 7,200 GPU-seconds. Queues
are served in order; within a queue those that run go first, then first come, first served. A job
that does not fit is skipped; those that run and are not reached are stopped.

What is left out: the promotion of starved jobs to queue 0, which is off in the simulator's
defaults, and the placement by a profile of the model's tensors, which no trace here has.

Tiresias knows one GPU type. Ours takes types by plenty: a job that is to run stays where it is if
it can; any other takes the type with the most GPUs not yet given out (of equals the first by name)
on which it fits. How fast it is there plays no part, only that it trains at all.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from hadar_slurm.core.job import Job, Phase
from hadar_slurm.core.plan import Plan
from hadar_slurm.core.snapshot import Round, Snapshot
from hadar_slurm.lab.policies.lengths import unknown_lengths
from hadar_slurm.placement.allocator import Allocator
from hadar_slurm.placement.node_assignment import assign_nodes
from hadar_slurm.policies.policy import PolicyOptions


@dataclass(frozen=True, slots=True)
class Tiresias:
    """The policy; `limits_gpu_s` are the GPU-seconds at which a job leaves each queue, rising."""

    limits_gpu_s: tuple[float, ...] = (3250.0, 7200.0)
    name: str = "tiresias"

    def plan(self, snapshot: Snapshot, round_: Round) -> Plan:
        """Return who runs where in `round_`."""
        board = Allocator(unknown_lengths(snapshot), round_)
        order = sorted(board.jobs, key=self._place_in_line)
        return serve_by_plenty(board, order)

    def _place_in_line(self, job: Job) -> tuple[int, bool, float]:
        has_run = bool(job.progress.service_by_type)
        service_gpu_s = job.progress.service_gpu_s if has_run else 0.0
        queue = bisect_right(self.limits_gpu_s, service_gpu_s)
        return (queue, job.phase is Phase.QUEUED, job.spec.submitted_s)


def serve_by_plenty(board: Allocator, order: Sequence[Job]) -> Plan:
    """Give GPUs to jobs in order: who runs stays if it can, others take the type with most room."""
    for job in order:
        if not board.has_room:
            break
        held = board.runs_on(job)
        if not (held and board.choose(job, held)) and not board.keep(job):
            any(board.choose(job, gpu_type) for gpu_type in board.by_room(job))
    assign_nodes(board)
    board.fill(order, board.by_room)
    return board.plan()


def make(_: PolicyOptions) -> Tiresias:
    """Return the policy, as its entry point asks for it."""
    return Tiresias()
