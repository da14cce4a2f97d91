"""Plays a queue forward under one way of ranking and typing jobs, in milliseconds.

A simulation of what the policy would do from a snapshot to the end of all jobs in view, coarse
where that changes little, so that many ways can be compared in every decision:

* GPUs of a type are nodes counted by their free GPUs. A gang takes one of its shapes on the
  fullest nodes that hold it; which nodes these are is forgotten until the next round.
* At the beginning of a round all gangs that may move are placed again, in the order of the way.
  Within a round, GPUs that become free go to the jobs that wait, as under hadard.
* A round lasts as long as hadard's at first, later a share of the time played
  (`Resolution.growth`).
* A change of type, and a start after a stop, cost the job's restart time; moves between nodes of a
  type are free, and every node is open to every job that may use its type.
* Jobs that cannot move are inserted without prices, and waits count once (`insertion.py`).
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TypeAlias

from hadar_slurm.core.cluster import TypeIndex
from hadar_slurm.core.job import Shape, SizeBelief
from hadar_slurm.policies.hadar.insertion import FreedGpus, FreeGpus
from hadar_slurm.policies.hadar.kinds import JobKind
from hadar_slurm.policies.hadar.type_sharing import share_types, worths
from hadar_slurm.policies.hadar.ways import FIRST

# The gangs of a type on its nodes: type, number of nodes, GPUs on each.
_Part: TypeAlias = tuple[TypeIndex, int, int]

# Far ahead, how often in a round the ends of jobs are looked at.
_LOOKS_A_ROUND = 4
# Looking at this many jobs that wait or run on takes as long as placing one.
_LIGHT = 8
# Below this share of a job's time left, or this many seconds, a job has ended.
_ROUNDING, _ROUNDING_S = 1e-9, 1e-6


@dataclass(slots=True, eq=False)
class PlayedJob:
    """A job that is played forward; times in seconds from the snapshot."""

    kind: JobKind
    # Submission: negative for jobs in the queue, positive for expected arrivals.
    submitted_s: float
    # Time left on its fastest type.
    left_s: float
    restart_s: float
    can_move: bool
    # All its work on its fastest type, for the slow-down.
    alone_s: float = 1.0
    # Where its size is not known: what it is ranked by, as it has trained for some time.
    belief: SizeBelief | None = None
    # What the way ranks it by: the factor on its time left, and whether it goes first.
    weight: float = 1.0
    is_promoted: bool = False
    # The types that the way gives it, the best first.
    own_types: tuple[TypeIndex, ...] = ()
    # Of the makespan program's long jobs: planned time over time left, the planned types, and the
    # speeds on the first of them and on the others (0: none).
    planned: float = 0.0
    planned_types: tuple[TypeIndex, ...] = ()
    planned_speeds: tuple[float, float] = (0.0, 0.0)
    # Its place in the order now, the smallest first, and its types there.
    rank: int = 0
    key: float = 0.0
    types: tuple[TypeIndex, ...] = ()
    # Whether the next start costs a restart.
    has_run: bool = False
    # The GPUs that it has: their type if it is one, else all parts.
    held: TypeIndex | None = None
    mixed: tuple[_Part, ...] = ()
    parts: tuple[_Part, ...] = ()
    # Seconds of the fastest type's work that it does in a second, from `ready_s` on.
    speed: float = 0.0
    ready_s: float = 0.0
    end_s: float = math.inf

    @property
    def believed_s(self) -> float:
        """Return the time that is believed to be left, by which it is ranked."""
        return self.belief.left_s(self.alone_s - self.left_s) if self.belief else self.left_s


@dataclass(frozen=True, slots=True)
class Resolution:
    """How finely time is played."""

    # Length of a round.
    round_s: float = 360.0
    # Later rounds last this share of the time played.
    growth: float = 0.02
    # Jobs considered in all rounds together before the play is given up.
    most_steps: int = 1_000_000


class Pools:
    """The free GPUs of each type, as numbers of nodes by their free GPUs."""

    __slots__ = ("levels", "room")

    def __init__(self, nodes: Sequence[Sequence[int]]) -> None:
        """`nodes`: for each type, the GPUs that may be used on each node."""
        self.levels: list[list[int]] = []
        for gpus in nodes:
            level = [0] * (max(gpus, default=0) + 1)
            for count in gpus:
                level[count] += 1
            self.levels.append(level)
        self.room = [sum(gpus) for gpus in nodes]

    def copy(self) -> Pools:
        """Return a copy."""
        other = Pools(())
        other.levels, other.room = [level[:] for level in self.levels], self.room[:]
        return other

    def take(self, gpu_type: TypeIndex, shapes: Sequence[Shape]) -> tuple[_Part, ...]:
        """Take a gang on one type, in its first shape with nodes for it; () if there are none."""
        level = self.levels[gpu_type]
        top = len(level)
        for nodes, gpus in shapes:
            if gpus >= top or nodes * gpus > self.room[gpu_type]:
                continue
            if nodes == 1:
                for free in range(gpus, top):
                    if level[free]:
                        level[free] -= 1
                        level[free - gpus] += 1
                        self.room[gpu_type] -= gpus
                        return ((gpu_type, 1, gpus),)
            elif sum(level[gpus:]) >= nodes:
                self._take_nodes(gpu_type, nodes, gpus)
                return ((gpu_type, nodes, gpus),)
        return ()

    def take_mixed(
        self, gpu_types: Sequence[TypeIndex], shapes: Sequence[Shape]
    ) -> tuple[_Part, ...]:
        """Take a gang over several nodes of any of these types, the first first; () if none."""
        for nodes, gpus in shapes:
            if nodes < 2:
                continue
            parts, missing = [], nodes
            for gpu_type in gpu_types:
                found = min(missing, sum(self.levels[gpu_type][gpus:]))
                if found:
                    parts.append((gpu_type, found, gpus))
                    missing -= found
                if not missing:
                    for part in parts:
                        self._take_nodes(*part)
                    return tuple(parts)
        return ()

    def take_again(self, parts: Sequence[_Part]) -> bool:
        """Take the GPUs of a gang that keeps its place; return whether they are there."""
        if len(parts) == 1 and parts[0][1] == 1:
            return bool(self.take(parts[0][0], (Shape(*parts[0][1:]),)))
        if any(sum(self.levels[r][gpus:]) < nodes for r, nodes, gpus in parts):
            return False
        for part in parts:
            self._take_nodes(*part)
        return True

    def _take_nodes(self, gpu_type: TypeIndex, nodes: int, gpus: int) -> None:
        level = self.levels[gpu_type]
        self.room[gpu_type] -= nodes * gpus
        for free in range(gpus, len(level)):
            some = min(level[free], nodes)
            if some:
                level[free] -= some
                level[free - gpus] += some
                nodes -= some
                if not nodes:
                    return

    def give_back(self, parts: Sequence[_Part]) -> None:
        """Free a gang, on the nodes with the fewest free GPUs that could have held it."""
        for gpu_type, nodes, gpus in parts:
            level = self.levels[gpu_type]
            self.room[gpu_type] += nodes * gpus
            for free in range(len(level) - gpus):
                some = min(level[free], nodes)
                level[free] -= some
                level[free + gpus] += some
                nodes -= some
            # If too few nodes have that many GPUs taken, other shapes took them: free GPU by GPU.
            left = nodes * gpus
            for free in range(len(level) - 1):
                some = min(level[free], left)
                level[free] -= some
                level[free + 1] += some
                left -= some


@dataclass(slots=True)
class Play:
    """One play of `jobs` on `pools`."""

    jobs: Sequence[PlayedJob]
    pools: Pools
    # Sets rank, key and types of a job at a time of the play, in seconds.
    rank: Callable[[PlayedJob, float], None]
    pace: Resolution = field(default_factory=Resolution)
    may_mix_types: bool = True
    # The urgency with which the jobs that the order lets run share the types by regret
    # (type_sharing.py); None: each takes the first of its types with room.
    urgency: float | None = None
    # Whether the rank of a job without GPUs changes with time.
    ranks_change: bool = False
    # Jobs considered so far, in all rounds.
    steps: int = 0
    _now_s: float = 0.0
    _active: list[PlayedJob] = field(default_factory=list)
    _running: list[PlayedJob] = field(default_factory=list)
    _free: Pools = field(default_factory=lambda: Pools(()))
    # When the GPUs of each type are free, for jobs that cannot move.
    _ends: list[FreeGpus] | None = None
    # Jobs without GPUs whose rank may have changed.
    _unranked: list[PlayedJob] = field(default_factory=list)

    def run(self) -> bool:
        """Play until all jobs have ended, and set their ends; return whether the steps sufficed.

        A job that cannot run on the nodes has no end.
        """
        coming = [job for job in self.jobs if job.submitted_s > 0]
        coming.sort(key=lambda job: -job.submitted_s)
        self._active = [job for job in self.jobs if job.submitted_s <= 0]
        self._unranked = self._active[:]
        self._running = [job for job in self._active if job.parts]
        self._free = self.pools.copy()
        round_ends_s = 0.0
        while self._active or coming:
            if not self._active:
                self._now_s = round_ends_s = coming[-1].submitted_s
                self._arrive(coming.pop())
            if self._now_s >= round_ends_s:
                self._place_all()
                round_ends_s = self._now_s + max(self.pace.round_s, self.pace.growth * self._now_s)
            elif len(self._running) < len(self._active):
                self._place_waiting([job for job in self._active if not job.parts])
            if not (self._running or coming) or self._now_s == math.inf:
                return True
            if self.steps > self.pace.most_steps:
                return False
            next_s = min(round_ends_s, coming[-1].submitted_s) if coming else round_ends_s
            if len(self._running) < len(self._active):
                next_s = self._next_end_s(next_s, round_ends_s)
            elif not coming and all(job.held == job.kind.by_speed[0] for job in self._running):
                next_s = math.inf
            self._advance(next_s)
            while coming and coming[-1].submitted_s <= self._now_s:
                self._arrive(coming.pop())
        return True

    def _arrive(self, job: PlayedJob) -> None:
        self.rank(job, self._now_s)
        insort(self._active, job, key=_order)

    def _next_end_s(self, next_s: float, round_ends_s: float) -> float:
        """Return when the next job ends, `next_s` at the latest; far ahead, when to look next."""
        now_s = self._now_s
        for job in self._running:
            begins_s = job.ready_s if job.ready_s > now_s else now_s
            end_s = begins_s + job.left_s / job.speed
            if end_s < next_s:
                next_s = end_s
        if self.pace.growth * self._now_s > self.pace.round_s:
            # Far ahead, ends are looked at a few times a round.
            soon_s = self._now_s + self.pace.growth * self._now_s / _LOOKS_A_ROUND
            return min(round_ends_s, max(next_s, soon_s))
        return next_s

    def _place_all(self) -> None:
        """Begin a round: place every job that may move again, in the order of the way."""
        changed = self._active if self.ranks_change else (*self._running, *self._unranked)
        for job in changed:
            # One that keeps its GPUs to its end is placed no more.
            if job.can_move or not job.parts:
                self.rank(job, self._now_s)
        self._active.sort(key=_order)
        self.steps += len(changed) + len(self._active) // _LIGHT
        before, self._running, self._free = self._running, [], self.pools.copy()
        for job in before:
            if job.can_move:
                job.parts = ()
            elif self._free.take_again(job.parts):
                self._running.append(job)
        self._ends = None
        jobs = [job for job in self._active if not job.parts]
        self._share_types(self._place_in_order(jobs))
        late, left = [], sum(self._free.room)
        for job in jobs:
            if not left:
                break
            if job.parts:
                continue
            size = job.kind.num_gpus
            if job.can_move and size <= left and self._start(job, self._own_first(job)):
                left -= size
            else:
                late.append(job)
        if left:
            self._place_waiting(late)
        self._unranked = [job for job in before if not job.parts]
        for job in self._unranked:
            job.held, job.mixed = None, ()

    def _place_in_order(self, jobs: Sequence[PlayedJob]) -> list[PlayedJob]:
        """Serve jobs in order; return those left for `_share_types`.

        Only their number of GPUs is kept for them.
        """
        left, later = sum(self._free.room), []
        for job in jobs:
            if left <= 0:
                break
            if not job.can_move:
                if self._start_at_first_end(job):
                    left -= job.kind.num_gpus
            elif self.urgency is not None and job.rank != FIRST:
                if job.kind.num_gpus <= left:
                    left -= job.kind.num_gpus
                    later.append(job)
            elif self._start(job, self._own_first(job)):
                left -= job.kind.num_gpus
        return later

    def _share_types(self, jobs: Sequence[PlayedJob]) -> None:
        """Place the jobs that there are GPUs for, by regret."""
        if self.urgency is None:
            return
        room = self._free.room
        # Sharing costs about as much again as placing in order.
        self.steps += len(jobs)
        share_types(
            [
                worths(
                    job.kind.speeds,
                    types=job.types,
                    num_gpus=job.kind.num_gpus,
                    left_s=job.believed_s,
                    urgency=self.urgency,
                    held=None if job.held is None else (job.held, job.restart_s),
                )
                for job in jobs
            ],
            lambda position, gpu_type: self._start(jobs[position], (gpu_type,)),
            lambda gpu_type: not room[gpu_type],
        )

    def _place_waiting(self, jobs: Sequence[PlayedJob]) -> None:
        """Start jobs in order on any type with room, the fastest first, or on several types."""
        left = sum(self._free.room)
        if not left:
            return
        self._ends, found_none = None, set[JobKind]()
        self.steps += 1 + len(jobs) // _LIGHT
        for job in jobs:
            kind, size = job.kind, job.kind.num_gpus
            if not job.can_move:
                self.steps += 2
                left -= size if self._start_at_first_end(job) else 0
            elif size > left or kind in found_none:
                continue
            elif self._start(job, kind.by_speed) or (
                size > 1 and self.may_mix_types and self._start_mixed(job)
            ):
                left -= size
            else:
                found_none.add(kind)
            if not left:
                return

    def _start_at_first_end(self, job: PlayedJob) -> bool:
        """Give a job the type on which it ends first, now or later; say whether it starts now."""
        ends, kind = self._ends or self._free_times(), job.kind
        best_s, first, begins_s = math.inf, -1, 0.0
        for gpu_type in kind.by_speed:
            lasts_s = job.left_s / kind.speeds[gpu_type]
            begin_s = ends[gpu_type].first_s(kind.num_gpus, lasts_s, 0.0)
            if begin_s + lasts_s < best_s:
                best_s, first, begins_s = begin_s + lasts_s, gpu_type, begin_s
        if first < 0:
            return False
        ends[first].take(begins_s, job.left_s / kind.speeds[first], kind.num_gpus)
        return begins_s <= 0 and self._start(job, (first,))

    def _free_times(self) -> list[FreeGpus]:
        """Return when the GPUs of each type are free, and keep it for this round."""
        releases = [[FreedGpus(0.0, free)] for free in self._free.room]
        for job in self._running:
            in_s = max(job.ready_s - self._now_s, 0.0) + job.left_s / job.speed
            for gpu_type, nodes, gpus in job.parts:
                releases[gpu_type].append(FreedGpus(in_s, nodes * gpus))
        self._ends = [FreeGpus(each) for each in releases]
        return self._ends

    def _own_first(self, job: PlayedJob) -> Sequence[TypeIndex]:
        """Return the way's types, its own first unless a migration saves more than a restart."""
        own, speeds = job.held, job.kind.speeds
        if own is None or not job.types or own == job.types[0] or not speeds[own]:
            return job.types
        if job.left_s * (1.0 / speeds[own] - 1.0 / speeds[job.types[0]]) > job.restart_s:
            return job.types
        return (own, *job.types)

    def _start(self, job: PlayedJob, gpu_types: Sequence[TypeIndex]) -> bool:
        """Start or keep a job on the first of these types with nodes for it; say whether."""
        free, kind = self._free, job.kind
        for gpu_type in gpu_types:
            if free.room[gpu_type] >= kind.num_gpus:
                parts = free.take(gpu_type, kind.shapes)
                if parts:
                    self._place(job, parts, gpu_type, kind.speeds[gpu_type])
                    return True
        return False

    def _start_mixed(self, job: PlayedJob) -> bool:
        """Start a job on nodes of several types, at the speed of the slowest; say whether."""
        kind = job.kind
        parts = self._free.take_mixed(kind.mixed_by_speed, kind.shapes)
        if parts:
            speed = min(kind.mixed_speeds[gpu_type] for gpu_type, _, _ in parts)
            self._place(job, parts, None, speed)
        return bool(parts)

    def _place(
        self, job: PlayedJob, parts: tuple[_Part, ...], gpu_type: TypeIndex | None, speed: float
    ) -> None:
        mixed = parts if gpu_type is None else ()
        if gpu_type != job.held or mixed != job.mixed:
            job.ready_s = self._now_s + (job.restart_s if job.has_run else 0.0)
            job.held, job.mixed, job.has_run = gpu_type, mixed, True
        job.parts, job.speed = parts, speed
        self._running.append(job)

    def _advance(self, to_s: float) -> None:
        """Train until `to_s`, and free the GPUs of the jobs that end by then."""
        running, now_s = [], self._now_s
        self.steps += 1 + len(self._running) // _LIGHT
        for job in self._running:
            begins_s = job.ready_s if job.ready_s > now_s else now_s
            done_s = (to_s - begins_s) * job.speed
            if done_s <= 0:
                running.append(job)
            elif done_s >= job.left_s * (1 - _ROUNDING) - _ROUNDING_S:
                job.end_s = begins_s + job.left_s / job.speed
                job.left_s = 0.0
                self._free.give_back(job.parts)
                job.parts = ()
            else:
                job.left_s -= done_s
                running.append(job)
        if len(running) < len(self._running):
            self._active = [job for job in self._active if job.left_s > 0]
            self._running = running
        self._now_s = to_s


_order = attrgetter("rank", "key")
