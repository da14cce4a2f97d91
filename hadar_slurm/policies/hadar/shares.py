"""Shares between users: how far a user may be served ahead of the others.

Which of a user's jobs goes first is Hadar's. Between users its order holds as well, but for users
who are ahead of their share by more than a budget.

A user's *lead* is what the user has had above an equal share among the users with jobs, in
GPU-seconds. A user without jobs saves no share up, and works a lead off as fast as a share grows.
Jobs are dealt in Hadar's order as long as their user's lead, with what is dealt, is within the
budget. The rest come after, the user with the least lead first. A job that cannot move is dealt all
the time that it will hold its GPUs, any other a round. So a claim moves its user's jobs only within
the budget, and ten thousand tasks have the budget of one.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import NamedTuple

# The budget at a strictness of one half: this long a share.
_HALF_S = 3600.0
# A lead is at most this many budgets, or this long a share: later needs are then not held against
# the use of GPUs that nobody else wanted.
_MOST_S = 4 * 3600.0


class Asked(NamedTuple):
    """A job in Hadar's order: its user, and the GPU-seconds for which it would be committed."""

    user: str
    gpu_s: float


@dataclass(frozen=True, slots=True)
class Leads:
    """The users' leads at a time, and the GPUs that each has held since."""

    at_s: float = 0.0
    gpu_s: Mapping[str, float] = field(default_factory=dict)
    held: Mapping[str, float] = field(default_factory=dict)

    def after(self, present: Iterable[str], now_s: float, share_s: float) -> Leads:
        """Return the leads now; `present` have jobs, `share_s` are the GPUs of one share."""
        users = set(present)
        past_s = max(0.0, now_s - self.at_s)
        fair = sum(self.held.values()) / max(1, len(users | {u for u, n in self.held.items() if n}))
        found = {}
        for user in users | self.gpu_s.keys() | self.held.keys():
            lead = self.gpu_s.get(user, 0.0) + (self.held.get(user, 0.0) - fair) * past_s
            most = _MOST_S * share_s
            lead = min(lead, most) if user in users else max(0.0, min(lead, most))
            lead = max(lead, -most)
            if lead or user in users:
                found[user] = lead
        return Leads(now_s, found, {})


def dealt(asked: Sequence[Asked], leads: Mapping[str, float], budget: float) -> list[int]:
    """Return the positions of jobs in the order in which they are served."""
    taken = defaultdict[str, float](float)
    first: list[int] = []
    later = defaultdict[str, list[int]](list)
    for position, (user, gpu_s) in enumerate(asked):
        if not user or (user not in later and leads.get(user, 0.0) + taken[user] <= budget):
            taken[user] += gpu_s
            first.append(position)
        else:
            later[user].append(position)
    heap = [(leads.get(u, 0.0) + taken[u], at[0], u) for u, at in later.items()]
    heapify(heap)
    while heap:
        lead, position, user = heappop(heap)
        first.append(position)
        left = later[user]
        del left[0]
        if left:
            heappush(heap, (lead + asked[position].gpu_s, left[0], user))
    return first


def budget_of(strictness: float, share: float) -> float:
    """Return the budget in GPU-seconds; `share` are the GPUs of one share.

    Infinite at a strictness of 0, where Hadar's order holds; 0 at 1.
    """
    if strictness <= 0:
        return math.inf
    return (1.0 - strictness) / strictness * _HALF_S * share
