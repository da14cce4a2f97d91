"""What a policy gets to see of a Slurm: which jobs are ours, what they hold, what must go back."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hadar_slurm.core.cluster import Cluster, GpuType, JobId, NodeName
from hadar_slurm.core.gang import Allocation, Gang
from hadar_slurm.core.job import Job, JobSpec, Phase, Progress, Shape, uniform_shapes
from hadar_slurm.core.snapshot import Ended, GangRules, Snapshot
from hadar_slurm.core.throughput import Throughputs
from hadar_slurm.core.throughput_model import Place
from hadar_slurm.errors import JobSpecError
from hadar_slurm.handoff import ProgressReport, ReportError, SquattedError, read_report
from hadar_slurm.jobspec.description import MAX_RATE, MIN_RATE, Description, decode, job_spec
from hadar_slurm.jobspec.estimator import Estimator, workload_of
from hadar_slurm.slurm.client.fairshare import FairShares
from hadar_slurm.slurm.client.parse import HOLDING_STATES, NOTHING, UNTYPED, NodeRow, QueueRow
from hadar_slurm.slurm.client.protocol import SlurmAdapter
from hadar_slurm.slurm.client.state import SlurmState
from hadar_slurm.slurm.control.checkpoint_signal import is_ended_by_us, runs_again, why_not_migrated
from hadar_slurm.slurm.control.claim import (
    Disposition,
    bears_of_us,
    has_landed,
    is_held_by_us,
    is_pinned_by_us,
    stance,
)
from hadar_slurm.slurm.control.ledger import Claim, Ledger
from hadar_slurm.slurm.control.lost_releases import as_seen
from hadar_slurm.slurm.control.modes import Mode
from hadar_slurm.slurm.control.pins import Pins
from hadar_slurm.slurm.control.restore import Waiting, described_request
from hadar_slurm.slurm.observe.array_jobs import Fork, Forks, Task, final_phase, parent_of
from hadar_slurm.slurm.observe.limits import Limits
from hadar_slurm.slurm.observe.parameter_averages import Averages
from hadar_slurm.slurm.settings import BackendSettings

log = logging.getLogger(__name__)

# A begin time within so many seconds is the one that we have given a job.
_SOON_S = 10.0
# For how many seconds after a requeue by others nodes may be told to end the run before it.
_LATE_END_S = 15.0
_RUN_STATES = ("RUNNING", "CONFIGURING", "SIGNALING")


@dataclass(frozen=True, slots=True)
class Observation:
    """One look: what policies plan from, and what is to be put right beside their plan.

    `to_give_back` wait under a hold or pin of ours and are not ours to place; `stuck` wait in vain
    on the nodes they are pinned to; `alive` are all jobs of ours that have not ended. `found` is
    what the ledger does not say yet, or no longer says rightly. All of these are of jobs as Slurm
    has them; in the snapshot the tasks of a forked job are one, which `forks` takes apart again.
    `deaf` are running copies that must not be signalled, and why; of other jobs no plan asks that.
    `ended_by_us` have died of our signal and are to be requeued; `untold` run again after that, and
    their output is to say so.
    """

    snapshot: Snapshot
    to_give_back: Mapping[JobId, Waiting]
    stuck: frozenset[JobId]
    alive: frozenset[JobId]
    found: Mapping[JobId, Claim]
    forks: Forks
    deaf: Mapping[JobId, str]
    landed: frozenset[JobId]
    ended_by_us: frozenset[JobId] = frozenset()
    untold: Mapping[JobId, QueueRow] = field(default_factory=dict)


@dataclass
class SnapshotBuilder:
    """Turns what Slurm shows into what policies see; it remembers what it has complained of."""

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
    # Reports that cannot come, because another user has made their directory.
    squatted: set[str] = field(default_factory=set)
    # Jobs that our signal has ended and that Slurm would not requeue.
    lost: set[JobId] = field(default_factory=set)
    limits: Limits = field(init=False)
    _faulty: set[JobId] = field(default_factory=set)
    _runnable: dict[object, bool] = field(default_factory=dict)
    _stuck: set[JobId] = field(default_factory=set)
    _forks: Mapping[JobId, Fork] = field(default_factory=dict)
    _heard: dict[JobId, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.limits = Limits.of(self.ledger, self.settings.pin_timeout_s)

    def look(self, reading: SlurmState) -> Observation:
        """Return what there is to plan, and to put right."""
        jobs: list[Job] = []
        copies: dict[JobId, list[Task]] = {}
        ended: list[Ended] = []
        to_give_back: dict[JobId, Waiting] = {}
        alive: set[JobId] = set()
        landed: set[JobId] = set()
        ended_by_us: set[JobId] = set()
        untold: dict[JobId, QueueRow] = {}
        found: dict[JobId, Claim] = {}
        occupied = reading.in_use
        self._stuck, self._runnable, self.squatted = set(), {}, set()
        self.limits.learn(reading, self.now_s())
        for row in reading.queue.values():
            description = self._description(row)
            has_ended = not row.is_live
            if has_ended and self._is_to_return(row):
                ended_by_us.add(row.key)
                alive.add(row.key)
                continue
            if description is None and (has_ended or row.key not in self.ledger):
                continue
            parent = parent_of(row, description) if description is not None else None
            if description is not None and has_ended:
                if parent is not None:
                    task = Task(row, description, None, self._report(row))
                    copies.setdefault(parent, []).append(task)
                else:
                    ended.append(Ended(row.key, final_phase(row.state), row.ended_s))
                continue
            alive.add(row.key)
            if runs_again(row, self.ledger[row.key], self.now_s()):
                untold[row.key] = row
            if has_landed(row, self.ledger[row.key]):
                landed.add(row.key)
            if description is None:
                if bears_of_us(row, self.ledger, was_submitted_held=False):
                    to_give_back[row.key] = (row, None)
                continue
            entry = self._entry(row, description)
            # The mark of a submission says nothing of holds after the first.
            is_new = description.is_held and row.key not in self.ledger
            if entry != self.ledger[row.key] or is_new:
                found[row.key] = entry
            means = self._stance(row, description, reading)
            if means is Disposition.RESTORE:
                to_give_back[row.key] = (row, description)
            is_ours = means is Disposition.MANAGE
            report = self._report(row) if is_ours or parent is not None else None
            job = self._job(row, description, reading, report) if is_ours else None
            if parent is not None:
                task = Task(row, description, job, report)
                copies.setdefault(parent, []).append(task)
            elif job is not None:
                jobs.append(job)
        if self.mode is Mode.ENFORCE:
            jobs, copies = self.limits.marked(jobs, copies, reading.queue, self.now_s())
        # Slurm forgets how a copy has ended before the last one has.
        forks = Forks(
            {
                parent: Fork.of(parent, tasks, self._forks.get(parent))
                for parent, tasks in copies.items()
            }
        )
        told = {parent: fork.averages for parent, fork in forks.by_parent.items()}
        self.averages.see(told, self.now_s())
        self._forks = forks.by_parent
        self._heard = {key: time_s for key, time_s in self._heard.items() if key in alive}
        placeable = [*jobs, *forks.task_jobs]
        for job in placeable:
            if job.job_id in reading.gangs:
                occupied.subtract(dict(reading.gangs[job.job_id].slots))
        to_give_back |= {
            task.row.key: (task.row, task.description)
            for task in forks.not_needed
            if bears_of_us(task.row, self.ledger, was_submitted_held=task.description.is_held)
        }
        waiting = {key for key, row in reading.queue.items() if row.state == "PENDING"}
        starts = {job.job_id for job in placeable if job.phase is Phase.STARTING}
        queued = {job.job_id for job in placeable if job.phase is Phase.QUEUED}
        starting = starts & waiting
        self.pins.keep(starting=starting, pending=starting | queued)
        snapshot = Snapshot.of(
            now_s=self.now_s(),
            cluster=reading.cluster,
            jobs=[*jobs, *forks.jobs],
            occupied=occupied,
            rules=GangRules(naming_binds=self.slurm.abilities.keeps_types),
            ended=[*ended, *forks.ended],
        )
        return Observation(
            snapshot,
            to_give_back,
            frozenset(self._stuck - to_give_back.keys()),
            frozenset(alive),
            found,
            forks,
            {
                job.job_id: job.remarks[-1] if job.remarks else "it is only just starting"
                for job in forks.task_jobs
                if job.job_id not in waiting
                and (job.phase is Phase.STARTING or not job.spec.can_checkpoint)
            },
            frozenset(landed),
            frozenset(ended_by_us),
            untold,
        )

    def _is_to_return(self, row: QueueRow) -> bool:
        """Return whether a job that has ended died of our signal, and is to be requeued."""
        return (
            self.mode is Mode.ENFORCE
            and not self.is_off()
            and row.key not in self.lost
            and is_ended_by_us(row, self.ledger[row.key])
        )

    def _entry(self, row: QueueRow, description: Description) -> Claim:
        """Return what the ledger should say of a job, as far as Slurm shows it."""
        entry = self.ledger[row.key]
        if row.key in self.ledger:
            # A hold after its owner has released it is the owner's.
            return as_seen(entry, row, self.ledger.now_s())
        is_held = is_held_by_us(row, self.ledger, was_submitted_held=description.is_held)
        if is_pinned_by_us(row, self.ledger):
            own = described_request(description, self.slurm)
            return Claim(is_held=is_held, before=own, pinned=row.requested_nodes)
        return Claim(is_held=is_held)

    def signature(
        self, queue: Mapping[JobId, QueueRow], nodes: Sequence[NodeRow]
    ) -> frozenset[tuple[str, str]]:
        """Return what a plan depends on: which jobs are there, which nodes take work."""
        marks = {("hadard", "off")} if self.is_off() else set()
        for row in queue.values():
            if row.state == "COMPLETING":
                marks.add((str(row.key), "ending"))
            elif row.state in HOLDING_STATES or (
                row.state == "PENDING" and self._description(row) is not None
            ):
                # That a job starts is no news.
                limited = "limited" if self.limits.denies(row) else "there"
                marks.add((str(row.key), "later" if self._is_for_later(row) else limited))
        marks |= {(row.node.name, "open" if row.node.is_schedulable else "closed") for row in nodes}
        return frozenset(marks)

    def _stance(self, row: QueueRow, description: Description, reading: SlurmState) -> Disposition:
        mode = Mode.OBSERVE if self.is_off() else self.settings.modes.of(row.partition)
        return stance(
            row,
            description,
            self.ledger,
            mode=mode,
            plans_for=self.mode,
            is_excluding=row.key in reading.set_apart,
            can_run=self._can_run(row, description, reading),
        )

    def _can_run(self, row: QueueRow, description: Description, reading: SlurmState) -> bool:
        """Return whether some set of nodes could ever hold the job, at a speed that is known.

        Nodes that take no work now count too: they may come back.
        """
        shapes = self._shapes(row, description)
        bound = row.named_types if self.slurm.abilities.keeps_types else frozenset()
        # Thousands of waiting jobs ask the same few questions.
        rates = self._rates(row, description, reading)
        key = (rates, description.gpus, shapes, row.partition, bound)
        if key not in self._runnable:
            most = self._most_gpus(row, rates, description.gpus, bound, reading)
            self._runnable[key] = any(
                sum(count >= shape.gpus_per_node for count in most) >= shape.nodes
                for shape in shapes
            )
        return self._runnable[key]

    def _rates(self, row: QueueRow, description: Description, reading: SlurmState) -> Throughputs:
        """Return what is known or believed of a job's speed on this cluster's GPU types."""
        return self.estimator.rates(description, row.user, reading.cluster.gpus_by_type)

    def _most_gpus(
        self,
        row: QueueRow,
        rates: Throughputs,
        gpus: int,
        bound: frozenset[str],
        reading: SlurmState,
    ) -> list[int]:
        """Return the GPUs of one type that each node could give a job bound to some types."""
        if len(bound) > 1:
            return []
        allowed = reading.nodes_of(row.partition)
        return [
            max(
                (
                    count
                    for gpu_type, count in node.gpus
                    if rates.on(gpu_type, gpus) > 0 and bound <= {gpu_type}
                ),
                default=0,
            )
            for node in reading.cluster.nodes
            if allowed is None or node.name in allowed
        ]

    def _shapes(self, row: QueueRow, description: Description) -> tuple[Shape, ...]:
        """Return the layouts that a job may be given this way."""
        one = description.shape
        shapes = (one,) if one else uniform_shapes(description.gpus)
        if self.slurm.abilities.spreads:
            return shapes
        return tuple(shape for shape in shapes if str(shape.nodes) == row.request.num_nodes)

    def _description(self, row: QueueRow) -> Description | None:
        """Return what hadar-sbatch said of the job; None for a job that is not ours to place."""
        try:
            return decode(row.comment)
        except JobSpecError as error:
            if row.key not in self._faulty:
                self._faulty.add(row.key)
                log.warning("job %s is left to Slurm: %s", row.key, error)
            return None

    def _job(
        self,
        row: QueueRow,
        description: Description,
        reading: SlurmState,
        report: ProgressReport | None,
    ) -> Job | None:
        """Return the job as policies see it, or None where Slurm alone decides about it."""
        gang = reading.gangs.get(row.key)
        self._measure(row, description, gang, report)
        abilities = self.slurm.abilities
        bound = row.named_types if abilities.keeps_types else frozenset()
        if len(bound) > 1:
            return None
        rates = self._rates(row, description, reading)
        spec = job_spec(
            row.key,
            description,
            rates,
            total_steps=self.estimator.total_steps(description, rates),
            submitted_s=row.submitted_s,
            restart_cost_s=self.settings.restart_cost_s,
            user=row.user,
            shapes=self._shapes(row, description),
        )
        phase: Phase
        if row.state == "PENDING":
            if self._is_for_later(row):
                return None
            is_ours = self.mode is Mode.ENFORCE
            gang = self._pinned_gang(row, reading.cluster) if is_ours else None
            is_stuck = gang is not None and self._is_stuck(row, gang, reading)
            is_waiting = (
                row.is_held_by_user or self._was_put_off(row) or is_stuck or self.limits.denies(row)
            )
            is_starting = gang is not None and not is_waiting
            if (gang or row.request.is_cleared) and not is_starting and not row.is_held_by_user:
                self._stuck.add(row.key)
            phase = Phase.STARTING if is_starting else Phase.QUEUED
        elif gang is None or row.state not in (*_RUN_STATES, "COMPLETING"):
            return None
        elif gang.num_gpus != spec.num_gpus:
            # Slurm gave it whole nodes (--exclusive, or a partition that is): not ours to move.
            return None
        elif row.state == "COMPLETING":
            phase = Phase.STOPPING
        else:
            phase = Phase.STARTING if self._may_miss_signals(row, report) else Phase.RUNNING
        why_not = self._why_not_migrated(row, report) if spec.can_checkpoint else ""
        if why_not and phase is not Phase.STARTING:
            spec = replace(spec, can_checkpoint=False)
        held = Allocation.rigid(gang) if gang and phase is not Phase.QUEUED else Allocation()
        return Job(
            spec,
            phase,
            self._progress(row, description, report, spec, gang),
            held,
            self._allowed_nodes(row, reading, phase),
            GpuType(next(iter(bound))) if bound else None,
            self.shares.at(self.now_s()).get(row.user),
            row.partition,
            _remarks(row, phase, why_not),
            phase is Phase.STARTING and row.state == "PENDING",
        )

    def _why_not_migrated(self, row: QueueRow, report: ProgressReport | None) -> str:
        """Return why a job must not be sent USR1, as far as it is known while it waits."""
        entry = self.ledger[row.key]
        is_told = row.state in _RUN_STATES or entry.ended_run > 0
        return why_not_migrated(row, report, entry) if is_told else ""

    def _measure(
        self,
        row: QueueRow,
        description: Description,
        gang: Gang | None,
        report: ProgressReport | None,
    ) -> None:
        """Remember how fast a job trains where it is, for itself and for others like it."""
        place = Place.of(gang) if gang is not None else None
        if description.rates or report is None or place is None:
            return
        is_of_now = row.state == "RUNNING" and report.restart == row.restarts
        if not is_of_now or not MIN_RATE <= report.steps_per_s <= MAX_RATE:
            return
        if self._heard.get(row.key) == report.time_s:
            return
        self._heard[row.key] = report.time_s
        self.estimator.speeds.measure(workload_of(description, row.user), place, report.steps_per_s)

    def _progress(
        self,
        row: QueueRow,
        description: Description,
        report: ProgressReport | None,
        spec: JobSpec,
        gang: Gang | None,
    ) -> Progress:
        """Return how far a job has come: by its report, or else by how long it has been running.

        The latter only where its steps are a measure of time, since a job that was moved and does
        not report begins anew.
        """
        if report is not None and self.estimator.counts_real_steps(description, row.user):
            steps = float(min(report.steps_done, spec.total_steps))
        elif not description.steps and gang is not None and row.state == "RUNNING":
            ran_s = max(0.0, self.now_s() - row.started_s)
            steps = min(ran_s * gang.rate(spec.rates), float(spec.total_steps))
        else:
            steps = 0.0
        return Progress(steps, row.restarts, _service(spec, steps, gang))

    def _is_for_later(self, row: QueueRow) -> bool:
        """Return whether a pending job waits for another job or for a time of its user's choice.

        The begin time that a requeue brings is ours to change.
        """
        begins_later = row.restarts == 0 and row.started_s > self.now_s()
        return bool(row.dependency) or (row.is_held_by_user and begins_later)

    def _was_put_off(self, row: QueueRow) -> bool:
        """Return whether a pinned job was requeued by others, and begins only in two minutes."""
        return row.reason == "BeginTime" and row.started_s > self.now_s() + _SOON_S

    def _is_end_under_way(self, row: QueueRow) -> bool:
        """Return whether Slurm may still send the end of a job's last run to its nodes.

        When a node fails, Slurm requeues the job and tries for 10 s to reach the node. A run that
        starts there meanwhile is killed in place of the one before (seen with 22.05.8).
        """
        was_requeued_by_others = row.restarts > self.ledger[row.key].requeued
        # A requeue counts as a submission.
        return was_requeued_by_others and self.now_s() - row.submitted_s < _LATE_END_S

    def _is_stuck(self, row: QueueRow, gang: Gang, reading: SlurmState) -> bool:
        """Return whether a job waits in vain on the nodes that it is pinned to."""
        nodes = reading.cluster.by_name
        if any(not nodes[name].is_schedulable for name in gang.gpus_by_node):
            return True
        capacity, used = reading.cluster.capacity, reading.in_use
        if any(capacity.get(slot, 0) - used[slot] < count for slot, count in gang.slots):
            return True  # others were quicker; it would wait for them to end
        now_s = self.now_s()
        if row.reason == "BadConstraints":  # Slurm then holds it by a priority of 0
            self.pins.avoid(row.key, gang.gpus_by_node, now_s)
        return self.pins.is_stuck(row.key, gang.gpus_by_node, now_s)

    def _allowed_nodes(
        self, row: QueueRow, reading: SlurmState, phase: Phase
    ) -> frozenset[NodeName] | None:
        """Return the nodes that a job may be given, or None where those are all."""
        allowed = reading.nodes_of(row.partition)
        avoided = self.pins.avoided(row.key, self.now_s())
        if phase is Phase.QUEUED and self._is_end_under_way(row):
            avoided |= frozenset(row.requested_nodes)
        if not avoided:
            return allowed
        return (allowed or frozenset(r.node.name for r in reading.nodes)) - avoided

    def _pinned_gang(self, row: QueueRow, cluster: Cluster) -> Gang | None:
        """Return the gang that a pending job is pinned to by us, read back from its request."""
        if len(row.gpus_per_node) != 1 or not row.requested_nodes or row.gpus_otherwise:
            return None
        ((gpu_type, count),) = row.gpus_per_node
        nodes = cluster.by_name
        counts: Counter[tuple[str, str]] = Counter()
        for name in row.requested_nodes:
            node = nodes.get(name)
            if node is None:
                return None
            if gpu_type != UNTYPED:
                counts[name, gpu_type] = count
            elif node.has_one_type:
                counts[name, node.gpus[0][0]] = count
            else:
                return None
        return Gang.of(counts)

    def _may_miss_signals(self, row: QueueRow, report: ProgressReport | None) -> bool:
        """Return whether a running job may not yet be able to heed a signal: USR1 would kill it.

        One that has reported since its start is; of others it is taken for granted after a while.
        """
        has_reported = report is not None and report.restart == row.restarts
        return not has_reported and 0 <= self.now_s() - row.started_s < self.settings.grace_s

    def _report(self, row: QueueRow) -> ProgressReport | None:
        if row.state == "PENDING" and row.restarts == 0:
            return None
        try:
            return read_report(self.settings.spool, row.raw_id, owner_uid=row.user_id)
        except SquattedError as error:
            self.squatted.add(str(error))
            return None
        except ReportError as error:
            log.warning("job %s: its report is ignored: %s", row.key, error)
            return None


def _remarks(row: QueueRow, phase: Phase, why_not: str) -> tuple[str, ...]:
    """Return what people should know of a job; `why_not` is why it is not migrated."""
    found = []
    if phase is Phase.STARTING and row.state == "PENDING":
        reason = f": {row.reason}" if row.reason not in NOTHING else ""
        found.append(f"pinned to {','.join(row.requested_nodes)}, pending in Slurm{reason}")
    return (*found, why_not) if why_not else tuple(found)


def _service(spec: JobSpec, steps: float, gang: Gang | None) -> tuple[tuple[GpuType, float], ...]:
    """Return the GPU-seconds that steps must have taken, by GPU type.

    Slurm forgets how long a requeued job ran before. What was trained is known: its time is taken
    as that on the type where the job is now, or else on its fastest.
    """
    gpu_types = tuple(gang.gpus_by_type) if gang else spec.rates.gpu_types
    gpu_type = max(
        gpu_types, key=lambda gpu_type: spec.rates.on(gpu_type, spec.num_gpus), default=""
    )
    rate = spec.rates.on(gpu_type, spec.num_gpus)
    return ((GpuType(gpu_type), spec.num_gpus * steps / rate),) if steps and rate > 0 else ()
