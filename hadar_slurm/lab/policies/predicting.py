"""A policy that is told predictions of the jobs' steps instead of the truth.

For judging policies that need sizes by what predictions do to them: `Predicting(policy, 0.5)` is
`policy` where each job's total is off by up to 50 %, more or less, evenly spread (ours; published
predictors have distributions of their own). How far a job's prediction is off follows from its id
alone, so it is the same in every round and for every policy. A job that has done what was predicted
and goes on is predicted to need twice as much, until that is more than it has done.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.job import Job
from hadar_slurm.core.plan import Plan
from hadar_slurm.core.snapshot import Round, Snapshot
from hadar_slurm.policies.policy import Policy

# No prediction is below this share of the truth, however large the error.
_LEAST = 0.01


@dataclass(frozen=True, slots=True)
class Predicting:
    """`policy`, told totals that are wrong by up to `error` of the true ones."""

    policy: Policy
    error: float

    @property
    def name(self) -> str:
        """Return the name of the policy inside."""
        return self.policy.name

    def plan(self, snapshot: Snapshot, round_: Round) -> Plan:
        """Return the plan that the policy makes of the predictions."""
        if self.error == 0:
            return self.policy.plan(snapshot, round_)
        jobs = tuple(predicted(job, self.error) for job in snapshot.jobs)
        return self.policy.plan(replace(snapshot, jobs=jobs), round_)


def predicted(job: Job, error: float) -> Job:
    """Return a job as it looks to someone who has a prediction of its total steps."""
    total = max(1, round(job.spec.total_steps * factor(job.job_id, error)))
    while total <= job.progress.steps_done:
        total *= 2
    return replace(job, spec=replace(job.spec, total_steps=total))


def factor(job_id: JobId, error: float) -> float:
    """Return prediction over truth for a job, evenly spread over 1 - error to 1 + error."""
    digest = hashlib.sha256(str(job_id).encode()).digest()
    drawn = int.from_bytes(digest[:8], "big") / 2**63 - 1.0
    return max(_LEAST, 1.0 + error * drawn)
