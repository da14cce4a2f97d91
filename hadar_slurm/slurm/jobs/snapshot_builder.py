"""Builds the snapshot for policies, and what is to be corrected, from Slurm's state."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hadar_slurm.core.cluster import GpuType, JobId, NodeName
from hadar_slurm.core.gang import Allocation, Gang
from hadar_slurm.core.job import Job, JobSpec, Phase, Shape
from hadar_slurm.core.learned_sizes import EndedJobs
from hadar_slurm.core.snapshot import Ended, GangRules, Snapshot
from hadar_slurm.errors import JobSpecError
from hadar_slurm.handoff import ProgressReport
from hadar_slurm.jobspec.description import (
    Description,
    decode,
    job_spec,
)
from hadar_slurm.jobspec.estimator import Estimator, words
from hadar_slurm.slurm.client import updates
from hadar_slurm.slurm.client.fairshare import FairShares
from hadar_slurm.slurm.client.parse import NOTHING, UNTYPED, NodeRow, QueueRow
from hadar_slurm.slurm.client.protocol import SlurmAdapter
from hadar_slurm.slurm.client.state import SlurmState
from hadar_slurm.slurm.enforce import loss_bound
from hadar_slurm.slurm.enforce.checkpoint_signal import (
    is_ended_by_us,
    message,
    runs_again,
    why_not_migrated,
)
from hadar_slurm.slurm.enforce.disposition import Disposition, disposition_of
from hadar_slurm.slurm.enforce.ledger import Ledger
from hadar_slurm.slurm.enforce.modes import Mode
from hadar_slurm.slurm.enforce.pins import Pins
from hadar_slurm.slurm.enforce.sharing import is_outside, jobs_beside_held, must_steer
from hadar_slurm.slurm.jobs.array_jobs import Fork, Forks, Task, final_phase, parent_of
from hadar_slurm.slurm.jobs.choices import Choices
from hadar_slurm.slurm.jobs.claim_checks import ClaimChecks
from hadar_slurm.slurm.jobs.enrolment import Enrolment
from hadar_slurm.slurm.jobs.holdings import occupied, unlisted
from hadar_slurm.slurm.jobs.limits import Limits
from hadar_slurm.slurm.jobs.notices import Notices
from hadar_slurm.slurm.jobs.parameter_averages import Averages
from hadar_slurm.slurm.jobs.reports import Reports
from hadar_slurm.slurm.jobs.run_outcomes import (
    RunOutcomes,
    is_retried,
    may_retry,
    retry_message,
)
from hadar_slurm.slurm.jobs.sizes import LearnedSizes
from hadar_slurm.slurm.jobs.throttles import Throttles
from hadar_slurm.slurm.settings import BackendSettings

_Report = ProgressReport | None

# A begin time within this number of seconds was set by hadard.
_SOON_S = 10.0
# For this number of seconds after a foreign requeue, Slurm may send the end of the last run to its
# nodes. When a node fails, Slurm requeues the job and tries for 10 s to reach the node; it kills a
# run that starts there meanwhile in place of the previous one (seen with 22.05.8).
_LATE_END_S = 15.0
# One job beyond a learned limit is tried after this number of pin timeouts.
_RETRY_TIMEOUTS = 5
_RUN_STATES = ("RUNNING", "CONFIGURING", "SIGNALING")


@dataclass(slots=True)
class Observation:
    """What policies plan from, and what is to be corrected beside their plan.

    Job ids are those of Slurm. In `snapshot` the tasks of a forked job are one job; `forks` maps
    its actions to tasks.
    """

    snapshot: Snapshot
    forks: Forks
    # How waiting jobs are treated now: `steer` in mode `hold` while plain jobs wait (sharing.py).
    way: Mode = Mode.OBSERVE
    # Running copies that must not get USR1 yet, and why; a plan stops no other such job.
    signal_not_ready: Mapping[JobId, str] = field(default_factory=dict)
    # Managed without a description by hadar-sbatch: never held, pinned or migrated (enrolment.py).
    enrolled: set[JobId] = field(default_factory=set)
    # Not managed, but still under a hold or pin of hadard: their own requests are to be restored.
    to_restore: set[JobId] = field(default_factory=set)
    # Held by hadard while they wait for other jobs, and not in the snapshot.
    dependent: list[Job] = field(default_factory=list)
    # Pending on the nodes of a pin that cannot start them.
    pin_timed_out: set[JobId] = field(default_factory=set)
    # The time limit in seconds by GPU type, of jobs whose limit depends on it.
    limits_s: dict[JobId, Mapping[str, float]] = field(default_factory=dict)
    # The descriptions of copies of which GPUs, cores and memory depend on the GPU type.
    by_type: dict[JobId, Description] = field(default_factory=dict)
    # Jobs with a description or a claim that have not ended, and ended ones whose claim is needed.
    alive: set[JobId] = field(default_factory=set)
    # Ended by USR1 from hadard, and to be requeued.
    ended_by_us: set[JobId] = field(default_factory=set)
    # Failed early on a type that their workload then must not have, and to be requeued: that type.
    to_retry: dict[JobId, str] = field(default_factory=dict)
    # To be printed in the output of jobs that run again after either.
    to_notify: dict[JobId, updates.Notify] = field(default_factory=dict)
    # The parts, 0 to 1, that running jobs keep if they are requeued without a signal now.
    kept: dict[JobId, float] = field(default_factory=dict)


@dataclass
class SnapshotBuilder:
    """Turns Slurm's state, which `ledger` has seen, into observations.

    It answers before the first observation too, as for a Slurm without jobs.
    """

    slurm: SlurmAdapter
    estimator: Estimator
    settings: BackendSettings
    ledger: Ledger
    mode: Mode
    pins: Pins
    shares: FairShares
    is_off: Callable[[], bool]
    now_s: Callable[[], float]
    averages: Averages = field(default_factory=Averages)
    ended: EndedJobs = field(default_factory=EndedJobs)
    # Jobs that USR1 from hadard has ended and that Slurm refused to requeue.
    lost: set[JobId] = field(default_factory=set)
    limits: Limits = field(init=False)
    outcomes: RunOutcomes = field(init=False)
    checks: ClaimChecks = field(init=False)
    sizes: LearnedSizes = field(init=False)
    enrolment: Enrolment = field(init=False)
    choices: Choices = field(init=False)
    reports: Reports = field(init=False)
    notices: Notices = field(default_factory=Notices)
    _forks: Mapping[JobId, Fork] = field(default_factory=dict)
    # Of this observation; `_copies` are the tasks of forked jobs, by array.
    _state: SlurmState = field(default_factory=lambda: SlurmState({}, (), {}))
    _unlisted: frozenset[JobId] = frozenset()
    _now: Observation = field(init=False)
    _jobs: list[Job] = field(init=False)
    # The nodes of reservations, read when first needed.
    _reserved: frozenset[NodeName] | None = None
    _copies: dict[JobId, list[Task]] = field(init=False)
    _ended: list[Ended] = field(init=False)

    def __post_init__(self) -> None:
        throttles = Throttles(_RETRY_TIMEOUTS * self.settings.pin_timeout_s)
        self.limits = Limits(throttles, self.ledger)
        self.outcomes = RunOutcomes(self.estimator.records)
        self.checks = ClaimChecks(self.estimator)
        own = self.settings
        self.sizes = LearnedSizes(self.estimator, self.ended, own.learns_sizes)
        self.enrolment = Enrolment(
            self.slurm, own.enrol, own.modes, own.enrolled_of_account, notices=self.notices
        )
        self.choices = Choices(
            self.slurm, self.estimator, self.ledger, self.enrolment, notices=self.notices
        )
        self.reports = Reports(self.settings.spool, self.estimator, self.ledger, self.now_s)

    def observe(self, state: SlurmState) -> Observation:
        """Return what there is to plan, and to correct."""
        self._state, self._unlisted = state, unlisted(state)
        self.notices.keep(state.queue)
        self.enrolment.read(state.queue.values())
        self._now = Observation(Snapshot(0.0, state.cluster, ()), Forks({}), self._way())
        self._jobs, self._copies, self._ended = [], {}, []
        self._reserved = None
        self.choices.see(state, self._now.way)
        self.reports.squatted = set()
        self.limits.learn(state, self.now_s())
        described = [(row, self._description(row)) for row in state.queue.values()]
        self._count_runs(described)
        for row, description in described:
            self._add(row, description)
        if self.mode.places:
            self._jobs, self._copies = self.limits.marked(
                self._jobs, self._copies, state.queue, self.now_s()
            )
        self._add_forks()
        self._now.pin_timed_out -= self._now.to_restore | self._now.enrolled
        self.reports.keep(self._now.alive)
        self._now.limits_s = self.choices.limits_s
        self._add_snapshot()
        return self._now

    def _count_runs(self, described: Iterable[tuple[QueueRow, Description | None]]) -> None:
        """Learn from the jobs' runs which GPU types suit their workloads, before any is placed."""
        self.estimator.records.expire(self.now_s())
        self.estimator.credits.now_s = self.now_s()
        for row, description in described:
            # Copies of a forked job end and restart one by one, each on another type.
            if description is None or description.copies > 1 or row.state == "PENDING":
                continue
            report = self.reports.read(row) if self.outcomes.needs_report(row) else None
            if row.is_live:
                gang = self._state.gangs.get(row.key)
                self.outcomes.see_live(row, description, gang, report, self.now_s())
            else:
                claim, cluster = self.ledger[row.key], self._state.cluster
                self.outcomes.see_ended(row, description, claim, report, cluster)
                # All modes learn for the same users.
                if self.settings.modes.of(row.partition) is self.mode:
                    gpu_type, types = self.outcomes.type_of(row), cluster.gpus_by_type
                    self.checks.see_ended(row, description, gpu_type)
                    self.sizes.see_ended(row, description, gpu_type, types)
        self.outcomes.keep(self._state.queue.keys())
        self.checks.keep(self._state.queue.keys())
        self.sizes.keep(self._state.queue.keys())
        self.sizes.renew(self.now_s())

    def _way(self) -> Mode:
        """Return how waiting jobs are treated now."""
        if self.mode is not Mode.HOLD:
            return self.mode
        rows = jobs_beside_held(self._state, self.settings.modes)
        shared = must_steer(
            rows, lambda row: is_outside(self._description(row), self.ledger[row.key])
        )
        return Mode.STEER if shared else Mode.HOLD

    def _add(self, row: QueueRow, description: Description | None) -> None:
        """Add one row of the queue."""
        if not row.is_live:
            self._add_ended(row, description)
        elif description is not None or row.key in self.ledger:
            claim = self.ledger[row.key]
            self._now.alive.add(row.key)
            if runs_again(row, claim, self.now_s()):
                self._now.to_notify[row.key] = updates.Notify(JobId(row.raw_id), message(claim))
            elif is_retried(row, claim, self.now_s()):
                text = retry_message(claim)
                self._now.to_notify[row.key] = updates.Notify(JobId(row.raw_id), text)
            if description is not None:
                self._add_described(row, description)
            elif claim.has_changed(row):
                # It has no valid description any more.
                self._now.to_restore.add(row.key)

    def _add_ended(self, row: QueueRow, description: Description | None) -> None:
        may_requeue = self.mode.places and not self.is_off() and row.key not in self.lost
        if may_requeue and is_ended_by_us(row, self.ledger[row.key]):
            self._now.ended_by_us.add(row.key)
            self._now.alive.add(row.key)
        elif description is not None and (parent := parent_of(row, description)) is not None:
            task = Task(row, description, None, self.reports.read(row))
            self._copies.setdefault(parent, []).append(task)
        elif description is not None:
            if self.ledger[row.key].retried_run:
                self._now.alive.add(row.key)  # forgotten, it would be retried again
            if may_requeue and self._is_to_retry(row, description):
                self._now.alive.add(row.key)
                self._now.to_retry[row.key] = self.outcomes.type_of(row)
            else:
                self._ended.append(Ended(row.key, final_phase(row.state), row.ended_s))

    def _is_to_retry(self, row: QueueRow, description: Description) -> bool:
        """Return whether a job has failed early and is to be requeued, for another GPU type."""
        is_here = self.settings.modes.of(row.partition) is self.mode
        return (
            is_here
            and may_retry(row, description, self.ledger[row.key], self.now_s())
            and self.outcomes.type_of(row) in self.choices.barred(row, description)
            and self.choices.can_run(row, description)
        )

    def _add_described(self, row: QueueRow, description: Description) -> None:
        """Add a live job with a description if it is managed."""
        claim = self.ledger[row.key]
        mode = Mode.OBSERVE if self.is_off() else self.settings.modes.of(row.partition)
        is_here = mode is self.mode
        is_placeable = not self._is_set_apart(row) and self.choices.can_run(row, description)
        disposition = disposition_of(
            row,
            description,
            claim,
            mode=self._now.way if is_here else mode,
            is_planned_here=is_here,
            is_placeable=is_placeable,
        )
        if disposition is Disposition.RESTORE:
            self._now.to_restore.add(row.key)
        is_managed = disposition is Disposition.MANAGE
        if is_managed and self.enrolment.may_include(row):
            self._now.enrolled.add(row.key)
        parent = parent_of(row, description)
        report = self.reports.read(row) if is_managed or parent is not None else None
        job = self._job(row, description, report) if is_managed else None
        if parent is not None:
            self._copies.setdefault(parent, []).append(Task(row, description, job, report))
            if description.gangs:
                self._now.by_type[row.key] = description
        elif job is not None:
            self._jobs.append(job)
        elif is_managed and row.dependency and claim.holds:
            self._now.dependent.append(self._dependent(row, description))

    def _add_forks(self) -> None:
        """Add the forked jobs; how copies forgotten by Slurm have ended is kept."""
        self._forks = {
            k: Fork.of(k, tasks, self._forks.get(k)) for k, tasks in self._copies.items()
        }
        averages = {parent: fork.averages for parent, fork in self._forks.items()}
        self.averages.observe(averages, self.now_s())
        self._now.forks = Forks(self._forks)
        self._now.to_restore |= {
            task.row.key
            for task in self._now.forks.not_needed
            if self.ledger[task.row.key].has_changed(task.row)
        }

    def _add_snapshot(self) -> None:
        """Add the snapshot and what depends on all of its jobs; forget the pins of other jobs."""
        state, forks = self._state, self._now.forks
        jobs = [*self._jobs, *forks.task_jobs]
        pending = {key for key, row in state.queue.items() if row.state == "PENDING"}
        starting = {job.job_id for job in jobs if job.phase is Phase.STARTING} & pending
        steered = {key for key in pending if self.ledger[key].steered}
        for key in steered:
            self._check_steered(state.queue[key])
        queued = {job.job_id for job in jobs if job.phase is Phase.QUEUED}
        self.pins.keep(starting=starting | steered, pending=starting | queued)
        self._now.snapshot = Snapshot.of(
            now_s=self.now_s(),
            cluster=state.cluster,
            jobs=[*self._jobs, *forks.jobs],
            occupied=occupied(state, (job.job_id for job in jobs)),
            rules=GangRules(naming_binds=self.slurm.abilities.keeps_types),
            ended=[*self._ended, *forks.ended],
        )
        self._now.signal_not_ready = {
            job.job_id: job.remarks[-1] if job.remarks else "it is only just starting"
            for job in forks.task_jobs
            if job.job_id not in pending
            and (job.phase is Phase.STARTING or not job.spec.can_checkpoint)
        }

    def signature(
        self, queue: Mapping[JobId, QueueRow], nodes: Sequence[NodeRow]
    ) -> frozenset[tuple[str, str]]:
        """Return what a plan depends on: the jobs in the queue, and the nodes that take work."""
        marks = {("hadard", "off")} if self.is_off() else set()
        for row in queue.values():
            if row.state == "COMPLETING":
                marks.add((str(row.key), "ending"))
            # The start of a job changes no plan.
            elif row.is_live and (
                row.state != "PENDING"
                or self._description(row) is not None
                or self.enrolment.is_new(row)
            ):
                marks.add((str(row.key), self._mark(row)))
        marks |= {(row.node.name, "open" if row.node.is_schedulable else "closed") for row in nodes}
        return frozenset(marks)

    def _mark(self, row: QueueRow) -> str:
        if self._is_for_later(row):
            return "later"
        if _may_meet_reservation(row):
            return "reserved"
        return "limited" if self.limits.denies(row) else "there"

    def _description(self, row: QueueRow) -> Description | None:
        """Return the description by hadar-sbatch, or that of an enrolled job; None for others."""
        try:
            return decode(row.comment) or self._enrolled_description(row)
        except JobSpecError as error:
            self.notices.say(row.key, f"is left to Slurm: {error}", logging.WARNING)
            return None

    def _enrolled_description(self, row: QueueRow) -> Description | None:
        if not self.settings.enrol:
            return None
        is_pending = row.state == "PENDING"
        nodes = self._state.request(row).num_nodes if is_pending else str(len(row.nodes))
        return self.enrolment.description(row, self.ledger[row.key].own, nodes)

    def _spec(self, row: QueueRow, description: Description) -> JobSpec:
        throughputs = self.choices.throughputs(row, description)
        return job_spec(
            row.key,
            description,
            throughputs,
            total_steps=self.estimator.total_steps(description, throughputs),
            submitted_s=row.submitted_s,
            restart_cost_s=self.settings.restart_cost_s,
            user=row.user,
            shapes=self.choices.shapes(row, description),
        )

    def _job(self, row: QueueRow, description: Description, report: _Report) -> Job | None:
        """Return the job as policies see it; None where Slurm alone places it."""
        gang = self._state.gangs.get(row.key)
        if row.key in self._unlisted:
            self.notices.say(row.key, f"is left out: {gang} is not what Slurm lists of its nodes")
            return None
        self.reports.measure(row, description, gang, report)
        bound = self.choices.bound_types(row)
        if len(bound) > 1:
            return None
        claimed = self._spec(row, description)
        owners_s = self.ledger[row.key].limit_of_owner(self._state.limits_s.get(row.key, 0.0))
        spec, doubts = self.checks.believed(
            row, description, claimed, gang, report, owners_s, self.now_s()
        )
        progress = self.reports.progress(row, description, report, spec, gang)
        in_time, late = self.choices.in_time(row, description, claimed, progress, gang)
        spec = replace(spec, throughputs=in_time.throughputs) if late else spec
        spec, learned = self.sizes.believed(
            description,
            spec,
            progress.steps_done,
            self._state.cluster.gpus_by_type,
            is_running=row.state == "RUNNING",
        )
        is_pending, claim = row.state == "PENDING", self.ledger[row.key]
        barred = self.choices.barred(row, description)
        if is_pending:
            gang = self._pinned_gang(row) if self.mode.places and not claim.steered else None
            phase = self._pending_phase(row, gang, barred)
        else:
            phase = self._started_phase(row, gang, report, spec)
        if phase is None:
            return None
        may_migrate = spec.can_checkpoint and (row.state in _RUN_STATES or claim.ended_run > 0)
        why_not = why_not_migrated(row, report, claim, self.now_s()) if may_migrate else ""
        if why_not and phase is not Phase.STARTING:
            spec = replace(spec, can_checkpoint=False)
        if description.restart_loss_s and may_migrate and gang is not None:
            total, speed = spec.total_steps, gang.throughput(spec.throughputs)
            facts = row, report, self.now_s()
            self._now.kept[row.key] = loss_bound.kept_part(
                claim.kept_part, progress.steps_done / total, speed / total, *facts
            )
            spec = loss_bound.with_loss(spec, *facts)
            why_not = why_not or loss_bound.remark(description.restart_loss_s)
        is_pinned, pinned = phase is Phase.STARTING and is_pending, ""
        if is_pinned:
            reason = f": {row.reason}" if row.reason not in NOTHING else ""
            pinned = f"pinned to {','.join(row.requested_nodes)}, pending in Slurm{reason}"
        elif is_pending and not row.is_held and (claim.steered or claim.excluded):
            nodes = ",".join(row.requested_nodes if claim.steered else claim.excluded)
            limit = f"may start on {nodes}" if claim.steered else f"may not start on {nodes}"
            pinned = f"in Slurm's queue ({row.reason}), {limit}"
        is_unseen = phase is Phase.QUEUED and row.key in self._state.unseen
        unseen = "Slurm's details of it could not be read in this round" if is_unseen else ""
        return Job(
            spec,
            phase,
            progress,
            Allocation.rigid(gang) if gang and phase is not Phase.QUEUED else Allocation(),
            self._allowed_nodes(row, spec.shapes, phase),
            GpuType(next(iter(bound))) if bound else None,
            self.shares.at(self.now_s()).get((row.account, row.user)),
            row.partition,
            (
                *(f"not on {name}: {why}" for name, why in self.choices.unfit(description).items()),
                *(f"not on {name}: {words(bar)}" for name, bar in barred.items()),
                *(remark for remark in (pinned, why_not, late, unseen, learned, *doubts) if remark),
            ),
            is_pinned,
            left_out=is_unseen,
            account=row.account,
            limit_left_s=self.checks.limit_left_s(row, description, owners_s, self.now_s()),
        )

    def _dependent(self, row: QueueRow, description: Description) -> Job:
        """Return a job that waits for another one."""
        bound, spec = self.choices.bound_types(row), self._spec(row, description)
        return Job(
            spec,
            allowed_nodes=self._allowed_nodes(row, spec.shapes, Phase.QUEUED),
            bound_type=GpuType(next(iter(bound))) if len(bound) == 1 else None,
        )

    def _is_set_apart(self, row: QueueRow) -> bool:
        """Return whether the job is scrontab's, or has no batch script and is not enrolled."""
        has_script = row.is_batch or self.enrolment.may_include(row)
        return not has_script or row.key in self._state.set_apart_by_detail

    def _pending_phase(
        self, row: QueueRow, gang: Gang | None, barred: Collection[str]
    ) -> Phase | None:
        """Return the phase of a pending job; `gang` are the GPUs that it is pinned to."""
        if self._is_for_later(row):
            return None
        is_barred = gang is not None and any(k.lower() in barred for k in gang.gpus_by_type)
        timed_out = gang is not None and (is_barred or self._has_pin_timed_out(row, gang))
        # A foreign requeue delays a job by Slurm's two minutes.
        is_delayed = row.reason == "BeginTime" and row.started_s > self.now_s() + _SOON_S
        is_starting = gang is not None and not (
            row.is_held_by_user or is_delayed or timed_out or self.limits.denies(row)
        )
        if (gang or row.request.is_cleared) and not is_starting and not row.is_held_by_user:
            self._now.pin_timed_out.add(row.key)
        return Phase.STARTING if is_starting else Phase.QUEUED

    def _started_phase(
        self, row: QueueRow, gang: Gang | None, report: _Report, spec: JobSpec
    ) -> Phase | None:
        """Return the phase of a job that Slurm has started on the GPUs `gang`."""
        # A job with whole nodes (--exclusive, or an exclusive partition) is never migrated.
        if gang is None or not spec.has_size_of(gang):
            return None
        if row.state == "COMPLETING":
            return Phase.STOPPING
        if row.state not in _RUN_STATES:
            return None
        # Until it reports, its batch script may have no USR1 handler yet: USR1 would end it.
        has_reported = report is not None and report.restart == row.restarts
        is_signalled = not loss_bound.bound_s(row)
        is_early = is_signalled and 0 <= self.now_s() - row.started_s < self.settings.grace_s
        return Phase.STARTING if is_early and not has_reported else Phase.RUNNING

    def _check_steered(self, row: QueueRow) -> None:
        """Let a job avoid the nodes that it was to start on and has not in time."""
        nodes, cluster, used = row.requested_nodes, self._state.cluster, self._state.in_use
        self._avoid_reserved(row, nodes)
        known = (cluster.by_name[name] for name in nodes if name in cluster.by_name)
        are_free = any(count > used[slot] for node in known for slot, count in node.slots)
        if not (are_free and self.ledger[row.key].pins(nodes)):
            self.pins.forget(row.key)
        elif row.key in self.pins:
            self.pins.is_stuck(row.key, nodes, self.now_s())

    def _is_for_later(self, row: QueueRow) -> bool:
        """Return whether a pending job waits for another job or for a begin time of its user."""
        # hadard changes the begin time that a requeue sets, and that of a request which it clears.
        may_be_own = row.restarts == 0 and not row.request.is_cleared
        begins_later = may_be_own and row.started_s > self.now_s()
        return bool(row.dependency) or (row.is_held_by_user and begins_later)

    def _has_pin_timed_out(self, row: QueueRow, gang: Gang) -> bool:
        """Return whether a pending job cannot start, or has not in time, on its pinned nodes."""
        cluster, used, now_s = self._state.cluster, self._state.in_use, self.now_s()
        if any(not cluster.by_name[name].is_schedulable for name in gang.gpus_by_node):
            return True
        if any(cluster.capacity.get(slot, 0) - used[slot] < count for slot, count in gang.slots):
            return True  # foreign jobs have taken the GPUs
        if row.reason == "BadConstraints":  # Slurm then holds it by a priority of 0
            self.pins.avoid(row.key, gang.gpus_by_node, now_s)
        self._avoid_reserved(row, gang.gpus_by_node)
        return self.pins.is_stuck(row.key, gang.gpus_by_node, now_s)

    def _avoid_reserved(self, row: QueueRow, nodes: Iterable[NodeName]) -> None:
        """Let a job avoid all reserved nodes if it would not end before one of its own is."""
        if row.reservation or not _may_meet_reservation(row):
            return
        if self._reserved is None:
            self._reserved = self.slurm.reserved_nodes()
        if not self._reserved.isdisjoint(nodes):
            self.pins.avoid(row.key, self._reserved, self.now_s())

    def _allowed_nodes(
        self, row: QueueRow, shapes: Sequence[Shape], phase: Phase
    ) -> frozenset[NodeName] | None:
        """Return the nodes that a job may get; None for all nodes."""
        allowed = self.choices.nodes_of(row, shapes)
        avoided = self.pins.avoided(row.key, self.now_s())
        if phase is Phase.QUEUED and row.restarts > self.ledger[row.key].requeued:
            # A requeue counts as a submission.
            is_late = self.now_s() - row.submitted_s < _LATE_END_S
            avoided |= frozenset(row.requested_nodes if is_late else ())
        if not avoided:
            return allowed
        if allowed is None:
            allowed = frozenset(node.node.name for node in self._state.nodes)
        return allowed - avoided

    def _pinned_gang(self, row: QueueRow) -> Gang | None:
        """Return the gang that hadard has pinned a pending job to, read back from its request."""
        if len(row.gpus_per_node) != 1 or not row.requested_nodes or row.gpus_otherwise:
            return None
        ((gpu_type, count),) = row.gpus_per_node
        counts: dict[tuple[str, str], int] = {}
        for name in row.requested_nodes:
            node = self._state.cluster.by_name.get(name)
            if node is None or (gpu_type == UNTYPED and not node.has_one_type):
                return None
            counts[name, node.gpus[0][0] if gpu_type == UNTYPED else gpu_type] = count
        return Gang.of(counts)


def _may_meet_reservation(row: QueueRow) -> bool:
    """Return whether Slurm says of a pending job that its nodes are or will be reserved."""
    return row.state == "PENDING" and "reserved" in row.reason.lower()
