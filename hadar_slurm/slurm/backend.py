"""A real Slurm behind the loop's Backend: what is, what to do about it, and when to look again."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.gang import Gang
from hadar_slurm.core.snapshot import Snapshot
from hadar_slurm.core.throughput import ThroughputTable
from hadar_slurm.engine.actions import Action, Outcome, Start, Status, Stop
from hadar_slurm.engine.backend import Wake
from hadar_slurm.errors import LedgerError, SlurmError, SlurmRefused
from hadar_slurm.handoff import Assignment
from hadar_slurm.jobspec.estimator import Estimator
from hadar_slurm.slurm.client import scontrol
from hadar_slurm.slurm.client.fairshare import FairShares
from hadar_slurm.slurm.client.parse import QueueRow
from hadar_slurm.slurm.client.protocol import SlurmAdapter
from hadar_slurm.slurm.client.state import SlurmState
from hadar_slurm.slurm.client.updates import (
    ClearRequest,
    Notify,
    Release,
    Requeue,
    SetRequest,
    SignalCheckpoint,
    Update,
)
from hadar_slurm.slurm.control.advise import advise, features_by_type
from hadar_slurm.slurm.control.checkpoint_signal import is_ended_by_us, message
from hadar_slurm.slurm.control.ledger import Claim, Ledger
from hadar_slurm.slurm.control.lost_releases import as_seen, lost_releases
from hadar_slurm.slurm.control.modes import Mode
from hadar_slurm.slurm.control.pins import Pins
from hadar_slurm.slurm.control.restore import NODES_REPORT_WITHIN_S, give_back
from hadar_slurm.slurm.control.start_stop import Mover, must_name_type
from hadar_slurm.slurm.observe.copy_facts import copy_facts
from hadar_slurm.slurm.observe.snapshot_builder import Observation, SnapshotBuilder
from hadar_slurm.slurm.observe.throughput_store import Profile
from hadar_slurm.slurm.settings import BackendSettings
from hadar_slurm.slurm.wakeup import WakeFile
from hadar_slurm.state.assignments import Assignments

log = logging.getLogger(__name__)

# How often the wake-up file is looked at, and for how long after it changed the queue is: a hook
# runs before its job is in the queue.
_GLANCE_S = 0.2
_EAGER_S = 2.0


@dataclass
class SlurmBackend:
    """Slurm, reached through an adapter; it plans for the jobs of one mode.

    It remembers nothing that a restart could not lose: what became of pins, which jobs'
    descriptions it has complained of, and what the last plan was made for. What it has done to
    jobs is in the `ledger`, how fast they were seen to be in the `profile`. `on_wait` is called at
    least every `poll_s` seconds while waiting or applying, for the heartbeat; `is_stopping` tells
    that the daemon was asked to end, `is_off` that it was switched off and is to enforce nothing.
    """

    slurm: SlurmAdapter
    table: ThroughputTable
    settings: BackendSettings
    ledger: Ledger
    mode: Mode = Mode.ENFORCE
    profile: Profile | None = None
    on_wait: Callable[[], None] = lambda: None
    is_stopping: Callable[[], bool] = lambda: False
    is_off: Callable[[], bool] = lambda: False
    now_s: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep
    _pins: Pins = field(init=False)
    _view: SnapshotBuilder = field(init=False)
    _wake: WakeFile = field(init=False)
    _assignments: Assignments | None = field(init=False)
    _reading: SlurmState | None = None
    _seen: Observation | None = None
    _lost: Mapping[JobId, Claim] = field(default_factory=dict)
    _put_off_since_s: float = math.inf
    _planned_for: frozenset[tuple[str, str]] = frozenset()
    _notified: frozenset[JobId] = frozenset()
    _may_notify: bool = True
    _features: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._pins = Pins(self.settings.pin_timeout_s)
        self._wake = WakeFile(self.settings.wake_file)
        place = self.settings.assignments
        self._assignments = Assignments(place) if place is not None else None
        self._view = SnapshotBuilder(
            self.slurm,
            Estimator.shipped(self.table, self.profile.speeds if self.profile else None),
            self.settings,
            self.ledger,
            self.mode,
            self._pins,
            FairShares(self.slurm),
            is_off=lambda: self.is_off(),
            now_s=lambda: self.now_s(),
        )

    def observe(self) -> Snapshot:
        """Return what Slurm shows now."""
        self.ledger.refresh()
        self.on_wait()
        self._reading = reading = self.slurm.read()
        self._lost = lost_releases(self.slurm, self.ledger, reading.queue)
        self._seen = self._view.look(reading)
        self._planned_for = self._view.signature(reading.queue, reading.nodes)
        self._features = features_by_type(reading.nodes)
        return self._seen.snapshot

    def apply(self, actions: Sequence[Action]) -> Sequence[Outcome]:
        """Stop and start jobs; a job that moves is started only once it has stopped.

        First, jobs that are held or pinned and no longer ours to place go back to Slurm. Under
        `observe` that is all; under `advise` Slurm is told which GPU type would be better.
        """
        self.ledger.refresh()
        if self.profile is not None:
            self.profile.sync()
        if self._lost:
            self._note(self._lost)
            self._planned_for = frozenset()  # look again at once
        if self.mode is Mode.ENFORCE:
            self._adopt()
            self._return_ended()
        self._give_back()
        self._undo_landed()
        on_tasks = [self._on_task(action) for action in actions]
        outcomes = self._outcomes(on_tasks)
        if self.mode is Mode.ENFORCE:
            self._share_out(actions, outcomes)
        return [
            replace(outcome, action=action)
            for action, outcome in zip(actions, outcomes, strict=True)
        ]

    def _outcomes(self, actions: Sequence[Action]) -> Sequence[Outcome]:
        """Carry out actions on jobs as Slurm has them."""
        if self.mode is Mode.OBSERVE:
            return [Outcome(action, Status.SKIPPED, self._told(action)) for action in actions]
        if self.mode is Mode.ADVISE:
            return advise(self.slurm, self.ledger, actions, self._features)
        deaf = self._seen.deaf if self._seen is not None else {}
        early = [a for a in actions if isinstance(a, Stop) and a.job_id in deaf]
        starts = [action for action in actions if isinstance(action, Start)]
        mover = Mover(
            self.slurm,
            self.ledger,
            self.settings.spool,
            self.settings.grace_s,
            self._pause,
            self.now_s,
        )
        if self._seen is not None:
            # Their GPUs are others' now.
            mover.hold(self._seen.stuck - {start.job_id for start in starts})
        outcomes: dict[Action, Outcome] = {
            **{a: Outcome(a, Status.DEFERRED, deaf[a.job_id]) for a in early},
            **mover.stop([a for a in actions if isinstance(a, Stop) and a not in early]),
            **mover.start(starts),
        }
        now_s = self.now_s()
        for action, outcome in outcomes.items():
            if isinstance(action, Start) and outcome.status is Status.DONE:
                self._pins.begin(action.job_id, now_s)
        failed = {start.job_id for start in starts if outcomes[start].status is not Status.DONE}
        if self._seen is not None:
            mover.hold(self._seen.stuck & failed)
            self._forget_all_but(self._seen.alive)
            self._tell_output(self._seen.untold)
        return [outcomes.get(action, Outcome(action, Status.DONE)) for action in actions]

    def wait(self, until_s: float) -> Wake:
        """Sleep until the round ends, or until what was planned for is no longer what is.

        That is when a job comes or goes, a node opens or closes, or a job has waited on its pin
        for too long. The queue is looked at every `poll_s`, and at once when a hook says so.
        """
        pins_end_s = min(
            self._pins.next_timeout_s(), self._view.limits.throttles.next_retry_s(self.now_s())
        )
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
                    queue = self.slurm.queue()
                    self._note_released(queue)
                    seen = self._view.signature(queue, self.slurm.nodes())
                    if seen != self._planned_for:
                        return Wake.CHANGE
                except SlurmError as error:
                    log.warning("cannot look at Slurm: %s", error)
                is_eager = now_s < eager_until_s
                looks_s = self.now_s() + (_GLANCE_S if is_eager else self.settings.poll_s)
            glance_s = _GLANCE_S if self._wake.path else self.settings.poll_s
            self._pause(max(0.0, min(until_s - now_s, glance_s, looks_s - now_s)))
        return Wake.STOP

    @property
    def squatted(self) -> frozenset[str]:
        """Return where jobs cannot report, by the last look: another user was there first."""
        return frozenset(self._view.squatted)

    @property
    def assignments_fault(self) -> str:
        """Return why copies were not told their shares the last time, or nothing."""
        return self._assignments.fault if self._assignments is not None else ""

    def take_averages(self) -> int:
        """Return how often copies of forked jobs were made one since the last call."""
        return self._view.averages.take()

    def copy_facts(self) -> dict[str, object]:
        """Return the journal's facts about the copies of forked jobs, by job."""
        return copy_facts(self._seen.forks, self._view.averages) if self._seen else {}

    def commands(self, action: Action) -> list[list[str]]:
        """Return the commands that an action comes to when nothing gets in its way."""
        action = self._on_task(action)
        job = action.job_id
        changes: list[Update] = []
        if isinstance(action, Stop):
            changes = [SignalCheckpoint(job), Requeue(job)]
        elif isinstance(action, Start):
            names_type = self._names_type(action)
            request = scontrol.request_for(action.gang, self.slurm.version, names_type=names_type)
            changes = [ClearRequest(job), SetRequest(job, request), Release(job)]
        return [scontrol.command(change) for change in changes]

    def _on_task(self, action: Action) -> Action:
        return self._seen.forks.on_task(action) if self._seen is not None else action

    def _share_out(self, actions: Sequence[Action], outcomes: Sequence[Outcome]) -> None:
        """Tell the copies of forked jobs how to share the steps of their slots."""
        if self._seen is None or self._assignments is None:
            return
        forks = self._seen.forks.by_parent
        gangs: dict[JobId, dict[int, Gang]] = {}
        for action, outcome in zip(actions, outcomes, strict=True):
            # One that could not be stopped goes on.
            is_there = isinstance(action, Stop) != (outcome.status is Status.DONE)
            if is_there and action.job_id in forks:
                gangs.setdefault(action.job_id, {})[action.copy] = action.gang
        for parent, held in gangs.items():
            fork = forks[parent]
            quotas = fork.quotas(held, self.settings.slot_s)
            told = Assignment(int(self.now_s() * 1000), quotas, self.settings.slot_s)
            self._assignments.put(parent, fork.owner_uid, told)
        self._assignments.keep([parent for parent, fork in forks.items() if fork.is_alive])

    def _told(self, action: Action) -> str:
        return "; ".join(map(" ".join, self.commands(action)))

    def _give_back(self) -> None:
        """Let jobs start under plain Slurm that are held or pinned and no longer ours to place."""
        if self._seen is None or self._reading is None or not self._seen.to_give_back:
            self._put_off_since_s = math.inf
            return
        if self._reading.waits_for_nodes:
            self._put_off_since_s = min(self._put_off_since_s, self.now_s())
            if self.now_s() < self._put_off_since_s + NODES_REPORT_WITHIN_S:
                return
        queue = self.slurm.queue()
        # Planning took its time: a hold that somebody has placed since must stay.
        waiting = {
            job: (queue[job], description)
            for job, (_, description) in self._seen.to_give_back.items()
            if job in queue and queue[job].state == "PENDING"
        }
        for returned in give_back(self.slurm, self.ledger, waiting):
            if returned.fault:
                log.warning("job %s is not yet Slurm's again: %s", returned.job, returned.fault)
            else:
                log.info("job %s is Slurm's again", returned.job)

    def _return_ended(self) -> None:
        """Requeue jobs that our own signal has ended; the next look places them."""
        if self._seen is None or not self._seen.ended_by_us:
            return
        queue = self.slurm.queue()
        # Read again: a requeue would resurrect a job that was cancelled since.
        rows = [
            queue[job]
            for job in sorted(self._seen.ended_by_us)
            if job in queue and is_ended_by_us(queue[job], self.ledger[job])
        ]
        try:
            self.ledger.expect_returns(
                {row.key: row.restarts for row in rows},
                held=[row.key for row in rows if row.priority == 0],
            )
        except LedgerError as error:
            log.warning("%s", error)
            return
        faults = self.slurm.change([Requeue(row.key) for row in rows]) if rows else []
        for row, fault in zip(rows, faults, strict=True):
            told = f"job {row.key}: USR1 from hadard ended its run {row.restarts + 1}"
            if fault is None:
                log.warning("%s, though it had said that it listens; requeued", told)
            else:
                log.warning("%s, and it cannot be requeued: %s", told, fault)
                if isinstance(fault, SlurmRefused):
                    self._view.lost.add(row.key)
        self._planned_for = frozenset()  # look again at once

    def _tell_output(self, untold: Mapping[JobId, QueueRow]) -> None:
        """Print in the output of jobs that our signal ended their previous run."""
        rows = [row for job, row in untold.items() if job not in self._notified]
        self._notified = self._notified & untold.keys() | {row.key for row in rows}
        if not rows or not self._may_notify:
            return
        messages = [Notify(JobId(row.raw_id), message(self.ledger[row.key])) for row in rows]
        for fault in self.slurm.change(messages):
            if isinstance(fault, SlurmRefused):
                self._may_notify = False
                log.warning("the output of jobs cannot be written to: %s", fault)
                return

    def _undo_landed(self) -> None:
        """Take back holds of ours that came as their jobs started; the next look tells of it."""
        landed = sorted(self._seen.landed) if self._seen is not None else []
        for fault in self.slurm.change([Release(job) for job in landed]) if landed else ():
            if fault is not None:
                log.warning("cannot take back a hold: %s", fault)

    def _adopt(self) -> None:
        if self._seen is None or (self.ledger.is_whole and not self._seen.found):
            return
        try:
            self.ledger.adopt(self._seen.found)
            # From here on the ledger knows more than that look did.
            self._seen = replace(self._seen, found={})
        except LedgerError as error:
            log.warning("%s", error)

    def _note_released(self, queue: Mapping[JobId, QueueRow]) -> None:
        """Note which holds of ours are gone, so that one placed after them is its owner's."""
        known = [job for job in self.ledger if job in queue]
        now_s = self.ledger.now_s()
        self._note({job: as_seen(self.ledger[job], queue[job], now_s) for job in known})

    def _note(self, changed: Mapping[JobId, Claim]) -> None:
        try:
            self.ledger.note(changed)
        except LedgerError as error:
            log.warning("%s", error)

    def _forget_all_but(self, alive: Collection[JobId]) -> None:
        try:
            self.ledger.keep(alive)
        except LedgerError as error:
            log.warning("%s", error)

    def _names_type(self, action: Start) -> bool:
        reading = self._reading or self.slurm.read()
        row = reading.queue.get(action.job_id)
        keeps_types = self.slurm.abilities.keeps_types
        return row is not None and must_name_type(
            row, action.gang, reading.cluster, keeps_types=keeps_types
        )

    def _pause(self, seconds: float) -> None:
        self.on_wait()
        self.sleep(seconds)
