"""Applies Slurm's limits to one observation: which jobs they deny, which are not planned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hadar_slurm.core.cluster import JobId, natural_key
from hadar_slurm.core.job import Job, Phase
from hadar_slurm.slurm.client.parse import QueueRow
from hadar_slurm.slurm.client.state import SlurmState
from hadar_slurm.slurm.enforce.ledger import Ledger
from hadar_slurm.slurm.jobs.array_jobs import Task
from hadar_slurm.slurm.jobs.throttles import ThrottleCandidate, Throttles, kind_of


@dataclass(frozen=True, slots=True)
class Limits:
    """The known limits (`throttles`), applied to hadard's jobs (`ledger`)."""

    throttles: Throttles
    ledger: Ledger

    def denies(self, row: QueueRow) -> bool:
        """Return whether a limit keeps a job from starting on the nodes of its pin."""
        return (
            row.state == "PENDING"
            and not row.is_held
            and kind_of(row.reason) is not None
            and self.ledger[row.key].pins(row.requested_nodes)
        )

    def learn(self, state: SlurmState, now_s: float) -> None:
        """Learn limits from the jobs that are denied."""
        rows = state.queue.values()
        denied = [
            ThrottleCandidate(row, sum(n for _, n in row.gpus_per_node) * len(row.requested_nodes))
            for row in rows
            if self.denies(row)
        ]
        held = {job: gang.num_gpus for job, gang in state.gangs.items()}
        self.throttles.observe(rows, held, denied, state.throttles, now_s)

    def marked(
        self,
        jobs: Sequence[Job],
        copies: Mapping[JobId, Sequence[Task]],
        queue: Mapping[JobId, QueueRow],
        now_s: float,
    ) -> tuple[list[Job], dict[JobId, list[Task]]]:
        """Return jobs and copies of forked jobs, with `left_out` set where a limit has no room."""
        # Room under a limit goes to jobs in order of submission.
        every = [*jobs, *(task.job for tasks in copies.values() for task in tasks if task.job)]
        every.sort(key=lambda job: (job.spec.submitted_s, natural_key(job.job_id)))
        pending = [
            (job.phase, ThrottleCandidate(queue[job.job_id], job.spec.num_gpus))
            for job in every
            if queue[job.job_id].state == "PENDING"
        ]
        queued = [candidate for phase, candidate in pending if phase is Phase.QUEUED]
        starting = [candidate for phase, candidate in pending if phase is Phase.STARTING]
        self.throttles.keep(candidate.row for candidate in (*queued, *starting))
        why = self.throttles.left_out(queued, starting, now_s)

        def mark(job: Job) -> Job:
            remarks = (*job.remarks, why.get(job.job_id, ""))
            return replace(job, left_out=True, remarks=remarks) if job.job_id in why else job

        return [mark(job) for job in jobs], {
            parent: [replace(task, job=mark(task.job)) if task.job else task for task in tasks]
            for parent, tasks in copies.items()
        }
