"""Forked jobs (HadarE): the tasks of one job array as the copies of one job, and back.

Policies see one job with several copies; Slurm, and all that changes something in it, sees tasks.
This is the job tracker of HadarE (arXiv 2503.10918, as reconstructed): which copies run where, how
fast each is, how far they are together, and how many steps each is to train in a slot. It keeps
nothing: all of it is in Slurm's queue and in the copies' reports.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from hadar_slurm.core.cluster import GpuType, JobId, NodeName
from hadar_slurm.core.gang import Allocation, Gang
from hadar_slurm.core.job import Job, JobSpec, Phase, Progress
from hadar_slurm.core.snapshot import Ended
from hadar_slurm.core.throughput import Rate, Throughputs
from hadar_slurm.engine.actions import Action
from hadar_slurm.handoff import ProgressReport, shares
from hadar_slurm.jobspec.description import MAX_RATE, MAX_RESTART_S, MIN_RATE, Description
from hadar_slurm.slurm.client.parse import FAILED_STATES, HOLDING_STATES, QueueRow
from hadar_slurm.state.heartbeat import SKEW_S

# A measured speed that is within this part of what is expected is no news.
_NEAR = 0.1
# What aggregation is taken to cost until a copy has reported it, in seconds.
_AGGREGATION_S = 1.0


def parent_of(row: QueueRow, description: Description) -> JobId | None:
    """Return the job array that a copy belongs to; None for a job that is not forked."""
    array, _, task = row.key.partition("_")
    return JobId(array) if description.copies > 1 and task.isdecimal() else None


@dataclass(frozen=True, slots=True)
class Task:
    """One copy as Slurm has it: what it would be as a job by itself, and what it has reported.

    `job` is None where hadard may not place it, and of one that has ended.
    """

    row: QueueRow
    description: Description
    job: Job | None = None
    report: ProgressReport | None = None

    @property
    def number(self) -> int:
        """Return the task's number in its array, which is that of the copy for the training."""
        return int(self.row.key.rpartition("_")[2])

    @property
    def runs(self) -> bool:
        """Whether it runs, or holds GPUs for another reason than that it is leaving them."""
        return self.row.state in HOLDING_STATES and self.row.state != "COMPLETING"

    @property
    def gang(self) -> Gang | None:
        """Return the GPUs that it has or is about to have, if hadard may plan with them."""
        job = self.job
        if job is None or job.phase not in (Phase.STARTING, Phase.RUNNING) or not job.allocation:
            return None
        return job.allocation.gangs[0]

    @property
    def speed(self) -> float:
        """Return the steps/s that this very run has measured; 0: not yet, or not to be believed."""
        report = self.report
        if report is None or not self.runs or report.restart != self.row.restarts:
            return 0.0
        return report.steps_per_s if MIN_RATE <= report.steps_per_s <= MAX_RATE else 0.0

    @property
    def is_done(self) -> bool:
        """Whether this copy has reported that all steps are done, in this run or one before.

        Exit status 0 does not say that: a copy may end early, and leave the rest to the others.
        """
        report = self.report
        if report is None or report.state != "done":
            return False
        if report.restart < self.row.restarts:
            return True
        # Not the report of a former job that had this job id.
        is_of_this_run = report.time_s + SKEW_S >= self.row.started_s
        return report.restart == self.row.restarts and is_of_this_run


@dataclass(frozen=True)
class Fork:
    """One forked job: all its tasks, by number; `ends` are how some have ended, even long ago.

    `was_done`: a task has reported that the training is over, even one that Slurm no longer shows.
    """

    parent: JobId
    tasks: tuple[Task, ...]
    ends: frozenset[Phase] = frozenset()
    was_done: bool = False

    @classmethod
    def of(cls, parent: JobId, tasks: Sequence[Task], before: Fork | None) -> Fork:
        """Return the job whose tasks these are; `before` is the same job at the last look."""
        ends = {final_phase(task.row.state) for task in tasks if not task.row.is_live}
        return cls(
            parent,
            tuple(sorted(tasks, key=lambda task: task.number)),
            frozenset(ends) | (before.ends if before else frozenset()),
            before is not None and before.is_done,
        )

    @cached_property
    def copies(self) -> tuple[Task, ...]:
        """Return the tasks that can be copies now: the place in this row is a copy's number.

        Slurm alone, when it has had the job, may have put two copies on one node, or one on
        several: a plan cannot say that. While such a copy runs, or one that hadard may not place,
        there are no further ones.
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
        keys = {task.row.key for task in held}
        is_apart = any((t.gang or t.runs) and t.row.key not in keys for t in self.tasks)
        queued = [] if is_apart else self._queued(is_first=not held)
        return tuple(sorted((*held, *queued), key=lambda task: task.number))

    def _queued(self, *, is_first: bool) -> list[Task]:
        """Return the tasks that wait and can be started.

        A request may have named a GPU type, and be bound to it. A job has one such type for all its
        copies or none: such tasks are used where there are no others.
        """
        queued = [(t, t.job) for t in self.tasks if t.job and t.job.phase is Phase.QUEUED]
        waiting = [(task, job) for task, job in queued if not job.left_out]
        if not waiting and is_first:
            waiting = queued  # for people to see why nothing starts
        free = [task for task, job in waiting if job.bound_type is None]
        if free or not is_first:
            return free
        bound = next((job.bound_type for _, job in waiting), None)
        return [task for task, job in waiting if job.bound_type == bound]

    @cached_property
    def is_done(self) -> bool:
        """Whether the training is over: copies that have not run have nothing left to do."""
        return self.was_done or any(task.is_done for task in self.tasks)

    @property
    def is_alive(self) -> bool:
        """Whether any of its tasks waits or holds GPUs."""
        return any(task.row.is_live for task in self.tasks)

    @property
    def owner_uid(self) -> int:
        """Return the user whose job it is."""
        return self.tasks[0].row.user_id

    @property
    def aggregation_s(self) -> float:
        """Return how long the copies' parameters take to be made one, in seconds."""
        known = [task.report.aggregation_s for task in self.tasks if task.report]
        return min(max(known, default=0.0), MAX_RESTART_S) or _AGGREGATION_S

    @property
    def averages(self) -> int:
        """Return how often copies have been made one, as the best informed of them says."""
        return max((task.report.averages for task in self.tasks if task.report), default=0)

    @property
    def ended(self) -> Ended | None:
        """Return how the job as a whole has ended, or None while a task is left."""
        if self.is_alive:
            return None
        worst = (Phase.FAILED, Phase.CANCELLED)
        phase = next((phase for phase in worst if phase in self.ends), Phase.DONE)
        return Ended(self.parent, phase, max(task.row.ended_s for task in self.tasks))

    @cached_property
    def job(self) -> Job | None:
        """Return the job as policies see it; None when none of its copies can be placed."""
        jobs = [task.job for task in self.copies if task.job is not None]
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
            rates=self._rates(first.spec),
            submitted_s=min(job.spec.submitted_s for job in jobs),
            # Which copies must not be signalled is decided by copy.
            can_checkpoint=any(job.spec.can_checkpoint for job in jobs),
        )
        allocation = Allocation.of(held)
        return Job(
            spec,
            phase,
            self._progress(spec, allocation),
            allocation,
            _common(job.allowed_nodes for job in jobs),
            first.bound_type if not held else None,
            first.fair_share,
            self._partition,
            self._remarks,
            phase is Phase.STARTING
            and all(job.is_pinned for job in jobs if job.phase is Phase.STARTING),
            all(job.left_out for job in jobs),
        )

    @property
    def _remarks(self) -> tuple[str, ...]:
        """Return what is said of the copies, each by its number."""
        told = [(task.number, task.job.remarks) for task in self.copies if task.job is not None]
        return tuple(f"copy {number}: {text}" for number, remarks in told for text in remarks)

    @property
    def _partition(self) -> str:
        """Return the partitions of the copies that have GPUs, or else of all."""
        held = [task for task in self.copies if task.gang is not None]
        told = [name for task in held or self.copies for name in task.row.partition.split(",")]
        return ",".join(dict.fromkeys(told))

    def _rates(self, spec: JobSpec) -> Throughputs:
        """Return the job's rates, with what its copies have measured in place of what was said.

        A type on which none has run yet keeps its proportion to those on which one has. What agrees
        with what was said stays as it was said: jobs alike would otherwise be told apart by noise,
        and change places every round.
        """
        measured: dict[str, list[float]] = {}
        for task in self.copies:
            if task.speed > 0 and task.gang is not None:
                measured.setdefault(min(task.gang.gpus_by_type).lower(), []).append(task.speed)
        if not measured:
            return spec.rates
        size = spec.num_gpus
        speeds = {gpu_type: sum(found) / len(found) for gpu_type, found in measured.items()}
        said = {gpu_type: spec.rates.on(gpu_type, size) for gpu_type in spec.rates.gpu_types}
        ratios = [
            speeds[gpu_type] / said[gpu_type] for gpu_type in speeds if said.get(gpu_type, 0.0) > 0
        ]
        factor = sum(ratios) / len(ratios) if ratios else 1.0
        factor = 1.0 if _agree(factor, 1.0) else factor
        scaled = {gpu_type: speed * factor for gpu_type, speed in said.items()}
        news = {k: speed for k, speed in speeds.items() if not _agree(speed, scaled.get(k, 0.0))}
        rates = scaled | news
        return Throughputs.of({(gpu_type, size): Rate(speed) for gpu_type, speed in rates.items()})

    def _progress(self, spec: JobSpec, allocation: Allocation) -> Progress:
        """Return how far the copies are together, and the GPU-seconds that must have taken.

        Every copy counts the steps that have been made one and, beside them, its own since.
        """
        reports = [task.report for task in self.tasks if task.report]
        shared = max((report.steps_done - report.own_steps for report in reports), default=0)
        own = sum(r.own_steps for r in reports if r.steps_done - r.own_steps == shared)
        steps = float(min(max(0, shared) + own, spec.total_steps))
        size = spec.num_gpus
        held = Counter(min(gang.gpus_by_type) for gang in allocation.gangs)
        best = max(
            spec.rates.gpu_types, key=lambda gpu_type: spec.rates.on(gpu_type, size), default=""
        )
        gpu_types = held or Counter({GpuType(best): 1})
        rate = sum(spec.rates.on(gpu_type, size) * count for gpu_type, count in gpu_types.items())
        taken_s = steps / rate if rate > 0 else 0.0
        service = tuple((k, size * n * taken_s) for k, n in sorted(gpu_types.items()) if taken_s)
        return Progress(steps, max(task.row.restarts for task in self.tasks), service)

    def quotas(self, gangs: Mapping[int, Gang], slot_s: float) -> dict[int, int]:
        """Return how many steps each copy is to train in a slot of `slot_s` seconds, by task.

        In proportion to speed, so that all end together; those not yet measured go by the job's
        rates. `gangs` are where the copies run, by copy number. Aggregation comes on top: the
        copies know best what it takes, and make slots longer for it.
        """
        if self.job is None:
            return {}
        rates = self.job.spec.rates
        tasks = [(self.copies[number], gang) for number, gang in gangs.items()]
        speeds = {task.number: task.speed or gang.rate(rates) for task, gang in tasks}
        budget = int(sum(speeds.values()) * slot_s)
        return shares(max(len(speeds), budget), speeds)


@dataclass(frozen=True)
class Forks:
    """The forked jobs of one look."""

    by_parent: Mapping[JobId, Fork]

    @property
    def jobs(self) -> list[Job]:
        """Return the jobs as policies see them."""
        return [fork.job for fork in self.by_parent.values() if fork.job is not None]

    @property
    def task_jobs(self) -> list[Job]:
        """Return what those jobs' copies are by themselves."""
        copies = [task for fork in self.by_parent.values() for task in fork.copies]
        return [task.job for task in copies if task.job is not None]

    @property
    def not_needed(self) -> list[Task]:
        """Return the copies of trainings that are over: each has only to find that out."""
        done = [fork for fork in self.by_parent.values() if fork.is_done]
        return [task for fork in done for task in fork.tasks]

    @property
    def ended(self) -> list[Ended]:
        """Return the jobs of which no task is left."""
        return [fork.ended for fork in self.by_parent.values() if fork.ended is not None]

    def on_task(self, action: Action) -> Action:
        """Return an action on a copy as one on its task; that on any other job as it is."""
        fork = self.by_parent.get(action.job_id)
        if fork is None:
            return action
        return replace(action, job_id=fork.copies[action.copy].row.key, copy=0)


def _agree(measured: float, expected: float) -> bool:
    """Return whether a measured speed is near enough to an expected one."""
    return abs(measured - expected) <= _NEAR * expected


def final_phase(state: str) -> Phase:
    """Return how a job has ended whose state, by squeue, is this."""
    if state == "COMPLETED":
        return Phase.DONE
    return Phase.FAILED if state in FAILED_STATES else Phase.CANCELLED


def _common(places: Iterable[frozenset[NodeName] | None]) -> frozenset[NodeName] | None:
    """Return the nodes that are in all of these sets; None stands for all nodes."""
    known = [place for place in places if place is not None]
    return frozenset.intersection(*known) if known else None
