"""Implements the loop's Backend for Slurm: observes, applies actions, and waits for changes."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from hadar_slurm.core.claims import Credit, Judged
from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.gang import Gang
from hadar_slurm.core.learned_sizes import EndedJobs
from hadar_slurm.core.snapshot import Snapshot
from hadar_slurm.core.throughput import ThroughputTable
from hadar_slurm.engine.actions import Action, Outcome, Renew, Start, Status, Stop
from hadar_slurm.engine.backend import Wake
from hadar_slurm.errors import LedgerError, SlurmError, SlurmRefused
from hadar_slurm.job_files import Assignment
from hadar_slurm.jobspec.estimator import Estimator
from hadar_slurm.slurm.client import scontrol, updates
from hadar_slurm.slurm.client.parse import QueueRow
from hadar_slurm.slurm.client.protocol import SlurmAdapter
from hadar_slurm.slurm.client.state import SlurmState, waits_for_nodes
from hadar_slurm.slurm.enforce.advise import advise, features_by_type
from hadar_slurm.slurm.enforce.claim import State
from hadar_slurm.slurm.enforce.ledger import Ledger
from hadar_slurm.slurm.enforce.modes import Mode
from hadar_slurm.slurm.enforce.pins import Pins
from hadar_slurm.slurm.enforce.restore import (
    NO_LIMITS,
    NODES_REPORT_WITHIN_S,
    Exclusion,
    restore_jobs,
)
from hadar_slurm.slurm.enforce.start_stop import Mover, must_name_type
from hadar_slurm.slurm.enforce.state_machine import Event, Kind
from hadar_slurm.slurm.enforce.steering import (
    Foresight,
    Limit,
    Steerer,
    joined,
    limits,
    may_wait_unheld,
)
from hadar_slurm.slurm.enforce.stoppable import bound_s, is_ended_by_us
from hadar_slurm.slurm.jobs.array_jobs import Fork
from hadar_slurm.slurm.jobs.observation import Observation
from hadar_slurm.slurm.jobs.observer import Observer
from hadar_slurm.slurm.jobs.parameter_averages import copy_facts
from hadar_slurm.slurm.jobs.run_outcomes import is_early_failure
from hadar_slurm.slurm.jobs.seen import Course
from hadar_slurm.slurm.settings import BackendSettings
from hadar_slurm.slurm.wakeup import WakeFile
from hadar_slurm.state.assignments import Assignments
from hadar_slurm.state.failures import write_failures
from hadar_slurm.state.throughput_store import Profile

log = logging.getLogger(__name__)

# The wake-up file is polled at this interval. After a change the queue is too, for _BURST_S: a hook
# runs before its job is in the queue.
_WAKE_POLL_S = 0.2
_BURST_S = 2.0
_GAP = "plain jobs wait, and would take GPUs that are freed without a successor in the queue"
_NEVER_HELD = "it is enrolled, so that it is never held or stopped, and Slurm starts it"


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
    now_s: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep
    _pins: Pins = field(init=False)
    _observer: Observer = field(init=False)
    _wake: WakeFile = field(init=False)
    _assignments: Assignments | None = field(init=False)
    _state: SlurmState | None = None
    _observation: Observation | None = None
    _restore_delayed_since_s: float = math.inf
    _plan_signature: frozenset[tuple[str, str]] = frozenset()
    _notified: frozenset[JobId] = frozenset()
    _may_notify: bool = True
    # Slurm gave no answer to the last observation.
    _is_unread: bool = False
    _features: Mapping[str, str] = field(default_factory=dict)
    _published: int = -1

    def __post_init__(self) -> None:
        self._pins = Pins(self.settings.pin_timeout_s)
        self._wake = WakeFile(self.settings.wake_file)
        place = self.settings.assignments
        self._assignments = Assignments(place) if place else None
        self._observer = Observer(
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
            is_off=lambda: self.is_off(),
            now_s=lambda: self.now_s(),
            ended=self.profile.ended if self.profile else EndedJobs(),
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
        before = self._observation.mode if self._observation is not None else self.mode
        self._observation = self._observer.observe(state)
        if (way := self._observation.mode) is not before:
            why = "jobs wait beside hadard's" if way is Mode.STEER else "no other jobs wait"
            log.info("mode %s: %s, so waiting jobs are treated as in %s", self.mode, why, way)
        self._plan_signature = self._observer.signature(state.queue, state.nodes)
        self._features = features_by_type(state.nodes)
        return self._observation.snapshot

    def apply(self, actions: Sequence[Action]) -> Sequence[Outcome]:
        """Stop and start jobs; a migrated job is started only once it has stopped.

        First, restore the requests of unmanaged jobs that hadard still holds or pins. Under
        `observe` that is all; `advise` sets the preferred GPU type of jobs.
        """
        self.ledger.refresh()
        if self.profile is not None:
            self.profile.sync()
        self._publish_failures()
        seen = self._observation
        if seen is not None:
            if self.mode.places:
                self._records(self.ledger.adopt)
                self._requeue_ended(seen)
            self._restore(seen)
            self._take_back_raced_holds()
        outcomes = self._outcomes([self._on_task(action) for action in actions])
        if self.mode.places and seen is not None:
            self._assign_quotas(actions, outcomes, seen.forks.by_parent)
        return [replace(o, action=a) for a, o in zip(actions, outcomes, strict=True)]

    def _outcomes(self, actions: Sequence[Action]) -> Sequence[Outcome]:
        """Carry out actions whose jobs are Slurm's, tasks of forked jobs included."""
        if self.mode is Mode.OBSERVE:
            return [Outcome(a, Status.SKIPPED, self.command_text(a)) for a in actions]
        if self.mode is Mode.ADVISE:
            queue = self._state.queue if self._state is not None else {}
            return advise(self.slurm, self.ledger, queue, actions, self._features)
        seen = self._observation
        not_ready = seen.not_ready if seen is not None else {}
        early = [a for a in actions if isinstance(a, Stop) and a.job_id in not_ready]
        starts = [action for action in actions if isinstance(action, Start)]
        spool, grace_s = self.settings.spool, self.settings.grace_s
        mover = Mover(self.slurm, self.ledger, spool, grace_s, self._pause, self.now_s)
        if seen is not None:
            mover.limits_s, mover.by_type, mover.kept = seen.limits_s, seen.by_type, seen.kept
        if seen is not None:
            # Other jobs have their GPUs now.
            mover.hold_timed_out(seen.stuck - {start.job_id for start in starts})
        outcomes: dict[Action, Outcome] = {
            a: Outcome(a, Status.DEFERRED, not_ready[a.job_id]) for a in early
        }
        # A successor is first in line before its GPUs are freed.
        outcomes |= self._steer([a for a in actions if a not in outcomes], seen)
        enrolled = seen.enrolled if seen is not None else ()
        outcomes |= {
            a: Outcome(a, Status.DEFERRED, _NEVER_HELD)
            for a in actions
            if a not in outcomes and a.job_id in enrolled and not isinstance(a, Renew)
        }
        stops = [a for a in actions if isinstance(a, Stop) and a not in outcomes]
        outcomes |= mover.stop(stops)
        pinned = mover.start([start for start in starts if start not in outcomes])
        outcomes |= pinned
        now_s, by_type = self.now_s(), seen.by_type if seen is not None else {}
        for action, outcome in pinned.items():
            if outcome.status is Status.DONE:
                self._pins.begin(action.job_id, now_s)
            elif outcome.status is Status.REFUSED and action.job_id in by_type:
                # A copy may still be placed where another request fits.
                self._pins.avoid(action.job_id, action.gang.gpus_by_node, now_s)
        begun = {start.job_id for start in starts if outcomes[start].status is Status.DONE}
        self._release_into_queue(begun)
        if seen is not None:
            failed = {start.job_id for start in starts} - begun
            mover.hold_timed_out(seen.stuck & failed)
            self._records(partial(self.ledger.forget_all_but, seen.alive))
            self._notify(seen.notices)
        return [outcomes.get(action, Outcome(action, Status.DONE)) for action in actions]

    def _steer(self, actions: Sequence[Action], seen: Observation | None) -> dict[Action, Outcome]:
        """Steer waiting jobs where Slurm keeps the queue; return the outcomes of what is done."""
        if seen is None or seen.mode is not Mode.STEER or self._state is None:
            return {}
        now_s = self.now_s()
        jobs, limits_s = seen.snapshot.jobs, seen.limits_s
        steerer = Steerer(self.slurm, self.ledger, self._pins, self._state, jobs, now_s, limits_s)
        gapped = steerer.gapped(actions, seen.alive)
        later = {a: Outcome(a, Status.DEFERRED, _GAP) for a in gapped}
        starts = [a for a in actions if isinstance(a, Start) and steerer.may_start(a)]
        named = {start.job_id for start in starts}
        soon = self.foresee(seen.snapshot) if steerer.waiting.keys() - named else {}
        return {**later, **steerer.start(starts, soon)}

    def _release_into_queue(self, begun: set[JobId]) -> None:
        """Release the jobs that are to wait in Slurm's queue and are held, within their limits.

        Where Slurm keeps the queue, all but those in `begun`: a job whose GPUs are not free yet is
        first in line for them only once it waits there. Jobs that wait for others in any case: of
        held jobs Slurm looks at dependencies once a minute.
        """
        seen = self._observation
        if seen is None:
            return
        jobs = [*seen.awaiting, *(seen.snapshot.jobs if seen.mode is Mode.STEER else ())]
        if not any(self.ledger[job.job_id].holds for job in jobs):
            return
        cluster, queue = seen.snapshot.cluster, self.slurm.queue()
        self.ledger.see(self.slurm, queue.values())
        waiting = queue.keys() - begun
        held = [
            job
            for job in jobs
            if job.job_id in waiting
            and queue[job.job_id].is_held_by_user
            and self.ledger[job.job_id].state is State.HELD
            and may_wait_unheld(job, cluster)
        ]
        wanted = limits(held, {}, (), cluster)
        self._give_back(queue, wanted, self._exclusions(wanted, queue))

    def _exclusions(
        self, limits: Mapping[JobId, Limit], queue: Mapping[JobId, QueueRow]
    ) -> dict[JobId, Exclusion]:
        """Return what jobs are to exclude beside their owners' nodes, where it is anything."""
        found: dict[JobId, Exclusion] = {}
        if (state := self._state) is None:
            return found
        for job, limit in limits.items():
            if limit.excluded:
                row, shown = queue[job], state.excluded.get(job)
                own = self.ledger.excluded_by_owner(row, shown)
                wanted = joined(limit.excluded, own)
                found[job] = Exclusion(wanted, state.request(row), shown or (), own)
        return found

    def wait(self, until_s: float) -> Wake:
        """Sleep until the round ends, the jobs or nodes of the plan change, or a pin times out.

        The queue is read every `poll_s`, and at once when a hook has written the wake-up file.
        """
        retry_s = self._observer.throttles.next_retry_s(self.now_s())
        pins_end_s = min(self._pins.next_timeout_s(), retry_s)
        burst_until_s = next_read_s = 0.0
        if self._is_unread:
            next_read_s = self.now_s() + self.settings.poll_s
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
                    self._see(queue)
                    signature = self._observer.signature(queue, self.slurm.nodes())
                    if self._is_unread or signature != self._plan_signature:
                        return Wake.CHANGE
                except SlurmError as error:
                    log.warning("cannot read Slurm's state: %s", error)
                is_burst = now_s < burst_until_s
                next_read_s = self.now_s() + (_WAKE_POLL_S if is_burst else self.settings.poll_s)
            wait_s = _WAKE_POLL_S if self._wake.path else self.settings.poll_s
            self._pause(max(0.0, min(until_s - now_s, wait_s, next_read_s - now_s)))
        return Wake.STOP

    @property
    def squatted(self) -> frozenset[str]:
        """Return the report directories of the last observation that a foreign user has made."""
        return frozenset(self._observer.reports.squatted)

    @property
    def assignments_fault(self) -> str:
        """Return why the last write of quotas failed; empty after a success."""
        return self._assignments.fault if self._assignments else ""

    def take_averages(self) -> int:
        """Return the number of parameter averages of forked jobs since the last call."""
        return self._observer.averages.take()

    def take_judged(self) -> tuple[list[Judged], Mapping[str, Credit]]:
        """Return the jobs whose claims were judged since the last call; who is believed less."""
        checks = self._observer.checks
        return checks.take_judged(), checks.estimator.credits.in_force()

    def copy_facts(self) -> dict[str, object]:
        """Return the journal's facts about the copies of forked jobs, by job."""
        seen = self._observation
        return {} if seen is None else copy_facts(seen.forks, self._observer.averages)

    def command_text(self, action: Action) -> str:
        """Return the main commands of an action, separated by semicolons.

        Left out are the hold before a start, a new begin time and repeated signals. A stop is shown
        as that of a running job.
        """
        action = self._on_task(action)
        job = action.job_id
        changes: list[updates.Update] = []
        if isinstance(action, Stop):
            row = self._state.queue.get(job) if self._state is not None else None
            needs_signal = row is None or not bound_s(row)
            changes = [*([updates.SignalCheckpoint(job)] if needs_signal else ())]
            changes.append(updates.Requeue(job))
        elif isinstance(action, Start):
            names_type = self._names_type(action)
            request = scontrol.request_for(action.gang, self.slurm.version, names_type=names_type)
            ask = updates.SetRequest(job, request)
            changes = [updates.ClearRequest(job), ask, updates.Release(job)]
        return "; ".join(" ".join(scontrol.command(change)) for change in changes)

    def _on_task(self, action: Action) -> Action:
        return self._observation.forks.on_task(action) if self._observation is not None else action

    def _assign_quotas(
        self, actions: Sequence[Action], outcomes: Sequence[Outcome], forks: Mapping[JobId, Fork]
    ) -> None:
        if self._assignments is None:
            return
        gangs: dict[JobId, dict[int, Gang]] = {}
        for action, outcome in zip(actions, outcomes, strict=True):
            # A copy that could not be stopped goes on.
            is_there = isinstance(action, Stop) != (outcome.status is Status.DONE)
            if is_there and action.job_id in forks:
                gangs.setdefault(action.job_id, {})[action.copy] = action.gang
        slot_s = self.settings.slot_s
        for parent, held in gangs.items():
            quotas = forks[parent].quotas(held, slot_s)
            assignment = Assignment(int(self.now_s() * 1000), quotas, slot_s)
            self._assignments.put(parent, forks[parent].owner_uid, assignment)
        self._assignments.keep([parent for parent, fork in forks.items() if fork.is_alive])

    def _restore(self, seen: Observation) -> None:
        if not (jobs := seen.of(Course.RESTORED)):
            self._restore_delayed_since_s = math.inf
            return
        if self._state is not None and waits_for_nodes(self._state.nodes):
            self._restore_delayed_since_s = min(self._restore_delayed_since_s, self.now_s())
            if self.now_s() < self._restore_delayed_since_s + NODES_REPORT_WITHIN_S:
                return
        # Read again: a hold that a user has placed during planning must stay.
        self._give_back(self.slurm.queue(), jobs)

    def _give_back(
        self,
        queue: Mapping[JobId, QueueRow],
        jobs: Collection[JobId],
        excluded: Mapping[JobId, Exclusion] = NO_LIMITS,
    ) -> None:
        """Restore jobs of a queue that was just read; see `restore_jobs`."""
        if not jobs:
            return
        for returned in restore_jobs(self.slurm, self.ledger, queue, jobs, excluded):
            if returned.fault:
                log.warning("job %s: not yet restored: %s", returned.job, returned.fault)
            else:
                log.info("job %s: original request restored, hold released", returned.job)

    def _requeue_ended(self, seen: Observation) -> None:
        """Requeue jobs that USR1 from hadard has ended, or that failed early; see `Observation`.

        The next round places them.
        """
        retried, ended_by_us = seen.of(Course.RETRIED), seen.of(Course.REQUEUED)
        if not retried and not ended_by_us:
            return
        queue = self.slurm.queue()
        # Read again: a requeue would restart a job that was cancelled meanwhile.
        rows = [
            queue[job]
            for job in sorted([*ended_by_us, *retried])
            if job in queue
            and (is_early_failure if job in retried else self._is_ended_by_us)(queue[job])
        ]
        events = {row.key: self._requeue_event(row, retries=row.key in retried) for row in rows}
        try:
            faults = self.ledger.carry_out(self.slurm, events)
        except LedgerError as error:
            log.warning("%s", error)
            return
        for row in rows:
            fault, run = faults.get(row.key), row.restarts + 1
            what = f"USR1 from hadard ended its run {run}, though it had said that it listens"
            if row.key in retried:
                what = f"its run {run} failed early on {seen.jobs[row.key].failed_on}"
            result = "requeued" if fault is None else f"it cannot be requeued: {fault}"
            log.warning("job %s: %s; %s", row.key, what, result)
            if isinstance(fault, SlurmRefused):
                self._observer.lost.add(row.key)
        self._plan_signature = frozenset()  # observe again at once

    def _is_ended_by_us(self, row: QueueRow) -> bool:
        return is_ended_by_us(row, self.ledger[row.key])

    def _notify(self, to_notify: Mapping[JobId, updates.Notify]) -> None:
        """Print in the output of jobs why their previous run was not the last."""
        news = {job: notice for job, notice in to_notify.items() if job not in self._notified}
        self._notified = frozenset(to_notify)
        if not news or not self._may_notify:
            return
        for fault in self.slurm.change([*news.values()]):
            if isinstance(fault, SlurmRefused):
                self._may_notify = False
                log.warning("the output of jobs cannot be written to: %s", fault)
                return

    def _requeue_event(self, row: QueueRow, *, retries: bool) -> Event:
        """Return the requeue of an ended job; a priority of 0 shows that it was held as it ran."""
        kind = Kind.REQUEUE_HELD if row.priority == 0 else Kind.REQUEUE
        return Event(kind=kind, row=row, now_s=self.now_s(), retries=retries)

    def _take_back_raced_holds(self) -> None:
        """Release running jobs whose hold raced with their start; the next round checks it."""
        raced = self.ledger.raced(self._state.queue.values() if self._state else ())
        faults = self.ledger.carry_out(self.slurm, raced, must_be_written=False)
        for fault in faults.values():
            log.warning("cannot take back a hold: %s", fault)

    def _see(self, queue: Mapping[JobId, QueueRow]) -> None:
        """Record which holds of hadard are gone, so that a later hold counts as the owner's."""
        self.ledger.see(self.slurm, queue.values())
        if self.ledger.was_read:
            self._records(partial(self.ledger.note, {}))

    def _records(self, write: Callable[[], None]) -> bool:
        try:
            write()
        except LedgerError as error:
            log.warning("%s", error)
            return False
        return True

    def _publish_failures(self) -> None:
        """Write the failures for hadar-sbatch where they have changed."""
        records, place = self._observer.estimator.records, self.settings.failures
        if place is None or self._published == records.version:
            return
        self._published = records.version
        try:
            write_failures(place, records.failing)
        except OSError as error:
            log.warning("%s: failures are not written for hadar-sbatch: %s", place, error.strerror)

    def _names_type(self, action: Start) -> bool:
        state = self._state or self.slurm.read()
        if (row := state.queue.get(action.job_id)) is None:
            return False
        keeps_types = self.slurm.abilities.keeps_types
        named = self.ledger[row.key].named_types(row) if keeps_types else frozenset()
        return must_name_type(named, action.gang, state.cluster)

    def _pause(self, seconds: float) -> None:
        self.on_wait()
        self.sleep(seconds)
