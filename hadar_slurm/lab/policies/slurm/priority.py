"""priority/multifactor: fair share, age, size and QOS. Pure.

Source: Slurm's documentation (priority_multifactor.html, fair_tree.html, classic_fair_share.html).
Each user is an account of its own with one share, and GPUs are what is billed. As in Slurm,
priorities change at each PriorityCalcPeriod only, and a job gets its first at submission.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.job import Job
from hadar_slurm.core.snapshot import Snapshot
from hadar_slurm.lab.policies.slurm.settings import FairShare, SlurmSettings


class Holding(NamedTuple):
    """What a job holds: its user, and the number of GPUs."""

    user: str
    num_gpus: int


@dataclass(frozen=True, slots=True)
class Priorities:
    """What users have used, and the priorities made of it, as of `at_s` in seconds."""

    at_s: float = 0.0
    # GPU-seconds by user, decayed.
    usage: Mapping[str, float] = field(default_factory=dict)
    # What jobs hold from `at_s` on.
    held: Mapping[JobId, Holding] = field(default_factory=dict)
    # By running job, the GPU-seconds since priorities were last computed.
    since: Mapping[JobId, float] = field(default_factory=dict)
    # The PriorityCalcPeriod, counted from time 0, in which the rest was computed.
    period: int = -1
    factors: Mapping[str, float] = field(default_factory=dict)
    by_job: Mapping[JobId, float] = field(default_factory=dict)

    def at(self, snapshot: Snapshot, waiting: Iterable[Job], settings: SlurmSettings) -> Priorities:
        """Return them at the snapshot's time, with a priority for each waiting job."""
        now_s = snapshot.now_s
        usage, since = self._used(snapshot, settings.half_life)
        period = int(now_s // settings.calc_period)
        is_due = period != self.period
        factors = self.factors
        if is_due:
            counted = usage
            if settings.fairshare is FairShare.CLASSIC:
                # Slurm computes these factors before it adds what running jobs have used since.
                more = _by_user(since, self.held)
                counted = {user: used - more.get(user, 0.0) for user, used in usage.items()}
            factors, since = factors_of(counted, settings.fairshare), {}
        total = sum(snapshot.cluster.capacity.values())

        def priority(job: Job) -> float:
            age_s = now_s - job.spec.submitted_s
            return float(int(
                settings.weight_fairshare * factors.get(job.spec.user, 1.0)
                + settings.weight_age * min(1.0, age_s / settings.max_age)
                + settings.weight_size * min(1.0, job.spec.num_gpus / total)
                + settings.weight_qos * settings.qos_factor(job.spec.qos)
            ))  # fmt: skip

        known = {} if is_due else self.by_job
        by_job = {j.job_id: known[j.job_id] if j.job_id in known else priority(j) for j in waiting}
        return Priorities(now_s, usage, since=since, period=period, factors=factors, by_job=by_job)

    def _used(
        self, snapshot: Snapshot, half_life: float
    ) -> tuple[dict[str, float], dict[JobId, float]]:
        """Return the usage now: decayed, and with what jobs have held; and `since` now."""
        now_s = snapshot.now_s
        fades = 0.5 ** ((now_s - self.at_s) / half_life) if half_life else 1.0
        usage = {user: used * fades for user, used in self.usage.items()}
        since: dict[JobId, float] = {}
        for job in snapshot.others:
            usage.setdefault(job.spec.user, 0.0)
        ended = {end.job_id: end.end_s for end in snapshot.ended}
        for job_id, held in self.held.items():
            until_s = min(ended.get(job_id, now_s), now_s)
            more = max(0.0, until_s - self.at_s) * held.num_gpus
            usage[held.user] = usage.get(held.user, 0.0) + more
            if job_id not in ended:
                since[job_id] = self.since.get(job_id, 0.0) + more
        return usage, since


def _by_user(used: Mapping[JobId, float], held: Mapping[JobId, Holding]) -> dict[str, float]:
    found: dict[str, float] = {}
    for job_id, more in used.items():
        found[held[job_id].user] = found.get(held[job_id].user, 0.0) + more
    return found


def factors_of(usage: Mapping[str, float], kind: FairShare) -> dict[str, float]:
    """Return each user's fair-share factor, 0 to 1, where all have one share.

    Fair tree ranks users by what they have used: the least first, from 1 down, and equal users
    alike. The classic factor is 2 to the minus (usage over the mean usage).
    """
    if kind is FairShare.NO or not usage:
        return {}
    if kind is FairShare.CLASSIC:
        mean = sum(usage.values()) / len(usage)
        return {user: 0.5 ** (used / mean) if mean else 1.0 for user, used in usage.items()}
    ordered = sorted(usage.values())
    count = len(ordered)
    return {
        user: (1 + count - bisect_right(ordered, used)) / count if used > 0 else 1.0
        for user, used in usage.items()
    }
