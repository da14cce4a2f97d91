"""When and where a job could start, as sched/backfill tests it. Pure.

Read in Slurm's source (22.05: backfill.c, and the will-run test of select/cons_tres), and played
beside a real slurmctld:

* A planned job holds whole nodes from its start to its time limit; running jobs hold their GPUs.
* A later start is found by ending running jobs in the order of their time limits, not one by one
  but in groups: the first is of half a minute, each further one is twice as long. The start is then
  the last end of a group, so that starts far ahead are planned late.
* From 24.11 on a start later than now is tested with all jobs gone that end before it, and without
  those that end after the next time to try.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from hadar_slurm.lab.policies.slurm.selection import Counts, Taken

# Nodes as bits.
Mask = int
# Of free GPUs by slot, jobs by slot and allowed nodes.
Pick = Callable[[Counts, Counts, Mask], "Taken | None"]


class LimitEnd(NamedTuple):
    """A running job: when its limit ends, in seconds, its nodes and GPUs by slot."""

    end_s: float
    nodes: Mask
    taken: Taken


class _Span(NamedTuple):
    """From when to when, in seconds, which nodes no planned job holds."""

    begin_s: float
    end_s: float
    open: Mask


class FutureRoom:
    """The GPUs that are free now, and those that running jobs will free."""

    def __init__(
        self, free: Counts, jobs_on: Counts, group_s: float, slots_of: Sequence[Sequence[int]]
    ) -> None:
        # By slot: free GPUs, and jobs on its node. `slots_of`: the slots of each node.
        self.free, self.jobs_on, self._slots_of = free, jobs_on, slots_of
        self._group_s = group_s
        self._running: list[LimitEnd] = []
        # Changes with each start: what was found before is void.
        self.version = 0

    def run(self, ending: LimitEnd) -> None:
        """Count a job that runs, or that starts now: its GPUs are no longer in `free`."""
        insort(self._running, ending, key=lambda each: each.end_s)
        self._shift(self.jobs_on, ending, 1)
        self.version += 1

    def stop(self, ending: LimitEnd) -> None:
        """Free what a running job holds."""
        self._running.remove(ending)
        self._add(self.free, self.jobs_on, ending)
        self.version += 1

    def without(self, stopped: Iterable[LimitEnd]) -> tuple[list[int], list[int]]:
        """Return what would be free, and the jobs on each node, if these jobs were stopped."""
        free, jobs_on = list(self.free), list(self.jobs_on)
        for ending in stopped:
            self._add(free, jobs_on, ending)
        return free, jobs_on

    def soonest(
        self, mask: Mask, pick: Pick, since_s: float = 0.0, until_s: float = math.inf
    ) -> tuple[float, Taken] | None:
        """Return when and where a job could start on these nodes, `since_s` at the soonest.

        0 is now. None: not when the running jobs have ended that end until `until_s`.
        """
        before = [each for each in self._running if each.end_s < since_s and each.nodes & mask]
        free, jobs_on = self.without(before)
        if taken := pick(free, jobs_on, mask):
            return since_s, taken
        running = [each for each in self._running if since_s <= each.end_s <= until_s]
        for group in self._groups(mask, running):
            for ending in group:
                self._add(free, jobs_on, ending)
            if taken := pick(free, jobs_on, mask):
                return group[-1].end_s, taken
        return None

    def _groups(self, mask: Mask, running: Sequence[LimitEnd]) -> Iterator[list[LimitEnd]]:
        """Yield the running jobs on these nodes in groups that end together."""
        length_s, barrier_s, at = self._group_s, math.nan, 0
        while at < len(running):
            group: list[LimitEnd] = []
            while at < len(running):
                ending = running[at]
                at += 1
                if not ending.nodes & mask:
                    continue
                if math.isnan(barrier_s):
                    barrier_s = (ending.end_s // self._group_s + 1) * self._group_s
                group.append(ending)
                if at < len(running) and running[at].end_s > barrier_s + length_s:
                    break
            if group:
                yield group
            length_s *= 2
            while at < len(running) and running[at].end_s > barrier_s + length_s:
                length_s *= 2

    def _add(self, free: Counts, jobs_on: Counts, ending: LimitEnd) -> None:
        for at, count in ending.taken.items():
            free[at] += count
        self._shift(jobs_on, ending, -1)

    def _shift(self, jobs_on: Counts, ending: LimitEnd, by: int) -> None:
        nodes = ending.nodes
        while nodes:
            lowest = nodes & -nodes
            for at in self._slots_of[lowest.bit_length() - 1]:
                jobs_on[at] += by
            nodes ^= lowest


class HeldNodes:
    """The nodes that planned jobs hold; times in seconds, `now_s` included."""

    def __init__(self, now_s: float, window_s: float, resolution_s: float, nodes: Mask) -> None:
        self._resolution_s = resolution_s
        self._spans = [_Span(self._rounded(now_s), self._rounded(now_s + window_s), nodes)]

    def usable(
        self, start_s: float, end_s: float, *, looks_on: bool = False
    ) -> tuple[Mask, float | None]:
        """Return the nodes that none holds in that time, and when else to try."""
        later_s: float | None = None
        mask = -1
        for at, span in enumerate(self._spans):
            if span.end_s <= start_s:
                continue
            if later_s is None and at + 1 < len(self._spans):
                after = self._spans[at + 1].open
                if after & ~(mask & span.open):
                    later_s = span.end_s
            if span.begin_s > end_s:
                if looks_on and later_s is None and at + 2 < len(self._spans):
                    later_s = self._spans[at + 1].end_s
                break
            mask &= span.open
        return mask, later_s

    def is_held(self, start_s: float, end_s: float, nodes: Mask) -> bool:
        """Return whether a planned job holds any of the nodes in that time."""
        start_s, end_s = self._rounded(start_s), self._rounded(end_s)
        return any(
            nodes & ~span.open
            for span in self._spans
            if span.end_s > start_s and span.begin_s < end_s
        )

    def hold(self, start_s: float, end_s: float, nodes: Mask) -> None:
        """Hold nodes for a planned job."""
        start_s = max(self._rounded(start_s), self._spans[0].begin_s)
        end_s = max(self._rounded(end_s), start_s + self._resolution_s)
        found: list[_Span] = []
        for span in self._spans:
            if span.end_s <= start_s or span.begin_s >= end_s:
                found.append(span)
                continue
            cuts = (time for time in (start_s, end_s) if span.begin_s < time < span.end_s)
            for begin, end in pairwise((span.begin_s, *cuts, span.end_s)):
                inside = begin >= start_s and end <= end_s
                found.append(_Span(begin, end, span.open & ~nodes if inside else span.open))
        self._spans = _joined(found)

    def _rounded(self, time_s: float) -> float:
        return time_s // self._resolution_s * self._resolution_s


def _joined(spans: Iterable[_Span]) -> list[_Span]:
    """Return the spans without borders between equal ones."""
    found: list[_Span] = []
    for span in spans:
        if found and found[-1].open == span.open:
            found[-1] = found[-1]._replace(end_s=span.end_s)
        else:
            found.append(span)
    return found
