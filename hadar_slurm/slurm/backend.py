"""A real Slurm behind the loop's Backend: what is, what to do about it, and when to look again."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from hadar_slurm.core.cluster import Cluster, GpuType, JobId, NodeName
from hadar_slurm.core.gang import Allocation, Gang
from hadar_slurm.core.job import Job, JobSpec, Phase, Progress
from hadar_slurm.core.snapshot import Ended, GangRules, Snapshot
from hadar_slurm.core.throughput import ThroughputTable
from hadar_slurm.engine.actions import Action, Outcome, Start, Status, Stop
from hadar_slurm.engine.backend import Wake
from hadar_slurm.errors import JobSpecError, LedgerError, SlurmError
from hadar_slurm.handoff import ReportError, read_report
from hadar_slurm.slurm import enforce
from hadar_slurm.slurm.adapter import SlurmAdapter
from hadar_slurm.slurm.changes import Ask, AskToSave, Change, Clear, Prefer, Release, Requeue
from hadar_slurm.slurm.fairshare import FairShares
from hadar_slurm.slurm.giving_back import Waiting, give_back
from hadar_slurm.slurm.ledger import Ledger
from hadar_slurm.slurm.metadata import Description, decode, job_spec
from hadar_slurm.slurm.modes import Mode, Modes
from hadar_slurm.slurm.moves import Mover, must_name_type
from hadar_slurm.slurm.ownership import Stance, stance
from hadar_slurm.slurm.parse import FAILED_STATES, HOLDING_STATES, UNTYPED, NodeRow, QueueRow
from hadar_slurm.slurm.pins import Pins
from hadar_slurm.slurm.reading import Reading
from hadar_slurm.slurm.wakeup import WakeFile

log = logging.getLogger(__name__)

# How often the wake-up file is looked at, and for how long after it changed the queue is: a hook
# runs before its job is in the queue.
_GLANCE_S = 0.2
_EAGER_S = 2.0
# A begin time within so many seconds is the one that we have given it.
_SOON_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How hadard deals with one Slurm; times in seconds.

    `modes` says what may be done in which partition. `grace_s` is how long a job may take to save
    before it is requeued all the same, `pin_timeout_s` how long a released job may wait on its
    nodes before it is planned anew, `poll_s` the time between two looks at the queue while waiting.
    `wake_file`, where hooks of Slurm leave word of news, makes it look sooner.
    """

    spool: Path
    modes: Modes = field(default_factory=lambda: Modes(Mode.ENFORCE))
    restart_cost_s: float = 30.0
    grace_s: float = 60.0
    pin_timeout_s: float = 60.0
    poll_s: float = 5.0
    wake_file: Path | None = None


@dataclass
class SlurmBackend:
    """Slurm, reached through an adapter; it plans for the jobs of one mode.

    It remembers nothing that a restart could not lose: what became of pins, which jobs'
    descriptions it has complained of, and what the last plan was made for. What it has done to
    jobs is in the `ledger`. `on_wait` is called at least every `poll_s` seconds while waiting or
    applying, for the heartbeat; `is_stopping` tells that the daemon was asked to end, `is_off` that
    it was switched off and is to enforce nothing.
    """

    slurm: SlurmAdapter
    table: ThroughputTable
    settings: Settings
    ledger: Ledger
    mode: Mode = Mode.ENFORCE
    on_wait: Callable[[], None] = lambda: None
    is_stopping: Callable[[], bool] = lambda: False
    is_off: Callable[[], bool] = lambda: False
    now_s: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep
    _pins: Pins = field(init=False)
    _shares: FairShares = field(init=False)
    _wake: WakeFile = field(init=False)
    _faulty: set[JobId] = field(default_factory=set)
    _to_give_back: dict[JobId, Waiting] = field(default_factory=dict)
    _stuck: set[JobId] = field(default_factory=set)
    _alive: frozenset[JobId] = frozenset()
    _planned_for: frozenset[tuple[str, str]] = frozenset()
    _features: dict[str, frozenset[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._pins = Pins(self.settings.pin_timeout_s)
        self._shares = FairShares(self.slurm)
        self._wake = WakeFile(self.settings.wake_file)

    def observe(self) -> Snapshot:
        """Return what Slurm shows now."""
        reading = self.slurm.read()
        cluster = reading.cluster
        jobs: list[Job] = []
        ended: list[Ended] = []
        occupied = reading.in_use
        self._to_give_back = {}
        self._stuck = set()
        alive: set[JobId] = set()
        for row in reading.queue.values():
            description = self._description(row)
            if description is None:
                if row.is_held_by_user and self.ledger[row.key].is_held:
                    self._to_give_back[row.key] = (row, None)
                continue
            if row.state not in HOLDING_STATES and row.state != "PENDING":
                ended.append(Ended(row.key, _final_phase(row.state), row.ended_s))
                continue
            alive.add(row.key)
            means = self._stance(row, description, reading)
            if means is Stance.GIVE_BACK:
                self._to_give_back[row.key] = (row, description)
            job = self._job(row, description, reading) if means is Stance.PLACE else None
            if job is not None:
                jobs.append(job)
                if row.key in reading.gangs:
                    occupied.subtract(dict(reading.gangs[row.key].slots))
        starting = {job.job_id for job in jobs if job.phase is Phase.STARTING}
        queued = {job.job_id for job in jobs if job.phase is Phase.QUEUED}
        self._pins.keep(starting=starting, pending=starting | queued)
        self._alive = frozenset(alive)
        self._planned_for = self._signature(reading.queue, reading.nodes)
        self._features = _features_by_type(reading.nodes)
        return Snapshot.of(
            now_s=self.now_s(),
            cluster=cluster,
            jobs=jobs,
            occupied=occupied,
            rules=GangRules(naming_binds=self.slurm.abilities.keeps_types),
            ended=ended,
        )

    def apply(self, actions: Sequence[Action]) -> Sequence[Outcome]:
        """Stop and start jobs; a job that moves is started only once it has stopped.

        First, jobs that are held or pinned and no longer ours to place go back to Slurm. Under
        `observe` that is all; under `advise` Slurm is told which GPU type would be better.
        """
        self._give_back()
        if self.mode is Mode.OBSERVE:
            return [Outcome(action, Status.SKIPPED, self._told(action)) for action in actions]
        if self.mode is Mode.ADVISE:
            return self._advise(actions)
        mover = Mover(
            self.slurm,
            self.ledger,
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
                self._stuck.discard(action.job_id)
        mover.hold(self._stuck)
        self._forget_the_gone()
        return [outcomes.get(action, Outcome(action, Status.DONE)) for action in actions]

    def wait(self, until_s: float) -> Wake:
        """Sleep until the round ends, or until what was planned for is no longer what is.

        That is when a job comes or goes, a node opens or closes, or a job has waited on its pin
        for too long. The queue is looked at every `poll_s`, and at once when a hook says so.
        """
        pins_end_s = self._pins.next_timeout_s()
        eager_until_s = looks_s = 0.0
        while not self.is_stopping():
            now_s = self.now_s()
            if now_s >= until_s:
                return Wake.ROUND_END
            if now_s >= pins_end_s:
                return Wake.CHANGE
            if self._wake.has_news():
                eager_until_s, looks_s = now_s + _EAGER_S, now_s
            # A clock that was set back must not keep it from looking.
            if now_s >= looks_s or looks_s > now_s + self.settings.poll_s:
                try:
                    seen = self._signature(self.slurm.queue(), self.slurm.nodes())
                    if seen != self._planned_for:
                        return Wake.CHANGE
                except SlurmError as error:
                    log.warning("cannot look at Slurm: %s", error)
                is_eager = now_s < eager_until_s
                looks_s = self.now_s() + (_GLANCE_S if is_eager else self.settings.poll_s)
            glance_s = _GLANCE_S if self._wake.path else self.settings.poll_s
            self._pause(max(0.0, min(until_s - now_s, glance_s, looks_s - now_s)))
        return Wake.STOP

    def commands(self, action: Action) -> list[list[str]]:
        """Return the commands that an action comes to when nothing gets in its way."""
        job = action.job_id
        changes: list[Change] = []
        if isinstance(action, Stop):
            changes = [AskToSave(job), Requeue(job)]
        elif isinstance(action, Start):
            names_type = self._names_type(action)
            request = enforce.request_for(action.gang, self.slurm.version, names_type=names_type)
            changes = [Clear(job), Ask(job, request), Release(job)]
        return [enforce.command(change) for change in changes]

    def _told(self, action: Action) -> str:
        return "; ".join(map(" ".join, self.commands(action)))

    def _advise(self, actions: Sequence[Action]) -> list[Outcome]:
        """Have jobs prefer the GPU type that they are planned on, where nodes carry its name."""
        wishes: dict[Action, Prefer] = {}
        for action in actions:
            kinds = action.gang.gpus_by_type if isinstance(action, Start) else {}
            features = self._features.get(next(iter(kinds)).lower(), frozenset()) if kinds else ()
            if len(kinds) == 1 and features:
                wishes[action] = Prefer(action.job_id, min(features))
        ledger = self.ledger
        new = {a: w for a, w in wishes.items() if ledger[a.job_id].preferred != w.features}
        faults = dict(zip(new, self.slurm.change(list(new.values())), strict=True))
        done = {action: wish for action, wish in new.items() if faults[action] is None}
        try:
            ledger.note(
                {w.job: replace(ledger[w.job], preferred=w.features) for w in done.values()}
            )
        except LedgerError as error:
            log.warning("%s", error)
        return [
            Outcome(action, Status.REFUSED, str(faults[action]))
            if faults.get(action)
            else Outcome(action, Status.DONE, f"prefers {wishes[action].features}")
            if action in wishes
            else Outcome(action, Status.SKIPPED, "advice moves no job")
            for action in actions
        ]

    def _give_back(self) -> None:
        """Let jobs start under plain Slurm that are held or pinned and no longer ours to place."""
        if not self._to_give_back:
            return
        for returned in give_back(self.slurm, self.ledger, self._to_give_back):
            if returned.fault:
                log.warning("job %s is not yet Slurm's again: %s", returned.job, returned.fault)
            else:
                log.info("job %s is Slurm's again", returned.job)

    def _forget_the_gone(self) -> None:
        try:
            self.ledger.keep(self._alive)
        except LedgerError as error:
            log.warning("%s", error)

    def _stance(self, row: QueueRow, description: Description, reading: Reading) -> Stance:
        mode = Mode.OBSERVE if self.is_off() else self.settings.modes.of(row.partition)
        return stance(
            row,
            description,
            self.ledger,
            mode=mode,
            plans_for=self.mode,
            is_excluding=row.key in reading.set_apart,
            has_rates=bool(description.rates) or self.table.rates(description.workload) is not None,
        )

    def _names_type(self, action: Start) -> bool:
        reading = self.slurm.read()
        row = reading.queue.get(action.job_id)
        keeps_types = self.slurm.abilities.keeps_types
        return row is not None and must_name_type(
            row, action.gang, reading.cluster, keeps_types=keeps_types
        )

    def _pause(self, seconds: float) -> None:
        self.on_wait()
        self.sleep(seconds)

    def _signature(
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
                marks.add((str(row.key), "later" if self._is_for_later(row) else "there"))
        marks |= {(row.node.name, "open" if row.node.is_schedulable else "closed") for row in nodes}
        return frozenset(marks)

    def _description(self, row: QueueRow) -> Description | None:
        """Return what hadar-sbatch said of the job; None for a job that is not ours to place."""
        try:
            return decode(row.comment)
        except JobSpecError as error:
            if row.key not in self._faulty:
                self._faulty.add(row.key)
                log.warning("job %s is left to Slurm: %s", row.key, error)
            return None

    def _job(self, row: QueueRow, description: Description, reading: Reading) -> Job | None:
        """Return the job as policies see it, or None where Slurm alone decides about it."""
        gang = reading.gangs.get(row.key)
        abilities = self.slurm.abilities
        bound = row.named_types if abilities.keeps_types else frozenset()
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
        if not abilities.spreads:
            own = tuple(s for s in spec.shapes if str(s.nodes) == row.request.num_nodes)
            spec = replace(spec, shapes=own)
        phase: Phase
        if row.state == "PENDING":
            if self._is_for_later(row):
                return None
            is_ours = self.mode is Mode.ENFORCE
            gang = self._pinned_gang(row, reading.cluster) if is_ours else None
            is_stuck = gang is not None and self._is_stuck(row, gang, reading)
            is_waiting = row.is_held_by_user or self._was_put_off(row) or is_stuck
            is_starting = gang is not None and not is_waiting
            if gang and not is_starting and not row.is_held_by_user:
                self._stuck.add(row.key)
            phase = Phase.STARTING if is_starting else Phase.QUEUED
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

    def _was_put_off(self, row: QueueRow) -> bool:
        """Return whether a pinned job was requeued by others, and begins only in two minutes."""
        return row.reason == "BeginTime" and row.started_s > self.now_s() + _SOON_S

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


def _features_by_type(nodes: Sequence[NodeRow]) -> dict[str, frozenset[str]]:
    """Return, for every GPU type, the features of that name which all of its nodes carry."""
    found: dict[str, frozenset[str]] = {}
    for row in nodes:
        for kind, _ in row.node.gpus:
            named = frozenset(f for f in row.features if f.lower() == kind.lower())
            found[kind.lower()] = found.get(kind.lower(), named) & named
    return found


def _final_phase(state: str) -> Phase:
    if state == "COMPLETED":
        return Phase.DONE
    return Phase.FAILED if state in FAILED_STATES else Phase.CANCELLED
