"""Uses GPUs that no job in the queue's order could take, at almost no loss to that order.

Serving a queue in order leaves a few GPUs of a type idle where only large gangs still wait: gangs
of 2 and 4 take 18 of 20, and the next needs 4. A different set of nearly the same worth often fits
better. Finding it is a knapsack problem, small enough for an exact solution: of all sets whose
worth is at most `tolerance` below the queue's own, the one that uses the most GPUs, and of those
the one of the most worth.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

# Number of the last jobs taken and of the first waiting ones that are considered.
_AROUND = 64


class Item(NamedTuple):
    """A job that could run: its position in the queue, its gang, its worth per second."""

    position: int
    num_gpus: int
    worth: float


def refit(
    taken: Sequence[Item], waiting: Sequence[Item], room: int, tolerance: float
) -> set[int] | None:
    """Return the positions of a set that uses more of the `room` left beside `taken`; None if none.

    `taken` and `waiting` are in the order of the queue; `tolerance` is a share of the worth of the
    jobs considered.
    """
    kept, loose = taken[:-_AROUND], taken[-_AROUND:]
    waiting = [item for item in waiting if item.num_gpus > room][:_AROUND]
    if room <= 0 or not waiting or not loose:
        return None
    used = sum(item.num_gpus for item in loose)
    worth = sum(item.worth for item in loose)
    items = sorted((*loose, *waiting))
    # best[c] is the most worth of a set that uses exactly c GPUs, first of no items, then of more.
    best = np.full(used + room + 1, -np.inf)
    best[0] = 0.0
    takes = []
    for item in items:
        added = np.full(len(best), -np.inf)
        if item.num_gpus < len(best):
            added[item.num_gpus :] = best[: -item.num_gpus] + item.worth
        takes.append(added > best)
        best = np.maximum(best, added)
    # The queue's own set is among these; rounding must not lose it.
    most = int(np.flatnonzero(best >= worth * (1.0 - tolerance) - 1e-12 * abs(worth)).max())
    if most <= used:
        return None
    chosen = {item.position for item in kept}
    for item, is_taken in zip(reversed(items), reversed(takes), strict=True):
        if is_taken[most]:
            chosen.add(item.position)
            most -= item.num_gpus
    return chosen
