"""A plan for one round, and its validation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import compress
from operator import is_not, itemgetter

from hadar_slurm.core.cluster import JobId, Slot, natural_key, naturally_sorted
from hadar_slurm.core.gang import Allocation, Gang
from hadar_slurm.core.job import Job, Shape
from hadar_slurm.core.snapshot import Snapshot, shape_of


class WaitReason(StrEnum):
    """Why a job gets no GPUs in a round; "cannot now" is not "cannot ever"."""

    INSUFFICIENT = "no free GPUs fit its gang now"
    WOULD_TIE = "the GPUs that are free would tie it to their type for good"
    BETTER_LATER = "it waits for GPUs with which it will end sooner"
    OUTBID = "the price of GPUs is above what it gains"
    INFEASIBLE = "no node set of this cluster can hold its gang"
    NO_THROUGHPUT = "its speed is known on none of this cluster's GPU types"
    STOPPING = "it is still stopping"
    LIMITED = "a limit keeps it from starting"
    BREAKS_PLAN = "no valid plan can be made with it"


@dataclass(frozen=True, slots=True)
class Plan:
    """Allocations for the round, and a reason for every job without one.

    `figures` are for the journal. `memory` goes to the policy's next round (`Round.memory`),
    is private to the policy, and may be lost at any time. `next_round_s` is when jobs are to
    migrate again, if that is before the round would end.
    """

    allocations: tuple[tuple[JobId, Allocation], ...] = ()
    waiting: tuple[tuple[JobId, WaitReason], ...] = ()
    figures: tuple[tuple[str, float], ...] = ()
    memory: object = field(default=None, compare=False)
    next_round_s: float | None = None

    @classmethod
    def of(
        cls,
        allocations: Mapping[JobId, Allocation],
        waiting: Mapping[JobId, WaitReason],
        figures: Mapping[str, float] | None = None,
        memory: object = None,
    ) -> Plan:
        """Return a plan with its parts in canonical order."""
        return cls(
            tuple([(job_id, allocations[job_id]) for job_id in naturally_sorted(allocations)]),
            tuple([(job_id, waiting[job_id]) for job_id in naturally_sorted(waiting)]),
            tuple(sorted((figures or {}).items())),
            memory,
        )

    @property
    def by_id(self) -> dict[JobId, Allocation]:
        """Return the allocations by job."""
        return dict(self.allocations)

    def changes(self, held: Mapping[JobId, Allocation]) -> list[tuple[JobId, Allocation]]:
        """Return the allocations, in order, except those that are the very ones in `held`."""
        before = map(held.get, map(itemgetter(0), self.allocations))
        differs = map(is_not, map(itemgetter(1), self.allocations), before)
        return list(compress(self.allocations, differs))

    def with_waiting(self, jobs: Iterable[JobId], reason: WaitReason) -> Plan:
        """Return the plan with more jobs that wait for one reason."""
        more = [(job, reason) for job in jobs]
        waiting = sorted([*self.waiting, *more], key=lambda item: natural_key(item[0]))
        return replace(self, waiting=tuple(waiting)) if more else self


def is_plainly_valid(snapshot: Snapshot, plan: Plan) -> bool:
    """Return whether `plan` breaks no rule, as far as its changes alone show that; else False.

    Most jobs run and keep their GPUs: they need no check of their own.
    """
    placed, waiting, running = plan.by_id, dict(plan.waiting), snapshot.running
    others, left = snapshot.others_by_id, dict(snapshot.spare)
    if len(placed) != len(plan.allocations) or not placed.keys().isdisjoint(waiting):
        return False
    if not running.keys() <= placed.keys():
        for job_id in running.keys() - placed.keys():
            is_pinned = snapshot.by_id[job_id].is_pinned_in_place and not snapshot.rules.may_requeue
            if job_id not in waiting or is_pinned:
                return False
            _add(left, running[job_id], 1)
    for job_id, allocation in plan.changes(running):
        job = others.get(job_id) or snapshot.by_id.get(job_id)
        if job is None or next(broken_by_allocation(snapshot, job, allocation), None):
            return False
        _add(left, running.get(job_id, Allocation()), 1)
        _add(left, allocation, -1)
    # Jobs that hold GPUs and are neither running nor to be placed need a closer look.
    are_sound = all([
        job_id in placed or (job_id in waiting and not job.allocation.copies) or job.phase.is_final
        for job_id, job in others.items()
    ])  # fmt: skip
    return are_sound and min(left.values(), default=0) >= 0


def _add(gpus: dict[Slot, int], allocation: Allocation, times: int) -> None:
    for slot, count in allocation.slots:
        gpus[slot] = gpus.get(slot, 0) + times * count


def broken_by_allocation(snapshot: Snapshot, job: Job, allocation: Allocation) -> Iterator[str]:
    """Yield what a job's place breaks, as `is placed on n1, where it may not run`."""
    if not job.phase.is_plannable:
        yield f"is {job.phase} and cannot be placed"
    if job.left_out:
        yield "is left out and cannot be placed"
    yield from _broken_by_copies(job, allocation)
    if job.is_pinned_in_place and allocation != job.allocation:
        yield "cannot be moved now and must keep its GPUs"
    for _, gang in allocation.copies:
        # Only new places must follow the rules, not what runs already.
        if gang not in job.allocation.gangs:
            yield from _broken_by_gang(snapshot, job, gang)


def _broken_by_copies(job: Job, allocation: Allocation) -> Iterator[str]:
    num_copies, most = len(allocation.copies), job.spec.max_copies
    if not 1 <= num_copies <= most:
        yield f"has {num_copies} copies and may have {most}"
    wrong = [copy for copy, _ in allocation.copies if not 0 <= copy < most]
    if wrong and num_copies <= most:
        yield f"has no copy {wrong[0]}: they are numbered from 0 to {most - 1}"
    if num_copies > 1:
        nodes = Counter(node for gang in allocation.gangs for node in gang.gpus_by_node)
        shared = sorted(node for node, count in nodes.items() if count > 1)
        if shared:
            yield f"has two copies on {', '.join(shared)}; each needs a node of its own"
        if any(gang.is_spread for gang in allocation.gangs):
            yield "has several copies, and one of them spans nodes"


def _broken_by_gang(snapshot: Snapshot, job: Job, gang: Gang) -> Iterator[str]:
    nodes = snapshot.cluster.by_name
    unknown = [str(node) for node in gang.gpus_by_node if node not in nodes]
    if unknown:
        yield f"is placed on unknown node {', '.join(unknown)}"
        return
    if not job.spec.has_size_of(gang):
        sizes = sorted({job.spec.gpus_on(gpu_type) for gpu_type in gang.gpus_by_type})
        yield f"gets {gang.num_gpus} GPUs and its gang is {' or '.join(map(str, sizes))}"
    elif snapshot.rules.is_uniform and shape_of(gang) not in (None, *_shapes(job, gang)):
        yield f"gets the shape {shape_of(gang)}, which it does not allow"
    for node in gang.gpus_by_node:
        if not nodes[node].is_schedulable:
            yield f"is placed on {node}, which takes no work"
        if not job.may_use(node):
            yield f"is placed on {node}, where it may not run"
    if job.bound_type is not None and set(gang.gpus_by_type) != {job.bound_type}:
        yield f"gets {gang} and can ask for {job.bound_type} only"
    reason = snapshot.rules.why_not(gang, snapshot.cluster)
    if reason:
        yield f"gets {gang}, which cannot be expressed: {reason}"
    if snapshot.rules.throughput(gang, job.spec.throughputs) <= 0:
        yield f"does not fit on {gang}"


def _shapes(job: Job, gang: Gang) -> tuple[Shape, ...]:
    return job.spec.shapes_on(next(iter(gang.gpus_by_type)))
