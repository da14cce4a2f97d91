"""Implements the loop's Backend for Slurm: observes, applies actions, and waits for changes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from hadar_slurm.core.claims import Credit, Judged
from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.learned_sizes import EndedJobs
from hadar_slurm.core.moves import USR1
from hadar_slurm.core.snapshot import Snapshot
from hadar_slurm.core.throughput import ThroughputTable
from hadar_slurm.engine.actions import Action, Outcome, Start, Status, Stop
from hadar_slurm.engine.backend import Wake
from hadar_slurm.engine.modes import Mode
from hadar_slurm.engine.pins import Pins
from hadar_slurm.errors import LedgerError, SlurmError, SlurmRefused
from hadar_slurm.jobspec.estimator import Estimator
from hadar_slurm.slurm.client import scontrol, updates
from hadar_slurm.slurm.client.protocol import SlurmAdapter
from hadar_slurm.slurm.client.scontrol import must_name_type
from hadar_slurm.slurm.client.state import SlurmState
from hadar_slurm.slurm.corrections import Corrections
from hadar_slurm.slurm.enforce.ledger import Ledger
from hadar_slurm.slurm.enforce.stoppable import is_signalled, signal_of
from hadar_slurm.slurm.jobs.observation import Observation
from hadar_slurm.slurm.jobs.observer import Observer
from hadar_slurm.slurm.settings import BackendSettings
from hadar_slurm.state.throughput_store import Profile
from hadar_slurm.state.wakeup import WakeFile

if TYPE_CHECKING:
    from hadar_slurm.core.gang import Gang
    from hadar_slurm.slurm.strategies import Strategy

    # Gangs that waiting jobs are foreseen to get, in the order of their starts.
    Foresight = Callable[[Snapshot], Mapping[JobId, Gang]]

log = logging.getLogger(__name__)

# The wake-up file is polled at this interval. After a change the queue is too, for _BURST_S: a hook
# runs before its job is in the queue.
_WAKE_POLL_S = 0.2
_BURST_S = 2.0


@dataclass
class SlurmBackend:
    """Slurm through an adapter, for the jobs of one mode.

    A restart may lose all private fields; what must last is in `ledger` and `profile`.
    """

    slurm: SlurmAdapter
    table: ThroughputTable
    settings: BackendSettings
    # What hadard has changed on jobs.
    ledger: Ledger
    mode: Mode = Mode.HOLD
    # Measured throughputs.
    profile: Profile | None = None
    # Foresees the starts of waiting jobs, where they are steered.
    foresee: Foresight = lambda snapshot: {}
    # Called at least every `poll_s` seconds while waiting or applying, for the heartbeat.
    on_wait: Callable[[], None] = lambda: None
    # Whether the daemon is to end.
    is_stopping: Callable[[], bool] = lambda: False
    # Whether the daemon is switched off, so that it enforces nothing.
    is_off: Callable[[], bool] = lambda: False
    # Waiting jobs that hadard leaves to Slurm.
    given_up: Collection[JobId] = frozenset()
    now_s: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep
    _pins: Pins = field(init=False)
    observer: Observer = field(init=False)
    _wake: WakeFile = field(init=False)
    _corrections: Corrections = field(init=False)
    # As last read, and what was made of it.
    _state: SlurmState = field(default_factory=lambda: SlurmState({}, (), {}))
    _observation: Observation = field(default_factory=Observation)
    _plan_signature: frozenset[tuple[str, str]] = frozenset()
    # Slurm gave no answer to the last observation.
    _is_unread: bool = False
    _published: int = -1

    def __post_init__(self) -> None:
        self._pins = Pins(self.settings.pin_timeout_s)
        self._wake = WakeFile(self.settings.wake_file)
        self._corrections = Corrections(self.slurm, self.ledger, lambda: self.now_s())
        self._observation = Observation(mode=self.mode)
        self.observer = Observer(
            self.slurm,
            Estimator.shipped(
                self.table,
                self.profile.speeds if self.profile else None,
                self.settings.own_types,
                self.profile.records if self.profile else None,
                self.profile.credits if self.profile else None,
            ),
            self.settings,
            self.ledger,
            self.mode,
            self._pins,
            is_given_up=lambda job: job in self.given_up,
            now_s=lambda: self.now_s(),
            ended=self.profile.ended if self.profile else EndedJobs(),
            lost=self._corrections.lost,
        )

    def observe(self) -> Snapshot:
        """Return the snapshot of Slurm's state now."""
        self.ledger.refresh()
        self.on_wait()
        if self.profile is not None:
            # Before the first plan, and after `hadar speeds forget`.
            self.profile.refresh()
        self._is_unread = True
        self._state = state = self.slurm.read()
        self._is_unread = False
        self.ledger.see(self.slurm, state.queue.values())
        self.ledger.heed(state)
        before, is_off = self._observation.mode, self.is_off()
        self._observation = self.observer.observe(state, is_off=is_off)
        if (way := self._observation.mode) is not before:
            why = "jobs wait beside hadard's" if way is Mode.STEER else "no other jobs wait"
            log.info("mode %s: %s, so waiting jobs are treated as in %s", self.mode, why, way)
        self._plan_signature = self.observer.signature(state.queue, state.nodes, is_off=is_off)
        return self._observation.snapshot

    def apply(self, actions: Sequence[Action]) -> Sequence[Outcome]:
        """Stop and start jobs; a migrated job is started only once it has stopped.

        First, jobs that ended by mistake are requeued, and those that hadard may not place any more
        restored: under `observe` that is all. The order is in docs/architecture.md.
        """
        self.ledger.refresh()
        if self.profile is not None:
            self.profile.sync()
        self._publish_failures()
        if not self._state.nodes:
            self.observe()
        seen, state = self._observation, self._state
        if self.mode.places:
            self._records(self.ledger.adopt)
            if self._corrections.requeue_ended(seen):
                self._plan_signature = frozenset()  # observe again at once
        self._corrections.restore(seen, state)
        self._corrections.take_back_raced_holds(state)
        on_tasks = [seen.forks.on_task(action) for action in actions]
        found = self._strategy(seen, state).carry_out(on_tasks)
        outcomes = [found.get(action, Outcome(action, Status.DONE)) for action in on_tasks]
        if self.mode.changes:
            self._records(partial(self.ledger.forget_all_but, seen.alive))
        if self.mode.places:
            self._corrections.notify(seen.notices)
            if forked := self.observer.forked:
                slot_s, now_s = self.settings.slot_s, self.now_s()
                forked.assign(actions, outcomes, slot_s=slot_s, now_s=now_s)
        done = [o for o in outcomes if o.status is Status.DONE]
        if self._corrections.fault and not any(isinstance(o.action, Start | Stop) for o in done):
            raise SlurmRefused(self._corrections.fault)
        return [replace(o, action=a) for a, o in zip(actions, outcomes, strict=True)]

    def _strategy(self, seen: Observation, state: SlurmState) -> Strategy:
        """Return how a round is carried out; of the other modes nothing is loaded."""
        if seen.mode is Mode.OBSERVE:
            from hadar_slurm.slurm.strategies.advise import Observing

            return Observing(self.command_text)
        if seen.mode is Mode.ADVISE:
            from hadar_slurm.slurm.strategies.advise import Advising

            return Advising(self.slurm, self.ledger, state)
        ours = self.slurm, self.ledger, self.settings, self._pause, self.now_s
        rest = seen, state, self._corrections, self._pins
        if seen.mode is Mode.STEER:
            from hadar_slurm.slurm.strategies.steering import Steering

            return Steering(*ours, *rest, self.foresee)
        from hadar_slurm.slurm.strategies.hold import Pinning

        return Pinning(*ours, *rest)

    def wait(self, until_s: float) -> Wake:
        """Sleep until the round ends, the jobs or nodes of the plan change, or a pin times out.

        The queue is read every `poll_s`, and at once when a hook has written the wake-up file.
        """
        pins_end_s = self._pins.next_timeout_s()
        if self.observer.throttles is not None:
            pins_end_s = min(pins_end_s, self.observer.throttles.next_retry_s(self.now_s()))
        burst_until_s = 0.0
        next_read_s = self.now_s() + self.settings.poll_s if self._is_unread else 0.0
        while not self.is_stopping():
            now_s = self.now_s()
            if now_s >= until_s:
                return Wake.ROUND_END
            if now_s >= pins_end_s:
                return Wake.CHANGE
            if self._wake.has_news():
                burst_until_s, next_read_s = now_s + _BURST_S, now_s
            # The second term: the clock may have been set back.
            if now_s >= next_read_s or next_read_s > now_s + self.settings.poll_s:
                try:
                    queue = self.slurm.queue()
                    # A hold after one of hadard's that is gone is its owner's.
                    self.ledger.see(self.slurm, queue.values())
                    if self.ledger.was_read:
                        self._records(partial(self.ledger.note, {}))
                    nodes, is_off = self.slurm.nodes(), self.is_off()
                    signature = self.observer.signature(queue, nodes, is_off=is_off)
                    if self._is_unread or signature != self._plan_signature:
                        return Wake.CHANGE
                except SlurmError as error:
                    log.warning("cannot read Slurm's state: %s", error)
                is_burst = now_s < burst_until_s
                next_read_s = self.now_s() + (_WAKE_POLL_S if is_burst else self.settings.poll_s)
            wait_s = _WAKE_POLL_S if self._wake.path else self.settings.poll_s
            self._pause(max(0.0, min(until_s - now_s, wait_s, next_read_s - now_s)))
        return Wake.STOP

    def take_judged(self) -> tuple[list[Judged], Mapping[str, Credit]]:
        """Return the jobs whose claims were judged since the last call; who is believed less."""
        checks = self.observer.checks
        return checks.take_judged(), checks.estimator.credits.in_force()

    def command_text(self, action: Action) -> str:
        """Return the main commands of an action, separated by semicolons.

        Left out are the hold before a start, a new begin time and repeated signals. A stop is shown
        as that of a running job.
        """
        action = self._observation.forks.on_task(action)
        job, changes = action.job_id, list[updates.Update]()
        row = self._state.queue.get(job)
        if isinstance(action, Stop):
            if row is None or is_signalled(row):
                changes.append(updates.SignalCheckpoint(job, signal_of(row) if row else USR1))
            changes.append(updates.Requeue(job))
        elif isinstance(action, Start):
            keeps_types = row is not None and self.slurm.abilities.keeps_types
            named = self.ledger[job].named_types(row) if row and keeps_types else frozenset()
            names_type = bool(row) and must_name_type(named, action.gang, self._state.cluster)
            request = scontrol.request_for(action.gang, self.slurm.version, names_type=names_type)
            ask = updates.SetRequest(job, request)
            changes = [updates.ClearRequest(job), ask, updates.Release(job)]
        return "; ".join(" ".join(scontrol.command(change)) for change in changes)

    def _records(self, write: Callable[[], None]) -> None:
        try:
            write()
        except LedgerError as error:
            log.warning("%s", error)

    def _publish_failures(self) -> None:
        """Write the failures for hadar-sbatch where they have changed."""
        records, place = self.observer.estimator.records, self.settings.failures
        if place is None or self._published == records.version:
            return
        self._published = records.version
        from hadar_slurm.state.failures import write_failures

        try:
            write_failures(place, records.failing)
        except OSError as error:
            log.warning("%s: failures are not written for hadar-sbatch: %s", place, error.strerror)

    def _pause(self, seconds: float) -> None:
        self.on_wait()
        self.sleep(seconds)
