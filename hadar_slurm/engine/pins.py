"""How long jobs wait on the nodes of their pins, and which nodes to avoid after a timeout.

A job that does not start although its GPUs are free lacks another resource there: cores, memory, a
feature, or room in a limit of its account. Slurm reports these too late and in too many forms to
plan with, so such a job gets other nodes for a while.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field

from hadar_slurm.core.cluster import JobId, NodeName

# After one timeout on its nodes, a job avoids them for this many timeouts.
_AVOIDED_TIMEOUTS = 10


@dataclass
class Pins:
    """The pins of one daemon, in memory only; a restart forgets them. Times in seconds."""

    timeout_s: float
    _since: dict[JobId, float] = field(default_factory=dict)
    _avoided_until: dict[JobId, dict[NodeName, float]] = field(default_factory=dict)

    def begin(self, job: JobId, now_s: float) -> None:
        """Record that a job was pinned now."""
        self._since[job] = now_s

    def __contains__(self, job: JobId) -> bool:
        """Return whether a job waits on its nodes."""
        return job in self._since

    def forget(self, job: JobId) -> None:
        """Forget that a job waits on its nodes."""
        self._since.pop(job, None)

    def is_stuck(self, job: JobId, nodes: Iterable[NodeName], now_s: float) -> bool:
        """Return whether a job's wait on these nodes has timed out; it then avoids them."""
        if now_s - self._since.setdefault(job, now_s) > self.timeout_s:
            self.avoid(job, nodes, now_s)
        return not self.avoided(job, now_s).isdisjoint(nodes)

    def avoid(
        self, job: JobId, nodes: Iterable[NodeName], now_s: float, *, is_final: bool = False
    ) -> None:
        """Let a job avoid these nodes for 10 timeouts, or for ever."""
        until_s = math.inf if is_final else now_s + _AVOIDED_TIMEOUTS * self.timeout_s
        self._avoided_until.setdefault(job, {}).update(dict.fromkeys(nodes, until_s))

    def avoided(self, job: JobId, now_s: float) -> frozenset[NodeName]:
        """Return the nodes that a job avoids."""
        listed = self._avoided_until.get(job, {})
        return frozenset(name for name, until_s in listed.items() if now_s < until_s)

    def refused(self, job: JobId) -> frozenset[NodeName]:
        """Return the nodes that a job avoids for ever."""
        return self.avoided(job, sys.float_info.max)

    def keep(self, *, starting: set[JobId], pending: set[JobId]) -> None:
        """Forget waits of jobs not in `starting` and avoided nodes of jobs not in `pending`."""
        self._since = {job: since_s for job, since_s in self._since.items() if job in starting}
        self._avoided_until = {k: v for k, v in self._avoided_until.items() if k in pending}

    def next_timeout_s(self) -> float:
        """Return when the first wait times out; infinity without waits."""
        return min(self._since.values(), default=float("inf")) + self.timeout_s
