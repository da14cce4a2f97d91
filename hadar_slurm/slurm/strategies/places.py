"""The places of a user's own jobs in Slurm's queue, which exchange them by nice values. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from hadar_slurm.core.cluster import JobId
from hadar_slurm.slurm.client.parse import QueueRow

# Below this a priority is a hold, or the lowest, which a new job has too before it has any age. Its
# place is not known then, and only a negative nice value changes its priority.
_LEAST_PRIORITY = 2
# By how much a successor is put above all others: their ages count only at Slurm's next calculation
# of priorities, which is five minutes away at most by default. No priority is above the last.
_AHEAD, _MOST_PRIORITY = 50_000, (1 << 32) - 1000
# Slurm refuses a nice value beyond this, of either sign.
_MOST_NICE = (1 << 31) - 3


def nice_values(
    groups: Iterable[Sequence[QueueRow]],
    first: Sequence[JobId],
    shown: Mapping[JobId, int],
    own: Callable[[JobId, int], int],
    urgent: Collection[JobId] = (),
    top: int = 0,
) -> dict[JobId, int]:
    """Return the nice values to be set.

    `groups` are jobs that may exchange places; those in `first` get the best ones, in that order.
    `shown` are the values that Slurm shows, `own` returns the owner's part of one. Jobs in `urgent`
    are put above the priority `top`. A place is the priority that a job has with its owner's value.
    """
    order = {job: at for at, job in enumerate(first)}
    above = min(top + _AHEAD, _MOST_PRIORITY)
    found: dict[JobId, int] = {}
    for group in groups:
        rows = [row for row in group if row.key in shown]
        owners = {row.key: own(row.key, shown[row.key]) for row in rows}
        places = {row.key: row.priority + shown[row.key] - owners[row.key] for row in rows}
        found |= {key: owners[key] + places[key] - above for key in places if key in urgent}
        rows = [row for row in rows if row.key not in urgent and row.priority >= _LEAST_PRIORITY]
        rows.sort(key=lambda row: (order.get(row.key, len(order)), -places[row.key]))
        best = sorted((places[row.key] for row in rows), reverse=True)
        priorities = [row.priority for row in rows]
        # Places move with age and fair share: an order that holds is left as it is.
        is_right = priorities == sorted(priorities, reverse=True)
        # One that was urgent and is no longer.
        is_raised = any(priority > best[0] for priority in priorities)
        if is_raised or not is_right:
            of_row = zip(rows, best, strict=True)
            found |= {r.key: owners[r.key] + places[r.key] - place for r, place in of_row}
    wanted = {job: max(-_MOST_NICE, min(_MOST_NICE, nice)) for job, nice in found.items()}
    return {job: nice for job, nice in wanted.items() if nice != shown[job]}


def groups(rows: Iterable[QueueRow]) -> list[list[QueueRow]]:
    """Return the jobs that may exchange places: those of one user, account, partition and QOS."""
    found: defaultdict[tuple[str, ...], list[QueueRow]] = defaultdict(list)
    for row in rows:
        found[row.user, row.account, row.partition, row.qos].append(row)
    return list(found.values())
