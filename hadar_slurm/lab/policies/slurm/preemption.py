"""Which running jobs make room for another. Pure.

Read in Slurm's source (22.05: preempt/partition_prio and qos, _run_now of select/cons_tres):
candidates are taken in the order of their QOS' priorities, those on few nodes first, until the
job fits. Twice then (preempt_reorder_count=1) the last one is tried first, and after it those that
hold most of the nodes that were found. Every candidate tried until the job fits is stopped that
holds any of its nodes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from hadar_slurm.core.cluster import JobId, natural_key
from hadar_slurm.lab.policies.slurm.selection import Taken
from hadar_slurm.lab.policies.slurm.timeline import LimitEnd, Mask

# The first try, and one for each time that the candidates are put into another order.
_TRIES = 3


class Preemptible(NamedTuple):
    """A running job that may be stopped, and the priority of its QOS."""

    job_id: JobId
    priority: float
    ending: LimitEnd


class MadeRoom(NamedTuple):
    """The jobs to be stopped, and the GPUs that another then gets."""

    stopped: tuple[Preemptible, ...]
    taken: Taken


def room_by_stops(
    candidates: Sequence[Preemptible],
    find: Callable[[Sequence[Preemptible]], tuple[Taken, Mask] | None],
) -> MadeRoom | None:
    """Return how to make room; `find` says what a job would get if some candidates were stopped."""
    order = sorted(
        candidates,
        key=lambda each: (each.priority, each.ending.nodes.bit_count(), natural_key(each.job_id)),
    )
    room: MadeRoom | None = None
    for tries in range(1, _TRIES + 1):
        found = _first(order, find)
        if found is None:
            break
        number, taken, nodes = found
        tried = order[:number]
        held = tuple(each for each in tried if each.ending.nodes & nodes)
        room = MadeRoom(held, taken)
        if len(order) <= tries:
            break
        on = {each.job_id: float((each.ending.nodes & nodes).bit_count()) for each in tried}
        on[tried[-1].job_id] = math.inf
        order = sorted(order, key=lambda each: -on.get(each.job_id, 0.0))
    return room


def _first(
    order: Sequence[Preemptible], find: Callable[[Sequence[Preemptible]], tuple[Taken, Mask] | None]
) -> tuple[int, Taken, Mask] | None:
    """Return how many of the candidates have to be tried, in this order, and what is found then."""
    for number in range(1, len(order) + 1):
        if found := find(order[:number]):
            return number, *found
    return None
