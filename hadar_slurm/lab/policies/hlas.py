"""Policy `hlas`: least attained service where GPUs differ, for jobs of unknown length.

Source: the online scheduler of Hare (IEEE Transactions on Cloud Computing 12(4), 2024), of which
only the name, heterogeneity-aware least attained service, and the purpose are published openly.
The rule is our reconstruction:

* *Attained service* is counted by what it was worth: a GPU-second on a type on which the job runs
  at a tenth of its best speed is a tenth of a GPU-second. Who was given slow GPUs does not lose its
  place for it.
* *Queues* are those of Tiresias (NSDI'19): a job falls a queue at 3,250 and at 7,200 such
  GPU-seconds; queues are served in order; in a queue those that run go before those that wait.
* *Types.* Within that, a type goes to the job that it suits best: by comparative advantage, its
  speed there over its mean speed on all types of the cluster, then by arrival. One that runs moves
  to another type only if it gains a tenth (ours): a move costs a restart.

No step count is looked at, of the whole or done (`unknown_lengths`). On identical GPUs all
advantages are 1 and all weights too, and the plan is that of policy `tiresias`. What is not known
here: whether Hare has queues at all, and their limits.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from hadar_slurm.core.cluster import GpuType
from hadar_slurm.core.job import Job, Phase
from hadar_slurm.core.plan import Plan
from hadar_slurm.core.snapshot import Round, Snapshot
from hadar_slurm.lab.policies.lengths import normalised_service, unknown_lengths
from hadar_slurm.placement.allocator import Allocator
from hadar_slurm.placement.comparative_advantage import advantages
from hadar_slurm.placement.node_assignment import assign_nodes
from hadar_slurm.policies.policy import PolicyOptions


@dataclass(frozen=True, slots=True)
class Hlas:
    """The policy; `limits_gpu_s` are the GPU-seconds at which a job leaves each queue, rising."""

    limits_gpu_s: tuple[float, ...] = (3250.0, 7200.0)
    name: str = "hlas"

    def plan(self, snapshot: Snapshot, round_: Round) -> Plan:
        """Return who runs where in `round_`."""
        board = Allocator(unknown_lengths(snapshot), round_)
        places = {job.job_id: self._place_in_line(job, board.gpu_types) for job in board.jobs}
        order = sorted(board.jobs, key=lambda job: (places[job.job_id], job.spec.submitted_s))
        for _, alike in groupby(order, key=lambda job: places[job.job_id]):
            if not board.has_room:
                break
            _serve(board, list(alike))
        assign_nodes(board)
        board.fill(order)
        return board.plan()

    def _place_in_line(self, job: Job, gpu_types: Sequence[GpuType]) -> tuple[int, bool]:
        queue = bisect_right(self.limits_gpu_s, normalised_service(job, gpu_types))
        return (queue, job.phase is Phase.QUEUED)


def _serve(board: Allocator, jobs: Iterable[Job]) -> None:
    """Reserve types for jobs of one queue, the pair of greatest advantage first."""
    pairs = []
    for place, job in enumerate(jobs):
        suits = advantages(board, job)
        if board.runs_on(job) not in suits and board.keep(job):
            continue
        pairs += [(-advantage, place, gpu_type, job) for gpu_type, advantage in suits.items()]
    served = set()
    for _, place, gpu_type, job in sorted(pairs, key=lambda pair: pair[:3]):
        if place in served:
            continue
        # Where it is it may stay even if nobody could start there.
        if board.choose(job, gpu_type) or (board.runs_on(job) == gpu_type and board.keep(job)):
            served.add(place)


def make(_: PolicyOptions) -> Hlas:
    """Return the policy, as its entry point asks for it."""
    return Hlas()
