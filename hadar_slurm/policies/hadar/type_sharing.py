"""Shares GPU types among jobs by what each would lose without its best type.

The *worth* of a type to a job is

    speed / (time left ** 0.5 * (number of GPUs) ** 0.5)

with the speed and the time left relative to the job's fastest type. So comparative advantage is
priced by remaining time: a job of five minutes does not give up a type on which it runs ten times
as fast because a job of a week gains a little more from it. To a running job, another type than its
own is worth what its speed is over the whole rest with the restart, divided by `STAYS`.

Which types the jobs get is a transportation problem. Vogel's approximation (Reinfeld and Vogel,
Mathematical Programming, Prentice-Hall 1958) solves it: the job whose *regret*, the worth of its
best type less that of the next, is largest takes its best type; once a type is full, regrets are
computed again. A job that can use one type only comes first, since the order lets it run; beside
other users' jobs only while its user is behind a share (shares.py), or naming the fastest type
alone would always get it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

from hadar_slurm.core.cluster import TypeIndex
from hadar_slurm.policies.hadar import tuning

# The worth of a type to a job, and the type.
Worth: TypeAlias = tuple[float, TypeIndex]


def worths(
    speeds: Sequence[float],
    types: Sequence[TypeIndex],
    num_gpus: int,
    left_s: float,
    *,
    held: tuple[TypeIndex, float] | None = None,
    is_first: bool = True,
) -> list[Worth]:
    """Return the worth of each of `types` to a job, the best first; of equals the first in `types`.

    The worth of an only type is infinite to a job that `is_first`. `speeds`: by type, relative to
    the job's fastest; `left_s`: seconds on that; `held`: the type on which it runs, and what a
    migration costs, in seconds.
    """
    if is_first and len(types) == 1:
        return [(math.inf, types[0])]
    left_s = max(1.0, left_s)
    unit = 1.0 / (left_s * num_gpus) ** tuning.URGENCY
    if held is None:
        found = [(unit * speeds[index], index) for index in types]
    else:
        own, restart_s = held
        moved = unit / tuning.STAYS / (1.0 + restart_s / left_s)
        found = [((unit if index == own else moved) * speeds[index], index) for index in types]
    return sorted(found, key=lambda pair: pair[0], reverse=True)


def share_types(
    jobs: Sequence[Sequence[Worth]],
    take: Callable[[int, TypeIndex], bool],
    is_full: Callable[[TypeIndex], bool],
) -> None:
    """Give each job one of its types, the job with the largest regret first.

    `jobs`: the worths of each job's types, the best first. `take` gives a type to the job at a
    position, and returns whether there was room for its gang; `is_full` says whether a type has no
    free GPUs left.
    """
    left = [_entry(position, list(pairs)) for position, pairs in enumerate(jobs) if pairs]
    while left:
        left.sort()
        queue, left = left, []
        for at, (_, position, pairs) in enumerate(queue):
            gpu_type = pairs[0][1]
            if not take(position, gpu_type):
                del pairs[0]
                left.append((0.0, position, pairs))
            elif is_full(gpu_type):
                left += queue[at + 1 :]
                break
        full = {pair[1] for _, _, pairs in left for pair in pairs if is_full(pair[1])}
        left = [
            _entry(position, open_)
            for _, position, pairs in left
            if (open_ := [pair for pair in pairs if pair[1] not in full])
        ]


def _entry(position: int, pairs: list[Worth]) -> tuple[float, int, list[Worth]]:
    """Return a tuple that sorts by what a job would lose without its best type, the most first."""
    second = pairs[1][0] if len(pairs) > 1 else 0.0
    return second - pairs[0][0], position, pairs
