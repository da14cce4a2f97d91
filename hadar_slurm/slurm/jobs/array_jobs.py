"""Forked jobs (HadarE): maps the tasks of one job array to the copies of one job, and back.

Policies see one job with several copies; Slurm and the control of jobs see tasks. This is the job
tracker of HadarE (arXiv 2503.10918, as reconstructed): the placement and throughput of each copy,
their common progress, and the steps that each is to train in an averaging interval. It has no state
of its own: all is in Slurm's queue and in the copies' reports.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from hadar_slurm.assignment_file import shares
from hadar_slurm.core.cluster import GpuType, JobId, NodeName
from hadar_slurm.core.gang import Allocation, Gang
from hadar_slurm.core.job import Job, JobSpec, Phase, Progress
from hadar_slurm.core.snapshot import Ended
from hadar_slurm.core.throughput import Throughputs
from hadar_slurm.jobspec.description import MAX_RESTART_S, MAX_THROUGHPUT, MIN_THROUGHPUT
from hadar_slurm.placement.copies import measured_throughputs
from hadar_slurm.slurm.client.parse import HOLDING_STATES
from hadar_slurm.slurm.jobs.seen import SeenJob, final_phase
from hadar_slurm.state.heartbeat import SKEW_S

# The assumed time of an aggregation until a copy has reported it, in seconds.
_AGGREGATION_S = 1.0


@dataclass(frozen=True, slots=True)
class Task:
    """One copy as a task in Slurm."""

    seen: SeenJob
    # The copy as a job by itself; None where it is not managed or has ended.
    job: Job | None = None

    @property
    def number(self) -> int:
        """Return the task's number in its array, by which the training knows the copy."""
        return int(self.seen.row.key.rpartition("_")[2])

    @property
    def runs(self) -> bool:
        """Whether it holds GPUs and is not completing."""
        return self.seen.row.state in HOLDING_STATES and self.seen.row.state != "COMPLETING"

    @property
    def gang(self) -> Gang | None:
        """Return the GPUs that it holds or is starting on; None where it is not managed."""
        job = self.job
        if job is None or job.phase not in (Phase.STARTING, Phase.RUNNING) or not job.allocation:
            return None
        return job.allocation.gangs[0]

    @property
    def speed(self) -> float:
        """Return the steps/s that the current run has measured; 0: none yet, or out of range."""
        report = self.seen.report
        if report is None or not self.runs or not self.seen.reports_run:
            return 0.0
        return report.steps_per_s if MIN_THROUGHPUT <= report.steps_per_s <= MAX_THROUGHPUT else 0.0

    @property
    def is_done(self) -> bool:
        """Whether this copy has reported that all steps are done, in this run or an earlier one.

        Exit status 0 does not say so: a copy may end early, and leave the rest to other copies.
        """
        report, restarts = self.seen.report, self.seen.row.restarts
        if report is None or report.state != "done" or report.restart > restarts:
            return False
        # A report of this restart may be that of an earlier job with this job id.
        return report.restart < restarts or report.time_s + SKEW_S >= self.seen.row.started_s


@dataclass(frozen=True)
class Fork:
    """One forked job."""

    parent: JobId
    # By number.
    tasks: tuple[Task, ...]
    # How tasks have ended, those that Slurm has forgotten included.
    ends: frozenset[Phase] = frozenset()
    # A task, which Slurm may have forgotten, has reported that the training is over.
    was_done: bool = False

    @classmethod
    def of(cls, parent: JobId, tasks: Sequence[Task], before: Fork | None) -> Fork:
        """Return the job of these tasks; `before` is the same job at the last observation."""
        ends = {final_phase(task.seen.row.state) for task in tasks if not task.seen.row.is_live}
        ordered = tuple(sorted(tasks, key=lambda task: task.number))
        if before is None:
            return cls(parent, ordered, frozenset(ends))
        return cls(parent, ordered, before.ends | ends, before.is_done)

    @cached_property
    def copies(self) -> tuple[Task, ...]:
        """Return the tasks that can be copies now; a copy's number is its index here.

        Without hadard, Slurm may have put two copies on one node, or one on several, which a plan
        cannot express. While such a copy or an unmanaged one runs, no further copies are started.
        """
        if self.is_done:
            return ()
        held: list[Task] = []
        nodes: set[NodeName] = set()
        for task in self.tasks:
            gang = task.gang
            if gang and not gang.is_spread and nodes.isdisjoint(gang.gpus_by_node):
                held.append(task)
                nodes.update(gang.gpus_by_node)
        keys = {task.seen.row.key for task in held}
        is_apart = any((t.gang or t.runs) and t.seen.row.key not in keys for t in self.tasks)
        queued = [] if is_apart else self._queued(is_first=not held)
        return tuple(sorted((*held, *queued), key=lambda task: task.number))

    def _queued(self, *, is_first: bool) -> list[Task]:
        """Return the pending tasks that can be started.

        A task whose request has named a GPU type may be bound to it. All copies of a job have the
        same such type or none: bound tasks are used only where no task is free.
        """
        queued = [(t, t.job) for t in self.tasks if t.job and t.job.phase is Phase.QUEUED]
        waiting = [(task, job) for task, job in queued if not job.left_out]
        waiting = waiting or (queued if is_first else [])  # to show why nothing starts
        free = [task for task, job in waiting if job.bound_type is None]
        if free or not is_first:
            return free
        bound = next((job.bound_type for _, job in waiting), None)
        return [task for task, job in waiting if job.bound_type == bound]

    @cached_property
    def is_done(self) -> bool:
        """Whether the training is over, so that no further copy is needed."""
        return self.was_done or any(task.is_done for task in self.tasks)

    @property
    def is_alive(self) -> bool:
        """Whether any of its tasks is pending or holds GPUs."""
        return any(task.seen.row.is_live for task in self.tasks)

    @property
    def owner_uid(self) -> int:
        """Return the user id of the job's owner."""
        return self.tasks[0].seen.row.user_id

    @property
    def aggregation_s(self) -> float:
        """Return the time of averaging the copies' parameters, in seconds."""
        known = [task.seen.report.aggregation_s for task in self.tasks if task.seen.report]
        return min(max(known, default=0.0), MAX_RESTART_S) or _AGGREGATION_S

    @property
    def averages(self) -> int:
        """Return the number of parameter averages, the largest that a copy reports."""
        return max([0, *(task.seen.report.averages for task in self.tasks if task.seen.report)])

    @property
    def is_synchronous(self) -> bool:
        """Whether copies share every step, as one that runs reports."""
        reports = (task.seen.report for task in self.copies if task.gang)
        return any(report.synchronous for report in reports if report)

    @property
    def ended(self) -> Ended | None:
        """Return how the job as a whole has ended; None while a task is live."""
        if self.is_alive:
            return None
        worst = (Phase.FAILED, Phase.CANCELLED)
        phase = next((phase for phase in worst if phase in self.ends), Phase.DONE)
        return Ended(self.parent, phase, max(task.seen.row.ended_s for task in self.tasks))

    @cached_property
    def job(self) -> Job | None:
        """Return the job as policies see it; None when none of its copies can be placed."""
        placed = [(task, task.job) for task in self.copies if task.job is not None]
        jobs = [job for _, job in placed]
        if not jobs:
            return None
        phases = {job.phase for job in jobs}
        phase = next(p for p in (Phase.RUNNING, Phase.STARTING, Phase.QUEUED) if p in phases)
        held = {n: task.gang for n, task in enumerate(self.copies) if task.gang is not None}
        first = jobs[0]
        spec = replace(
            first.spec,
            job_id=self.parent,
            max_copies=len(jobs),
            aggregation_cost_s=self.aggregation_s,
            throughputs=self._throughputs(first.spec),
            submitted_s=min(job.spec.submitted_s for job in jobs),
            # Observation.not_ready decides by copy.
            can_checkpoint=any(job.spec.can_checkpoint for job in jobs),
        )
        allocation = Allocation.of(held)
        allowed = [job.allowed_nodes for job in jobs if job.allowed_nodes is not None]
        starting = [job for job in jobs if job.phase is Phase.STARTING]
        return Job(
            spec,
            phase,
            self._progress(spec, allocation),
            allocation,
            allowed_nodes=frozenset.intersection(*allowed) if allowed else None,
            bound_type=first.bound_type if not held else None,
            fair_share=first.fair_share,
            partition=self._partition,
            remarks=tuple(
                f"copy {t.number}: {s}" for t in self.copies if t.job for s in t.job.remarks
            ),
            is_pinned=phase is Phase.STARTING and all(job.is_pinned for job in starting),
            left_out=all(job.left_out for job in jobs),
            account=first.account,
            limit_left_s=first.limit_left_s,
        )

    @property
    def _partition(self) -> str:
        """Return the partitions of the copies that have GPUs, or else of all copies."""
        held = [task for task in self.copies if task.gang is not None]
        names = ",".join(task.seen.row.partition for task in held or self.copies)
        return ",".join(dict.fromkeys(names.split(",")))

    def _throughputs(self, spec: JobSpec) -> Throughputs:
        """Return the job's steps/s by GPU type: measured by its copies, else as described."""
        measured: dict[str, list[float]] = defaultdict(list)
        for task in self.copies:
            if task.speed > 0 and task.gang is not None:
                measured[min(task.gang.gpus_by_type).lower()].append(task.speed)
        speeds = {k: sum(found) / len(found) for k, found in measured.items()}
        return measured_throughputs(spec, speeds) if speeds else spec.throughputs

    def _progress(self, spec: JobSpec, allocation: Allocation) -> Progress:
        """Return the common progress of the copies, and an estimate of its GPU-seconds.

        Each copy reports the steps in the last average and, separately, its own since.
        """
        reports = [task.seen.report for task in self.tasks if task.seen.report]
        shared = max((report.steps_done - report.own_steps for report in reports), default=0)
        own = sum(r.own_steps for r in reports if r.steps_done - r.own_steps == shared)
        steps = float(min(max(0, shared) + own, spec.total_steps))
        held = Counter(min(gang.gpus_by_type) for gang in allocation.gangs)
        gpu_types = held or Counter({GpuType(spec.fastest_of(spec.throughputs.gpu_types)): 1})
        throughput = sum(spec.throughput_on(k) * count for k, count in gpu_types.items())
        taken_s = steps / throughput if throughput > 0 else 0.0
        counts = sorted(gpu_types.items()) if taken_s else ()
        service = tuple((k, spec.gpus_on(k) * n * taken_s) for k, n in counts)
        return Progress(steps, max(task.seen.row.restarts for task in self.tasks), service)

    def quotas(self, gangs: Mapping[int, Gang], slot_s: float) -> dict[int, int]:
        """Return the steps that each copy can train in `slot_s` seconds, by task.

        Steps are in proportion to throughput, so that all copies end together; without a
        measurement the job's throughputs count. `gangs` are the copies' GPUs, by copy number. The
        time of aggregation is not included: the copies measure it, and choose their intervals.
        """
        if self.job is None:
            return {}
        throughputs = self.job.spec.throughputs
        tasks = [(self.copies[number], gang) for number, gang in gangs.items()]
        speeds = {task.number: task.speed or gang.throughput(throughputs) for task, gang in tasks}
        budget = int(sum(speeds.values()) * slot_s)
        return shares(max(len(speeds), budget), speeds)
