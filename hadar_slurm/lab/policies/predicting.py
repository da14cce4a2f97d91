"""Wraps a policy so that it plans with erroneous predictions of the jobs' steps.

With `Predicting(policy, 0.5)` the total of each job is off by up to +/- 50 %, uniformly distributed
(our choice; published predictors have other distributions). The error depends on the job id alone,
so it is equal in every round and for every policy. The prediction of a job that has exceeded it is
doubled until it is above the steps done.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.job import Job
from hadar_slurm.core.plan import Plan
from hadar_slurm.core.snapshot import Round, Snapshot
from hadar_slurm.policies.policy import Policy

# Lower bound of prediction over truth.
_LEAST = 0.01


@dataclass(frozen=True, slots=True)
class Predicting:
    """`policy` on totals that differ from the true ones by a fraction of up to `error`."""

    policy: Policy
    error: float

    @property
    def name(self) -> str:
        """Return the name of the policy inside."""
        return self.policy.name

    def plan(self, snapshot: Snapshot, round_: Round) -> Plan:
        """Return the policy's plan for the predictions."""
        if self.error == 0:
            return self.policy.plan(snapshot, round_)
        jobs = tuple(predicted(job, self.error) for job in snapshot.jobs)
        return self.policy.plan(replace(snapshot, jobs=jobs), round_)


def predicted(job: Job, error: float) -> Job:
    """Return a job with its predicted total steps."""
    total = max(1, round(job.spec.total_steps * factor(job.job_id, error)))
    while total <= job.progress.steps_done:
        total *= 2
    return replace(job, spec=replace(job.spec, total_steps=total))


def factor(job_id: JobId, error: float) -> float:
    """Return prediction over truth for a job, uniform in [1 - error, 1 + error]."""
    digest = hashlib.sha256(str(job_id).encode()).digest()
    return max(_LEAST, 1.0 + error * (int.from_bytes(digest[:8], "big") / 2**63 - 1.0))
