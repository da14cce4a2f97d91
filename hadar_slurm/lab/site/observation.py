"""What jobs are seen to hold over time: the parser of Slurm's output and the sums. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from ClusterShell.NodeSet import NodeSet

from hadar_slurm.core.cluster import JobId
from hadar_slurm.slurm.client.parse import HOLDING_STATES

_FIELD = re.compile(r"(?:^| )(JobId|ArrayTaskId|UserId|JobState|Restarts|Reason)=(\S*)")
_TIME = re.compile(r" (AccrueTime|StartTime|EndTime)=(\d+)")
_DETAIL = re.compile(r"\bNodes=(\S+) CPU_IDs=\S* Mem=\S* GRES=(\S*)")
_GPUS = re.compile(r"gpu:([^:(]+):[1-9]\d*\(IDX:([^)]*)\)")
_WAITS = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT"})
# A job that waits for its nodes to boot is CONFIGURING.
_STARTED = (HOLDING_STATES - {"CONFIGURING"}) | {"COMPLETED", "FAILED", "TIMEOUT"}


@dataclass(frozen=True, slots=True)
class JobSeen:
    """One job as Slurm shows it; times in seconds since the epoch, 0 if unknown."""

    job: JobId
    user: str
    state: str
    reason: str
    restarts: int
    accrue_s: float
    started_s: float
    ended_s: float
    # As `node/type/index`.
    gpus: frozenset[str]

    @property
    def has_started(self) -> bool:
        """Whether the job runs or has ended by itself."""
        return self.state in _STARTED

    @property
    def is_waiting(self) -> bool:
        """Whether the job waits for its first or next start."""
        return self.state in _WAITS

    @property
    def has_ended(self) -> bool:
        """Whether the job neither waits nor holds GPUs."""
        return not self.is_waiting and self.state not in HOLDING_STATES


def parse_jobs(text: str) -> dict[JobId, JobSeen]:
    """Return the jobs in the output of `scontrol show job -d -o`, times as seconds."""
    return {job.job: job for line in text.splitlines() if (job := _job(line)) is not None}


def _job(line: str) -> JobSeen | None:
    fields = dict(_FIELD.findall(line))
    if "JobId" not in fields:
        return None
    times = {name: float(value) for name, value in _TIME.findall(line)}
    state = fields.get("JobState", "")
    holds = state in HOLDING_STATES
    return JobSeen(
        JobId(fields["JobId"]),
        user=fields.get("UserId", "").partition("(")[0],
        state=state,
        reason=fields.get("Reason", ""),
        restarts=int(fields.get("Restarts", 0)),
        accrue_s=times.get("AccrueTime", 0.0),
        started_s=times.get("StartTime", 0.0),
        ended_s=times.get("EndTime", 0.0),
        gpus=_gpus(line) if holds else frozenset(),
    )


def _gpus(line: str) -> frozenset[str]:
    return frozenset(
        f"{node}/{gpu_type}/{index}"
        for nodes, gres in _DETAIL.findall(line)
        for gpu_type, indices in _GPUS.findall(gres)
        for node in NodeSet(nodes)
        for index in NodeSet(f"[{indices}]")
    )


@dataclass
class GpuRecord:
    """The GPU-seconds without a job, and the GPUs that stopped jobs have lost to other users."""

    num_gpus: int
    idle_gpu_s: float = 0.0
    lost: set[str] = field(default_factory=set)
    # The job that was last seen on each GPU, and how often it had been requeued by then.
    _last_holder: dict[str, tuple[JobId, int]] = field(default_factory=dict)
    _at_s: float | None = None

    def update(
        self,
        jobs: Mapping[JobId, JobSeen],
        managed: Collection[JobId],
        now_s: float,
        *,
        counts_idle: bool,
    ) -> None:
        """Take in what Slurm shows now; `counts_idle` if a judged job has waited since the last."""
        holder = {gpu: job.job for job in jobs.values() for gpu in job.gpus}
        if self._at_s is not None and counts_idle:
            self.idle_gpu_s += (self.num_gpus - len(holder)) * (now_s - self._at_s)
        self._at_s = now_s
        does_wait = any(jobs[job].is_waiting for job in managed if job in jobs)
        for gpu, job in holder.items():
            before, restarts = self._last_holder.get(gpu, (job, 0))
            if does_wait and before in managed and job not in managed:
                stopped = jobs.get(before)
                if stopped is not None and (stopped.is_waiting or stopped.restarts > restarts):
                    self.lost.add(gpu)
            self._last_holder[gpu] = (job, jobs[job].restarts)
