"""The GPUs that will be free, by time limits and by the nodes that planned jobs hold. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np

from hadar_slurm.core.job import Shape
from hadar_slurm.lab.policies.slurm.selection import Counts, Taken


class FreeOverTime:
    """Free GPUs by slot from now on, as steps; times in seconds from now.

    `room[i]` holds from `times[i]` to `times[i + 1]`, and the last for ever.
    """

    def __init__(
        self, free: Counts, ends: Iterable[tuple[float, Mapping[int, int]]], resolution: float
    ) -> None:
        steps: dict[float, Counts] = {}
        for end, gpus in ends:
            at = max(resolution, math.ceil(end / resolution) * resolution)
            more = steps.setdefault(at, np.zeros_like(free))
            for slot, count in gpus.items():
                more[slot] += count
        order = sorted(at for at in steps if at < math.inf)
        self.times: list[float] = [0.0, *order]
        self.room = np.cumsum(np.array([free, *(steps[at] for at in order)]), axis=0)

    def soonest(self, lasts: float, wanted: Shape, mask: Counts, since: int = 0) -> int | None:
        """Return the first step, from `since` on, from which a job could run to its limit.

        `mask`: the slots that it may use. No nodes in `wanted`: in any split. None: at no time.
        """
        num_nodes, size = wanted
        room = self.room[since:, mask]
        last = np.searchsorted(self.times, np.array(self.times[since:]) + lasts, side="left")
        last -= since
        count = len(room)
        if not num_nodes:
            ends = np.maximum(last, np.arange(count) + 1)
            sums = (room[at : ends[at]].min(axis=0).clip(0).sum() for at in range(count))
            return next((at + since for at, total in enumerate(sums) if total >= size), None)
        # The first step at or after each in which the slot lacks room.
        lacks = np.where(room < size, np.arange(count)[:, None], count)
        until = np.minimum.accumulate(lacks[::-1], axis=0)[::-1]
        enough = (until >= np.minimum(last, count)[:, None]).sum(axis=1) >= num_nodes
        found = np.flatnonzero(enough)
        return int(found[0]) + since if len(found) else None

    def least(self, since: int, lasts: float) -> Counts:
        """Return, by slot, the GPUs that are free from a step on for `lasts` seconds."""
        until = int(np.searchsorted(self.times, self.times[since] + lasts, side="left"))
        found: Counts = self.room[since : max(since + 1, until)].min(axis=0)
        return found

    def start(self, taken: Taken, lasts: float) -> None:
        """Take GPUs from now on, for `lasts` seconds."""
        until = self._cut(lasts)
        for slot, count in taken.items():
            self.room[:until, slot] -= count

    def hold(self, since: int, lasts: float, slots: Counts) -> None:
        """Take all GPUs of some slots from a step on, for `lasts` seconds."""
        until = self._cut(self.times[since] + lasts)
        self.room[since:until, slots] = 0

    def _cut(self, time: float) -> int:
        """Return the step that begins at a time, and make it if there is none."""
        at = int(np.searchsorted(self.times, time, side="left"))
        if time < math.inf and (at == len(self.times) or self.times[at] != time):
            self.times.insert(at, time)
            self.room = np.insert(self.room, at, self.room[at - 1], axis=0)
        return at if time < math.inf else len(self.times)
