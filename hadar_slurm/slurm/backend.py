"""A real Slurm behind the loop's Backend: what is, what to do about it, and when to look again."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hadar_slurm.core.cluster import Cluster, GpuType, JobId, NodeName
from hadar_slurm.core.gang import Allocation, Gang
from hadar_slurm.core.job import Job, JobSpec, Phase, Progress
from hadar_slurm.core.snapshot import Ended, GangRules, Snapshot
from hadar_slurm.core.throughput import ThroughputTable
from hadar_slurm.engine.actions import Action, Outcome, Start, Status, Stop
from hadar_slurm.engine.backend import Wake
from hadar_slurm.errors import JobSpecError, SlurmError
from hadar_slurm.handoff import ReportError, read_report
from hadar_slurm.slurm import enforce
from hadar_slurm.slurm.fairshare import FairShares
from hadar_slurm.slurm.metadata import Description, decode, job_spec
from hadar_slurm.slurm.moves import Mover, must_name_type
from hadar_slurm.slurm.parse import FAILED_STATES, HOLDING_STATES, UNTYPED, QueueRow
from hadar_slurm.slurm.pins import Pins
from hadar_slurm.slurm.reading import Reading, read_all
from hadar_slurm.slurm.runner import Runner

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How hadard deals with one Slurm; times in seconds.

    `partitions` of None means all. `grace_s` is how long a job may take to save before it is
    requeued all the same, `pin_timeout_s` how long a released job may wait on its nodes before it
    is planned anew, `poll_s` the time between two looks at the queue while waiting.
    """

    spool: Path
    partitions: frozenset[str] | None = None
    restart_cost_s: float = 30.0
    grace_s: float = 60.0
    pin_timeout_s: float = 60.0
    poll_s: float = 5.0


@dataclass
class SlurmBackend:
    """Slurm through its own command-line tools (Slurm 22.05 on).

    It remembers nothing that a restart could not lose: what became of pins, which jobs'
    descriptions it has complained of, and what the last plan was made for. `on_wait` is
    called at least every `poll_s` seconds while waiting or applying, for the heartbeat;
    `is_stopping` tells that the daemon was asked to end.
    """

    runner: Runner
    table: ThroughputTable
    settings: Settings
    on_wait: Callable[[], None] = lambda: None
    is_stopping: Callable[[], bool] = lambda: False
    now_s: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep
    _pins: Pins = field(init=False)
    _shares: FairShares = field(init=False)
    _faulty: set[JobId] = field(default_factory=set)
    _planned_for: frozenset[tuple[str, str]] = frozenset()
    _version: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        self._pins = Pins(self.settings.pin_timeout_s)
        self._shares = FairShares(self.runner)

    @property
    def version(self) -> tuple[int, int]:
        """Return Slurm's version, such as (22, 5)."""
        if self._version is None:
            self._version = enforce.parse_version(self.runner.run(["scontrol", "--version"]))
        return self._version

    def observe(self) -> Snapshot:
        """Return what Slurm shows now."""
        reading = read_all(self.runner)
        cluster = reading.cluster
        jobs: list[Job] = []
        ended: list[Ended] = []
        occupied = reading.in_use
        for row in reading.queue.values():
            description = self._description(row)
            if description is None:
                continue
            if row.state in HOLDING_STATES or row.state == "PENDING":
                job = self._job(row, description, reading, cluster)
                if job is not None:
                    jobs.append(job)
                    if row.key in reading.gangs:
                        occupied.subtract(dict(reading.gangs[row.key].slots))
            else:
                ended.append(Ended(row.key, _final_phase(row.state), row.ended_s))
        starting = {job.job_id for job in jobs if job.phase is Phase.STARTING}
        queued = {job.job_id for job in jobs if job.phase is Phase.QUEUED}
        self._pins.keep(starting=starting, pending=starting | queued)
        self._planned_for = self._signature(reading)
        return Snapshot.of(
            now_s=self.now_s(),
            cluster=cluster,
            jobs=jobs,
            occupied=occupied,
            rules=GangRules(naming_binds=enforce.keeps_types(self.version)),
            ended=ended,
        )

    def apply(self, actions: Sequence[Action]) -> Sequence[Outcome]:
        """Stop and start jobs; a job that moves is started only once it has stopped."""
        mover = Mover(
            self.runner,
            self.version,
            self.settings.spool,
            self.settings.grace_s,
            self._pause,
            self.now_s,
        )
        outcomes: dict[Action, Outcome] = {
            **mover.stop([action for action in actions if isinstance(action, Stop)]),
            **mover.start([action for action in actions if isinstance(action, Start)]),
        }
        now_s = self.now_s()
        for action, outcome in outcomes.items():
            if isinstance(action, Start) and outcome.status is Status.DONE:
                self._pins.begin(action.job_id, now_s)
        return [outcomes.get(action, Outcome(action, Status.DONE)) for action in actions]

    def wait(self, until_s: float) -> Wake:
        """Sleep until the round ends, or until what was planned for is no longer what is.

        That is when a job comes or goes, a node opens or closes, or a job has waited on its pin
        for too long.
        """
        pins_end_s = self._pins.next_timeout_s()
        while not self.is_stopping():
            now_s = self.now_s()
            if now_s >= until_s:
                return Wake.ROUND_END
            if now_s >= pins_end_s:
                return Wake.CHANGE
            try:
                if self._signature(read_all(self.runner)) != self._planned_for:
                    return Wake.CHANGE
            except SlurmError as error:
                log.warning("cannot look at Slurm: %s", error)
            self._pause(min(until_s - now_s, self.settings.poll_s))
        return Wake.STOP

    def describe(self, action: Action) -> list[list[str]]:
        """Return the commands that an action comes to when nothing gets in its way."""
        if isinstance(action, Stop):
            return [enforce.ask_to_save(action.job_id), enforce.requeue_held(action.job_id)]
        if isinstance(action, Start):
            return [
                enforce.clear_request(action.job_id),
                enforce.set_request(
                    action.job_id,
                    action.gang,
                    self.version,
                    names_type=self._names_type(action),
                    is_restart=False,
                ),
                enforce.release(action.job_id),
            ]
        return []

    def _names_type(self, action: Start) -> bool:
        reading = read_all(self.runner)
        row = reading.queue.get(action.job_id)
        return row is not None and must_name_type(row, action.gang, reading.cluster, self.version)

    def _pause(self, seconds: float) -> None:
        self.on_wait()
        self.sleep(seconds)

    def _signature(self, reading: Reading) -> frozenset[tuple[str, str]]:
        """Return what a plan depends on: which jobs are there, which nodes take work."""
        marks = set()
        for row in reading.queue.values():
            if row.state == "COMPLETING":
                marks.add((str(row.key), "ending"))
            elif row.state in HOLDING_STATES or (
                row.state == "PENDING" and self._description(row) is not None
            ):
                # That a job starts is no news.
                marks.add((str(row.key), "later" if self._is_for_later(row) else "there"))
        marks |= {
            (row.node.name, "open" if row.node.is_schedulable else "closed")
            for row in reading.nodes
        }
        return frozenset(marks)

    def _description(self, row: QueueRow) -> Description | None:
        """Return what hadar-sbatch said of the job; None for a job that is not ours to place."""
        partitions = self.settings.partitions
        if partitions is not None and row.partition not in partitions:
            return None
        try:
            return decode(row.comment)
        except JobSpecError as error:
            if row.key not in self._faulty:
                self._faulty.add(row.key)
                log.warning("job %s is left to Slurm: %s", row.key, error)
            return None

    def _job(
        self, row: QueueRow, description: Description, reading: Reading, cluster: Cluster
    ) -> Job | None:
        """Return the job as policies see it, or None where Slurm alone decides about it."""
        gang = reading.gangs.get(row.key)
        bound = row.named_types if enforce.keeps_types(self.version) else frozenset()
        if len(bound) > 1:
            return None
        spec = job_spec(
            row.key,
            description,
            self.table,
            submitted_s=row.submitted_s,
            restart_cost_s=self.settings.restart_cost_s,
            user=row.user,
        )
        phase: Phase
        if row.state == "PENDING":
            gang = self._pinned_gang(row, cluster)
            # Neither held nor pinned: released by its user, or submitted when no daemon was alive.
            if self._is_for_later(row) or not (row.is_held_by_user or gang):
                return None
            is_stuck = gang is not None and self._is_stuck(row, gang, reading)
            is_waiting = row.is_held_by_user or gang is None or is_stuck
            phase = Phase.QUEUED if is_waiting else Phase.STARTING
        elif gang is None or row.state not in ("RUNNING", "CONFIGURING", "COMPLETING"):
            return None
        elif gang.num_gpus != spec.num_gpus:
            # Slurm gave it whole nodes (--exclusive, or a partition that is): not ours to move.
            return None
        else:
            phase = Phase.STOPPING if row.state == "COMPLETING" else Phase.RUNNING
        held = Allocation.rigid(gang) if gang and phase is not Phase.QUEUED else Allocation()
        return Job(
            spec,
            phase,
            self._progress(row, spec, gang),
            held,
            self._allowed_nodes(row, reading),
            GpuType(next(iter(bound))) if bound else None,
            self._shares.at(self.now_s()).get(row.user),
        )

    def _is_for_later(self, row: QueueRow) -> bool:
        """Return whether a pending job waits for another job or for a time of its user's choice.

        The begin time that a requeue brings is ours to change.
        """
        begins_later = row.restarts == 0 and row.started_s > self.now_s()
        return bool(row.dependency) or (row.is_held_by_user and begins_later)

    def _is_stuck(self, row: QueueRow, gang: Gang, reading: Reading) -> bool:
        """Return whether a job waits in vain on the nodes that it is pinned to."""
        nodes = reading.cluster.by_name
        if any(not nodes[name].is_schedulable for name in gang.gpus_by_node):
            return True
        capacity, used = reading.cluster.capacity, reading.in_use
        if any(capacity.get(slot, 0) - used[slot] < count for slot, count in gang.slots):
            return True  # others were quicker; it would wait for them to end
        now_s = self.now_s()
        if row.reason == "BadConstraints":  # Slurm then holds it by a priority of 0
            self._pins.avoid(row.key, gang.gpus_by_node, now_s)
        return self._pins.is_stuck(row.key, gang.gpus_by_node, now_s)

    def _allowed_nodes(self, row: QueueRow, reading: Reading) -> frozenset[NodeName] | None:
        """Return the nodes that a job may be given, or None where those are all."""
        allowed = allowed_nodes(row, reading)
        avoided = self._pins.avoided(row.key, self.now_s())
        if not avoided:
            return allowed
        return (allowed or frozenset(r.node.name for r in reading.nodes)) - avoided

    def _pinned_gang(self, row: QueueRow, cluster: Cluster) -> Gang | None:
        """Return the gang that a pending job is pinned to by us, read back from its request."""
        if len(row.gpus_per_node) != 1 or not row.requested_nodes or row.gpus_otherwise:
            return None
        ((kind, count),) = row.gpus_per_node
        nodes = cluster.by_name
        counts: Counter[tuple[str, str]] = Counter()
        for name in row.requested_nodes:
            node = nodes.get(name)
            if node is None:
                return None
            if kind != UNTYPED:
                counts[name, kind] = count
            elif node.has_one_type:
                counts[name, node.gpus[0][0]] = count
            else:
                return None
        return Gang.of(counts)

    def _progress(self, row: QueueRow, spec: JobSpec, gang: Gang | None) -> Progress:
        """Return the steps that a job has reported, and the GPU-seconds that they must have taken.

        Slurm forgets how long a requeued job ran before. What was trained is known: its time is
        taken as that on the type where the job is now, or else on its fastest.
        """
        try:
            report = read_report(self.settings.spool, row.raw_id, owner_uid=row.user_id)
        except ReportError as error:
            log.warning("job %s: its report is ignored: %s", row.key, error)
            report = None
        if report is None:
            return Progress(restarts=row.restarts)
        steps = float(min(report.steps_done, spec.total_steps))
        kinds = tuple(gang.gpus_by_type) if gang else spec.rates.gpu_types
        kind = max(kinds, key=lambda kind: spec.rates.on(kind, spec.num_gpus), default="")
        rate = spec.rates.on(kind, spec.num_gpus)
        service = ((GpuType(kind), spec.num_gpus * steps / rate),) if steps and rate > 0 else ()
        return Progress(steps, row.restarts, service)


def allowed_nodes(row: QueueRow, reading: Reading) -> frozenset[NodeName] | None:
    """Return the nodes of the job's partitions, or None where those are all."""
    partitions = set(row.partition.split(","))
    names = {r.node.name for r in reading.nodes if partitions.intersection(r.partitions)}
    return None if len(names) == len(reading.nodes) else frozenset(names)


def _final_phase(state: str) -> Phase:
    if state == "COMPLETED":
        return Phase.DONE
    return Phase.FAILED if state in FAILED_STATES else Phase.CANCELLED
