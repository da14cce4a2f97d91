"""Shares between users: how far a user may be served ahead of the others.

Which of a user's jobs goes first is Hadar's. Between users its order holds as well, but for users
who are ahead of their share by more than a budget.

A user's *lead* is what the user has had above a share among the users with jobs, in GPU-seconds of
the fastest type. Shares are equal, or go by Slurm's fair-share factors where it has them. A user
without jobs saves no share up, and works a lead off as fast as a share grows. Jobs are dealt in
Hadar's order as long as their user's lead, with what is dealt, is within the budget. The rest come
after, the user with the least lead first. A job that cannot move is dealt all the time for which it
will hold its GPUs, any other a round. So a claim moves its user's jobs only within the budget, and
ten thousand tasks have the budget of one.

Claims that are not proven (core/claims.py) do not count beside other users' jobs: as in Slurm's
backfill, such a job is assumed to last until its time limit, and is never critical.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from operator import mul
from statistics import fmean
from typing import NamedTuple

from hadar_slurm.core.job import Job
from hadar_slurm.policies.hadar.kinds import Kinds
from hadar_slurm.policies.policy import DEFAULT_USER_SHARES, open_gpus

# The budget at a strictness of one half, by definition: this long a share.
_HOUR_S = 3600.0


class WantedService(NamedTuple):
    """A job in Hadar's order: its user ("" for none), and the GPU-seconds that it would take."""

    user: str
    gpu_s: float


@dataclass(frozen=True, slots=True)
class Leads:
    """The users' leads at a time, in GPU-seconds, and the GPUs that each has held since."""

    at_s: float = 0.0
    gpu_s: Mapping[str, float] = field(default_factory=dict)
    held: Mapping[str, float] = field(default_factory=dict)

    def after(self, weights: Mapping[str, float], now_s: float, most: float) -> Leads:
        """Return the leads now; `weights`: of the users with jobs; `most`: the largest lead."""
        past_s = max(0.0, now_s - self.at_s)
        # Users whose last jobs have ended had shares until now.
        weights = dict.fromkeys(self.held, 1.0) | dict(weights)
        fair = sum(self.held.values()) / max(1e-9, sum(weights.values()))
        present = weights.keys()
        found = {}
        for user in sorted({*present, *self.gpu_s}):
            owed = fair * weights.get(user, 1.0)
            lead = self.gpu_s.get(user, 0.0) + (self.held.get(user, 0.0) - owed) * past_s
            least = -most if user in present else 0.0
            found[user] = min(max(lead, least), most)
        return Leads(now_s, {user: lead for user, lead in found.items() if lead})


def dealt(asked: Sequence[WantedService], leads: Mapping[str, float], budget: float) -> list[int]:
    """Return the positions of the jobs in the order in which they are to be served."""
    lead = defaultdict[str, float](float, leads)
    within: list[int] = []
    beyond = defaultdict[str, list[int]](list)
    for position, (user, gpu_s) in enumerate(asked):
        if not user or (user not in beyond and lead[user] <= budget):
            lead[user] += gpu_s if user else 0.0
            within.append(position)
        else:
            beyond[user].append(position)
    heap = [(lead[user], positions[0], user, 0) for user, positions in beyond.items()]
    heapify(heap)
    while heap:
        ahead, position, user, at = heappop(heap)
        within.append(position)
        if at + 1 < len(beyond[user]):
            entry = (ahead + asked[position].gpu_s, beyond[user][at + 1], user, at + 1)
            heappush(heap, entry)
    return within


def fair_weight(fair_share: float) -> float:
    """Return the weight of a user by Slurm's fair-share factor: the root, of a twentieth at least.

    A factor of 0.5 means usage equal to the share, and has the weight 1.
    """
    return math.sqrt(max(0.05, 2.0 * fair_share))


def share_of(jobs: Sequence[Job]) -> float:
    """Return the weight of a user's share: that of the user's best association, 1 if unknown."""
    known = [fair_weight(job.fair_share) for job in jobs if job.fair_share is not None]
    return max(known, default=1.0)


def most_of(budget: float, share: float) -> float:
    """Return the largest lead in GPU-seconds, either way: the default budget at least (ADR 31)."""
    return max(budget, budget_of(DEFAULT_USER_SHARES, share))


def budget_of(strictness: float, share: float) -> float:
    """Return the budget in GPU-seconds, where `share` are the GPUs of one share.

    Infinite at a strictness of 0, where Hadar's order holds; 0 at 1, where leads alone decide.
    """
    return math.inf if strictness <= 0 else (1.0 - strictness) / strictness * _HOUR_S * share


@dataclass(frozen=True, slots=True)
class Shares:
    """The shares of the users with jobs, in one decision."""

    kinds: Kinds
    leads: Leads
    budget: float
    # The GPUs of one share, in GPUs of the fastest type.
    share: float
    # By type, what a GPU is worth beside one of the fastest: the users' mean relative speed.
    worth: tuple[float, ...]
    # Whether two users or more have jobs.
    is_shared: bool

    @classmethod
    def of(
        cls, kinds: Kinds, jobs: Sequence[Job], strictness: float, known: Leads | None
    ) -> Shares | None:
        """Return the shares now; None where there are none, or no two users."""
        by_user = defaultdict[str, list[Job]](list)
        for job in jobs:
            if job.spec.user:
                by_user[job.spec.user].append(job)
        if strictness <= 0 or not (known or len(by_user) > 1):
            return None
        allocator = kinds.allocator
        speeds = [
            [fmean(column) for column in zip(*(kinds.of(job).speeds for job in own), strict=True)]
            for own in by_user.values()
        ]
        worth = tuple(map(fmean, zip(*speeds, strict=True))) or (1.0,) * len(allocator.gpu_types)
        gpus = open_gpus(allocator.snapshot, allocator.gpu_types)
        share = sum(map(mul, gpus, worth)) / max(1, len(by_user))
        now_s, weights = allocator.snapshot.now_s, {u: share_of(own) for u, own in by_user.items()}
        budget = budget_of(strictness, share)
        leads = (known or Leads(now_s)).after(weights, now_s, most_of(budget, share))
        return cls(kinds, leads, budget, share, worth, len(by_user) > 1)

    def order(self, jobs: Sequence[Job | None]) -> list[int]:
        """Return the positions of jobs in the order in which they are served; None stays first."""
        allocator, leads = self.kinds.allocator, defaultdict(float, self.leads.gpu_s)
        for job_id in allocator.placed:
            placed = allocator.snapshot.by_id[job_id]
            if placed.spec.user and not placed.spec.can_checkpoint:
                leads[placed.spec.user] += self._asked(placed).gpu_s
        asked = [WantedService("", 0.0) if job is None else self._asked(job) for job in jobs]
        return dealt(asked, leads, self.budget)

    def is_behind(self, job: Job) -> bool:
        """Return whether a job's user is behind by an hour of a share, or no other has jobs."""
        lead = self.leads.gpu_s.get(job.spec.user, 0.0)
        return not (self.is_shared and job.spec.user) or lead <= -_HOUR_S * self.share

    def goes_by_limit(self, job: Job) -> bool:
        """Return whether what is claimed of a job does not count beside other users' jobs."""
        return self.is_shared and job.limit_left_s is not None

    def left_s(self, job: Job, best: float) -> float:
        """Return the time left to rank a job by; `best`: its steps/s on the fastest type."""
        limit_s = job.limit_left_s if self.is_shared else None
        return job.steps_left / best if limit_s is None else limit_s

    def _asked(self, job: Job) -> WantedService:
        spec, best = job.spec, self.kinds.of(job).best
        lasts_s = self.kinds.allocator.round.length_s
        if not spec.can_checkpoint and best:
            lasts_s = max(lasts_s, self.left_s(job, best))
        return WantedService(spec.user, spec.num_gpus * lasts_s)

    def after(self) -> Leads:
        """Return the leads, with what the users hold once all jobs are placed."""
        allocator, held = self.kinds.allocator, defaultdict[str, float](float)
        worth = dict(zip(allocator.gpu_types, self.worth, strict=True))
        for job_id, allocation in allocator.placed.items():
            if user := allocator.snapshot.by_id[job_id].spec.user:
                held[user] += sum(count * worth[slot.gpu_type] for slot, count in allocation.slots)
        return replace(self.leads, held=held)
