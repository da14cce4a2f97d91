"""Stops and starts that would leave GPUs to other jobs. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from hadar_slurm.core.cluster import JobId, Slot
from hadar_slurm.engine.actions import Action, Start, Stop


def gapped(
    actions: Iterable[Action], waiting: Collection[JobId], free: Mapping[Slot, int]
) -> list[Action]:
    """Return the stops and starts that would leave GPUs to plain jobs that wait.

    GPUs freed in one stop are safe only with a successor that waits in Slurm's queue: a job in
    `waiting`. A running job is no successor, since it has to leave its own GPUs first. So only as
    many jobs are stopped as these need.
    """
    stops = [action for action in actions if isinstance(action, Stop)]
    missing: Counter[Slot] = Counter()
    left = Counter(free)
    for start in actions:
        if isinstance(start, Start) and start.job_id in waiting:
            for slot, count in start.gang.slots:
                missing[slot] += max(0, count - max(0, left[slot]))
                left[slot] -= count
    kept: list[Stop] = []
    for stop in stops:
        if any(missing[slot] > 0 for slot, _ in stop.gang.slots):
            missing.subtract(dict(stop.gang.slots))
            kept.append(stop)
    return [
        action
        for action in actions
        if (isinstance(action, Stop) and action not in kept)
        or (
            isinstance(action, Start)
            and action.job_id not in waiting
            and any(left[slot] < count for slot, count in action.gang.slots)
        )
    ]
