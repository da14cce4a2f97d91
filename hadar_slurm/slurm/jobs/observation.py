"""What a round goes by: the snapshot for policies, and what it makes of each job of hadard."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from hadar_slurm.core.cluster import Cluster, JobId
from hadar_slurm.core.job import Job, Phase
from hadar_slurm.core.snapshot import Ended, Snapshot
from hadar_slurm.engine.actions import Action
from hadar_slurm.engine.modes import Mode
from hadar_slurm.jobspec.description import Description
from hadar_slurm.slurm.client.updates import Notify
from hadar_slurm.slurm.jobs.seen import Course, Treated

if TYPE_CHECKING:
    from hadar_slurm.slurm.jobs.array_jobs import Fork, Task


@dataclass(frozen=True)
class Forks:
    """The forked jobs of one observation."""

    by_parent: Mapping[JobId, Fork]

    @property
    def jobs(self) -> list[Job]:
        """Return the jobs as policies see them."""
        return [fork.job for fork in self.by_parent.values() if fork.job is not None]

    @property
    def task_jobs(self) -> list[Job]:
        """Return the copies of those jobs as jobs by themselves."""
        copies = [task for fork in self.by_parent.values() for task in fork.copies]
        return [task.job for task in copies if task.job is not None]

    @property
    def not_needed(self) -> list[Task]:
        """Return the tasks of trainings that are over: each only needs to start and end."""
        done = [fork for fork in self.by_parent.values() if fork.is_done]
        return [task for fork in done for task in fork.tasks]

    @property
    def ended(self) -> list[Ended]:
        """Return the jobs without a live task."""
        return [fork.ended for fork in self.by_parent.values() if fork.ended is not None]

    def on_task(self, action: Action) -> Action:
        """Return an action on a copy as one on its task, and any other action unchanged."""
        fork = self.by_parent.get(action.job_id)
        if fork is None:
            return action
        return replace(action, job_id=fork.copies[action.copy].seen.row.key, copy=0)


@dataclass(frozen=True)
class Observation:
    """One round's facts; job ids are those of Slurm.

    In `snapshot` the tasks of a forked job are one job; `forks` maps its actions to tasks.
    """

    snapshot: Snapshot = field(default_factory=lambda: Snapshot(0.0, Cluster(()), ()))
    forks: Forks = field(default_factory=lambda: Forks({}))
    # How waiting jobs are treated now: in mode `hold` as in `steer` while plain jobs wait.
    mode: Mode = Mode.OBSERVE
    # Jobs with a description or a claim.
    jobs: Mapping[JobId, Treated] = field(default_factory=dict)

    def of(self, course: Course) -> list[JobId]:
        """Return the jobs that this is made of."""
        return [key for key, treated in self.jobs.items() if treated.course is course]

    @cached_property
    def alive(self) -> set[JobId]:
        """Return the jobs of which the ledger is to be kept."""
        return {key for key, treated in self.jobs.items() if treated.is_alive}

    @cached_property
    def enrolled(self) -> set[JobId]:
        """Return the managed jobs that are never held, pinned or migrated."""
        return {k for k, t in self.jobs.items() if t.seen.is_enrolled and t.is_managed}

    @cached_property
    def stuck(self) -> set[JobId]:
        """Return the jobs that are pending on the nodes of a pin that cannot start them."""
        return {k for k, t in self.jobs.items() if t.is_stuck and t.is_managed} - self.enrolled

    @cached_property
    def awaiting(self) -> list[Job]:
        """Return the jobs that hadard holds while they wait for other jobs."""
        waiting = (t.job for t in self.jobs.values() if t.course is Course.AWAITS)
        return [job for job in waiting if job is not None]

    @cached_property
    def limits_s(self) -> dict[JobId, Mapping[str, float]]:
        """Return the time limits in seconds by GPU type, of jobs whose limit depends on it."""
        limited = (t for t in self.jobs.values() if t.limits_s)
        return {t.seen.key: t.limits_s for t in limited if not t.seen.claim.limit_s.is_kept}

    @cached_property
    def kept(self) -> dict[JobId, float]:
        """Return the parts that running jobs keep if they are requeued without a signal now."""
        return {key: t.kept for key, t in self.jobs.items() if t.kept is not None}

    @cached_property
    def by_type(self) -> dict[JobId, Description]:
        """Return the descriptions of copies of which GPUs, cores and memory depend on the type."""
        seen = (t.seen for t in self.jobs.values())
        found = (s for s in seen if s.description.gangs and s.row.is_live and s.parent)
        return {s.key: s.description for s in found}

    @cached_property
    def notices(self) -> dict[JobId, Notify]:
        """Return what is to be printed in the output of jobs that run again."""
        seen = (t.seen for t in self.jobs.values())
        return {s.key: Notify(JobId(s.row.raw_id), s.notice) for s in seen if s.notice}

    @cached_property
    def not_ready(self) -> dict[JobId, str]:
        """Return the running copies that must not get USR1 yet, and why.

        A plan stops no other such job.
        """
        return {
            job.job_id: job.remarks[-1] if job.remarks else "it is only just starting"
            for job in self.forks.task_jobs
            if not self.jobs[job.job_id].seen.is_pending
            and (job.phase is Phase.STARTING or not job.spec.can_checkpoint)
        }
