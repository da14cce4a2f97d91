"""Policy `sampling`: as many copies of each job, on such GPU types, as make the mean JCT least.

Source: "Sampling-based multi-job placement" (IEEE TPDS 35(6), 2024); who gets how many workers of
which type is `sharing.py`'s, which says what is known of it and what is ours. There a job may have
any number of workers, but one at least. Here:

* A *worker* is a copy of the job as HadarE forks it: a whole gang on a node of its own; the copies
  share the steps in proportion to their speeds. So the plan runs on Slurm too. A job that may not
  be forked has one.
* *More jobs than GPUs.* Who needs the least service on its fastest type is let in first, as long as
  everybody who was let in finds a type; the others wait.
* *Staying.* A type that a job is on counts as 5 % faster to it, and the present numbers of copies
  are one of the categories looked at: a move costs a restart.

Shares are worked out again at the beginning of a round when a job came or ended, or after half an
hour. What is left over goes to whoever waits. In the middle of a round only jobs that wait are
given any. The sample is drawn from the jobs' ids: the same jobs, the same sample.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from hadar_slurm.core.cluster import GpuType, JobId
from hadar_slurm.core.job import Job
from hadar_slurm.core.plan import Plan
from hadar_slurm.core.snapshot import Round, Snapshot
from hadar_slurm.lab.policies.greedy import remaining_service
from hadar_slurm.lab.policies.sharing import CATEGORIES, Counts, Market, share
from hadar_slurm.placement.allocator import Allocator
from hadar_slurm.placement.copies import Copies, held_by, may_fork, with_one_copy
from hadar_slurm.placement.node_assignment import assign_nodes
from hadar_slurm.policies.policy import PolicyOptions, SolverLimits

_STAYS = 1.05
# Shares are worked out again when a job came or ended, and after so many seconds in any case.
_HOLDS_S = 1800.0


@dataclass(frozen=True, slots=True)
class Sampling:
    """The policy; it solves the markets of so many categories."""

    limits: SolverLimits | None = None
    categories: int = CATEGORIES
    name: str = "sampling"

    def plan(self, snapshot: Snapshot, round_: Round) -> Plan:
        """Return who runs where, in how many copies."""
        board = Allocator(snapshot, round_)
        order = sorted(board.jobs, key=lambda job: remaining_service(job, board.gpu_types))
        solved, figures = round_.memory, {"categories": 0.0}
        if isinstance(solved, _Solved) and solved.holds_for(snapshot):
            for job in order:
                board.stay(job)
        else:
            figures = {"categories": float(self._share_out(board, order))}
            if round_.may_move:
                ids = frozenset(job.job_id for job in snapshot.plannable)
                solved = _Solved(snapshot.now_s, ids)
        _leftovers(board, order)
        copies = sum(len(allocation.copies) for allocation in board.placed.values())
        return board.plan(figures={**figures, "copies": float(copies)}, memory=solved)

    def _share_out(self, board: Allocator, order: Sequence[Job]) -> int:
        """Give jobs their shares; return the number of categories looked at."""
        jobs = list(_let_in(board, order))
        if not jobs:
            return 0
        found = share(
            _market(board, jobs),
            seed=_seed(jobs),
            categories=self.categories,
            held=np.array([len(held_by(job).copies) for job in jobs]),
            limits=self.limits,
        )
        if found is None:
            return 0
        _place(board, jobs, found.counts)
        return found.categories


@dataclass(frozen=True, slots=True)
class _Solved:
    """When shares were last worked out, in seconds, and for which jobs."""

    at_s: float
    jobs: frozenset[JobId]

    def holds_for(self, snapshot: Snapshot) -> bool:
        """Return whether the shares still stand: the same jobs, and not long ago."""
        is_recent = 0.0 <= snapshot.now_s - self.at_s < _HOLDS_S
        return is_recent and self.jobs == {job.job_id for job in snapshot.plannable}


def _let_in(board: Allocator, order: Sequence[Job]) -> Iterator[Job]:
    """Yield jobs for which there is a type each, all at once.

    A gang that no type alone can hold has none to be counted on: at the head of the line it is
    placed at once, behind others it takes what they leave.
    """
    queue = list(order)
    while queue and not _types_of(board, queue[0]):
        job = queue.pop(0)
        if not board.keep(job):
            board.start(job, board.by_speed(job))
    left = {gpu_type: board.room(gpu_type) for gpu_type in board.gpu_types}
    for job in queue:
        size = job.spec.num_gpus
        gpu_type = next(
            (gpu_type for gpu_type in _types_of(board, job) if left[gpu_type] >= size), None
        )
        if gpu_type is not None:
            left[gpu_type] -= size
            yield job


def _types_of(board: Allocator, job: Job) -> Sequence[GpuType]:
    return [gpu_type for gpu_type in board.by_speed(job) if board.may_use(job, gpu_type)]


def _market(board: Allocator, jobs: Sequence[Job]) -> Market:
    """Return the jobs and what there is for them, in the form that is shared out."""
    speeds = np.zeros((len(jobs), len(board.gpu_types)))
    most_on = np.zeros((len(jobs), len(board.gpu_types)), dtype=np.int64)
    sync_s = np.zeros(len(jobs))
    capacity = board.snapshot.cluster.capacity
    for row, job in enumerate(jobs):
        held = {slot.gpu_type for gang in held_by(job).gangs for slot, _ in gang.slots}
        for column, gpu_type in enumerate(board.gpu_types):
            if not board.may_use(job, gpu_type):
                continue
            stays = _STAYS if gpu_type in held else 1.0
            speeds[row, column] = stays * board.rate(job, gpu_type)
            slots = board.slots_for(job, gpu_type) if may_fork(job) else ()
            nodes = sum(capacity[slot] >= job.spec.num_gpus for slot in slots)
            most_on[row, column] = max(1, nodes)
        # Every round ends with making copies one, and alone it would take so many rounds.
        rounds = _work(job) / float(speeds[row].max()) / board.round.length_s
        sync_s[row] = job.spec.aggregation_cost_s * max(1.0, rounds)
    most = [job.spec.max_copies if may_fork(job) else 1 for job in jobs]
    return Market(
        work=np.array([_work(job) for job in jobs]),
        speeds=speeds,
        units=np.array([job.spec.num_gpus for job in jobs]),
        most=np.minimum(most, most_on.sum(axis=1)),
        most_on=most_on,
        sync_s=sync_s,
        room=np.array([board.room(gpu_type) for gpu_type in board.gpu_types]),
    )


def _work(job: Job) -> float:
    return max(job.steps_left, 1.0)


def _seed(jobs: Sequence[Job]) -> int:
    names = "\n".join(sorted(job.job_id for job in jobs))
    return int.from_bytes(hashlib.sha256(names.encode()).digest()[:8], "big")


def _place(board: Allocator, jobs: Sequence[Job], counts: Counts) -> None:
    """Give jobs their shares, as far as there are nodes: first one copy each, then the others."""
    copies = Copies(board)
    wanted: list[tuple[Job, dict[GpuType, int]]] = []
    for job, row in zip(jobs, counts, strict=True):
        held = {slot.gpu_type for gang in held_by(job).gangs for slot, _ in gang.slots}
        gpu_types = {
            gpu_type: int(n) for gpu_type, n in zip(board.gpu_types, row, strict=True) if n > 0
        }
        rank = {gpu_type: place for place, gpu_type in enumerate(board.by_speed(job))}
        first = sorted(gpu_types, key=lambda gpu_type: (gpu_type not in held, rank[gpu_type]))
        if any(board.choose(with_one_copy(job, gpu_type), gpu_type) for gpu_type in first):
            wanted.append((job, gpu_types))
    assign_nodes(board)
    placed = [(job, gpu_types) for job, gpu_types in wanted if job.job_id in board.placed]
    for job, _ in placed:
        copies.give(job, board.placed[job.job_id].gangs)
    for job, gpu_types in placed:
        gangs = board.placed[job.job_id].gangs
        if not may_fork(job) or gangs[0].is_spread:
            continue
        for gpu_type, number in gpu_types.items():
            missing = number - sum(gpu_type in gang.gpus_by_type for gang in gangs)
            gangs += tuple(islice(copies.places(job, [gpu_type], gangs), max(0, missing)))
        copies.give(job, gangs[: job.spec.max_copies])


def _leftovers(board: Allocator, order: Sequence[Job]) -> None:
    """Give jobs that were given nothing a gang that they hold, or whatever they can train on."""
    copies = Copies(board)
    for job in order:
        if job.job_id in board.placed:
            continue
        gang = next((gang for gang in held_by(job).gangs if copies.is_free(gang)), None)
        if gang is not None:
            copies.give(job, [gang])
        else:
            board.start(job, board.by_speed(job))


def make(options: PolicyOptions) -> Sampling:
    """Return the policy, as its entry point asks for it."""
    return Sampling(limits=options.limits)
