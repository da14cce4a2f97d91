"""How long jobs wait on the nodes they were pinned to, and where they waited in vain.

A job that does not start though its GPUs are free lacks something else there: cores, memory, a
feature, a limit of its account. Slurm tells the like too late and in too many ways to plan with,
so such a job is given other nodes for a while.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from hadar_slurm.core.cluster import JobId, NodeName

# For how many timeouts nodes are avoided on which a job has waited for one.
_AVOIDED_TIMEOUTS = 10


@dataclass
class Pins:
    """The memory of one daemon; what it loses in a restart it learns again. Times in seconds."""

    timeout_s: float
    _since: dict[JobId, float] = field(default_factory=dict)
    _avoided_until: dict[JobId, dict[NodeName, float]] = field(default_factory=dict)

    def begin(self, job: JobId, now_s: float) -> None:
        """Note that a job was pinned just now."""
        self._since[job] = now_s

    def is_stuck(self, job: JobId, nodes: Iterable[NodeName], now_s: float) -> bool:
        """Return whether a job waits on these nodes in vain; it is then kept off them."""
        if now_s - self._since.setdefault(job, now_s) > self.timeout_s:
            self.avoid(job, nodes, now_s)
        return not self.avoided(job, now_s).isdisjoint(nodes)

    def avoid(self, job: JobId, nodes: Iterable[NodeName], now_s: float) -> None:
        """Keep a job off these nodes for a while."""
        until_s = now_s + _AVOIDED_TIMEOUTS * self.timeout_s
        self._avoided_until.setdefault(job, {}).update(dict.fromkeys(nodes, until_s))

    def avoided(self, job: JobId, now_s: float) -> frozenset[NodeName]:
        """Return the nodes that a job is to be kept off."""
        listed = self._avoided_until.get(job, {})
        return frozenset(name for name, until_s in listed.items() if now_s < until_s)

    def keep(self, *, starting: set[JobId], pending: set[JobId]) -> None:
        """Forget since when jobs wait that do not, and what jobs avoid that run or are gone."""
        self._since = {job: since_s for job, since_s in self._since.items() if job in starting}
        self._avoided_until = {k: v for k, v in self._avoided_until.items() if k in pending}

    def next_timeout_s(self) -> float:
        """Return when the first of the waiting jobs will have waited too long."""
        return min(self._since.values(), default=float("inf")) + self.timeout_s
