"""Checks what owners claim of their jobs against Slurm's clock and the jobs' reports.

A job's reports are its owner's words as well. So a job that reports nothing, or too little, comes
as far as its run time says, once that is well beyond the claim; and how far an owner's claims were
off (`core.claims.Credit`) is learned from the run times of jobs that Slurm has completed.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from functools import cached_property

from hadar_slurm.core.claims import Judged, believed_steps
from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.gang import Gang
from hadar_slurm.core.job import JobSpec
from hadar_slurm.handoff import ProgressReport
from hadar_slurm.jobspec.description import Description
from hadar_slurm.jobspec.estimator import Estimator
from hadar_slurm.slurm.client.parse import QueueRow

# A run of this many times the time claimed outlives its claim, without a report that says so.
# Starting takes time, and throughputs differ a little from those that were given.
_OUTLIVED = 1.5
# Runs of less than this say nothing: most of the time they start.
_LEAST_S = 300.0


@dataclass
class ClaimChecks:
    """Remembers which of the ended jobs it has counted, also those of a hadard before it."""

    estimator: Estimator
    _counted: set[JobId] = field(default_factory=set)
    _judged: list[Judged] = field(default_factory=list)

    def take_judged(self) -> list[Judged]:
        """Return the jobs judged since the last call."""
        judged, self._judged = self._judged, []
        return judged

    def believed(
        self,
        row: QueueRow,
        description: Description,
        spec: JobSpec,
        gang: Gang | None,
        report: ProgressReport | None,
        limit_s: float,
        now_s: float,
    ) -> tuple[JobSpec, tuple[str, ...]]:
        """Return a job with what is believed of its owner's claims; say why.

        `limit_s`: its time limit, 0 for none.
        """
        doubts = self.estimator.doubts(description, row.user)
        if not description.steps or description.copies > 1:
            return spec, doubts
        claimed, speeds, left_s = float(spec.total_steps), spec.throughputs, limit_s or math.inf
        done = float(report.steps_done) if report else 0.0
        ran_s = _ran_s(row, now_s)
        left_s = max(0.0, left_s - ran_s)
        if gang is not None and ran_s:
            by_time = ran_s * gang.throughput(speeds)
            done = max(done, by_time if by_time > _OUTLIVED * claimed else 0.0)
        times = self.estimator.credits.of(row.user).factor(now_s)
        fastest = speeds.best(speeds.gpu_types, spec.num_gpus)
        total, doubt = believed_steps(claimed, done, left_s, fastest, times=times)
        if total == spec.total_steps:
            return spec, doubts
        spec = replace(spec, total_steps=total, claimed_steps=spec.total_steps)
        return spec, (*doubts, *([doubt] if doubt else []))

    def limit_left_s(
        self, row: QueueRow, description: Description, limit_s: float, now_s: float
    ) -> float | None:
        """Return what is left of a job's time limit while its owner's claims are unproven.

        None once they are, and for a job of which nothing is claimed. `limit_s`: 0 for none.
        """
        if not (description.steps or description.throughputs):
            return None
        left_s = max(0.0, (limit_s or math.inf) - _ran_s(row, now_s))
        return self.estimator.credits.of(row.user).limit_left_s(left_s, now_s)

    @cached_property
    def _counted_until_s(self) -> dict[str, float]:
        """Until when a former hadard has counted each user's ended jobs, as known at the start."""
        return {user: credit.at_s for user, credit in self.estimator.credits.by_user.items()}

    def see_ended(self, row: QueueRow, description: Description, gpu_type: str) -> None:
        """Learn from a job that Slurm shows as completed, of which all runs but one are known."""
        lasted_s = row.ended_s - row.started_s
        if (
            row.key in self._counted
            or row.state != "COMPLETED"
            or row.restarts
            or not (gpu_type and row.started_s and description.steps)
            or lasted_s < _LEAST_S
            or row.ended_s <= self._counted_until_s.get(row.user, 0.0)
        ):
            return
        self._counted.add(row.key)
        used = self.estimator.throughputs(description, row.user, [gpu_type])
        steps_per_s = used.on(gpu_type, description.gpus)
        if steps_per_s <= 0:
            return
        given = {name.lower(): value for name, value in description.throughputs.items()}
        said = given.get(gpu_type, 0.0)
        off = max(said / steps_per_s, steps_per_s / said) if said > 0 else 1.0
        claimed_s = max(1.0, description.steps / steps_per_s)
        self.estimator.credits.learn(row.user, claimed_s, lasted_s, row.ended_s, speeds_off=off)
        job = Judged(row.key, row.user, description.workload, claimed_s, lasted_s, off)
        self._judged.append(job)

    def keep(self, jobs: Collection[JobId]) -> None:
        """Forget all jobs but these."""
        self._counted.intersection_update(jobs)


def _ran_s(row: QueueRow, now_s: float) -> float:
    return max(0.0, now_s - row.started_s) if row.state == "RUNNING" else 0.0
