"""Stopping and starting jobs on a real Slurm, in batches; each change is recorded and read back.

The order was measured (docs/slurm.md): a running job gets a signal to save, acknowledges, is
requeued with a user hold, changed only once it is pending again, then released.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from hadar_slurm.core.cluster import JobId, Slot
from hadar_slurm.core.time_limit import new_time_limit_s
from hadar_slurm.engine.actions import Action, Outcome, Start, Status, Stop
from hadar_slurm.engine.rate_limit import at_once, in_parts
from hadar_slurm.errors import LedgerError, SlurmRefused, SlurmUnavailable
from hadar_slurm.job_files import ProgressReport, ReportError, read_report
from hadar_slurm.jobspec.request import SIZES, Request
from hadar_slurm.slurm.client.parse import QueueRow
from hadar_slurm.slurm.client.protocol import SlurmAdapter
from hadar_slurm.slurm.client.scontrol import must_name_type, request_for, requested_gpus
from hadar_slurm.slurm.client.state import SlurmState
from hadar_slurm.slurm.enforce import stoppable
from hadar_slurm.slurm.enforce.ledger import Ledger
from hadar_slurm.slurm.enforce.readings import is_edited
from hadar_slurm.slurm.enforce.state_machine import Event, Kind
from hadar_slurm.slurm.jobs.observation import Observation
from hadar_slurm.slurm.settings import BackendSettings

# How long a requeued job may take to leave its nodes; Slurm's KillWait is 30 s by default.
_LEAVE_S = 45.0
# How long it may be pending there without our hold; then its owner has released it.
_UNHELD_S = 2.0
_POLL_S = 0.1
# A signal may be lost, for example while a program replaces its handlers.
_ASK_EVERY_S = 1.0

# The second while Slurm hands out a signal (22.05.8).
_RUNS = ("RUNNING", "SIGNALING")

log = logging.getLogger(__name__)

Outcomes = dict[Action, Outcome]
Moved = TypeVar("Moved", Start, Stop)
_FOREIGN_HOLD = "its owner or an operator holds it"


@dataclass
class Mover:
    """Carries out the stops and starts of one round."""

    slurm: SlurmAdapter
    ledger: Ledger
    settings: BackendSettings
    # Sleeps for a number of seconds.
    pause: Callable[[float], None]
    now_s: Callable[[], float]
    # What was made of `state`, and of both the plan.
    seen: Observation
    state: SlurmState
    _outcomes: Outcomes = field(default_factory=dict, init=False)
    # The cores and memory that each pin asks for.
    _asked: dict[Start, tuple[str, ...]] = field(default_factory=dict, init=False)

    def stop(self, stops: Sequence[Stop]) -> Outcomes:
        """Take jobs off their GPUs, all at once, and return the outcome of each."""
        if not stops:
            return {}
        reported = self._on_reported_nodes(stops)
        queue = self._queue([stop.job_id for stop in reported])
        to_save, unsignalled = dict[Stop, Event](), dict[Stop, Event]()
        to_hold, held = dict[Stop, Event](), list[Stop]()
        for stop in reported:
            row = queue.get(stop.job_id)
            if row is None or row.state not in ("RUNNING", "PENDING"):
                self._defer([stop], _state_now(row))
            elif row.is_held_by_operator or row.is_held_as_it_runs:
                self._defer([stop], _FOREIGN_HOLD)  # our hold would replace it
            elif row.state == "RUNNING":
                report, claim = self._report(row), self.ledger[stop.job_id]
                if why := stoppable.why_not_migrated(row, report, claim, self.now_s()):
                    self._defer([stop], why)
                elif stoppable.bound_s(row):
                    unsignalled[stop] = self._requeue(row)
                else:
                    own = stoppable.own_signal(row)
                    until_s = self.now_s() + (own.before_s if own else self.settings.grace_s)
                    # A hadard that was killed since may have sent it in this run already.
                    if own and claim.signalled_run == row.restarts + 1:
                        until_s = claim.signalled_until_s
                        unsignalled[stop] = self._event(Kind.SAVE, row, until_s=until_s)
                    else:
                        to_save[stop] = self._event(Kind.SAVE, row, until_s=until_s)
            elif row.is_held_by_user:
                held.append(stop)
            else:
                to_hold[stop] = self._event(Kind.HOLD, row)
        held += self._carry_out(to_hold)
        saving = unsignalled | {stop: to_save[stop] for stop in self._carry_out(to_save)}
        self._await_pending(held, self.now_s())
        requeued = self._requeue_when_saved(saving)
        self._await_pending(requeued, self.now_s() + _LEAVE_S)
        return {stop: self._outcomes[stop] for stop in stops}

    def start(self, starts: Sequence[Start]) -> Outcomes:
        """Pin jobs to free GPUs and release them, and return the outcome of each."""
        if not starts:
            return {}
        pinned: dict[Start, bool] = {}
        try:
            reading = self.slurm.read()
            free = reading.free
            for some in in_parts(starts, at_once(self.slurm.rpcs_per_s, rpcs=8)):
                jobs = {start.job_id for start in some}
                reading = reading.updated(jobs, self.ledger.read_again(self.slurm, jobs))
                pinned |= self._pin(self._startable(some, reading, free), reading)
        except SlurmUnavailable as error:
            self._defer({*starts} - pinned.keys() - self._outcomes.keys(), str(error))
        self._release_if_pinned(pinned)
        return {start: self._outcomes[start] for start in starts}

    def hold_timed_out(self, jobs: Collection[JobId]) -> None:
        """Hold jobs whose pins have timed out; the next round retries failures."""
        if not jobs:
            return
        queue = self._queue(jobs)
        # A job may have started since, or have a foreign hold, which ours must not replace.
        waiting = [queue[job] for job in jobs if job in queue and not queue[job].is_held]
        holds = {r.key: self._event(Kind.HOLD, r) for r in waiting if r.state == "PENDING"}
        try:
            faults = self.ledger.carry_out(self.slurm, holds)
        except LedgerError as error:
            log.warning("%s", error)
            return
        for fault in faults.values():
            log.warning("cannot hold: %s", fault)

    def _requeue_when_saved(self, saving: dict[Stop, Event]) -> list[Stop]:
        """Requeue jobs as they acknowledge, or at the end of their grace; return those requeued."""
        asked_s = self.now_s()
        requeued, waiting = list[Stop](), saving
        while waiting:
            queue, asked, waiting = self._queue(), waiting, {}
            ready = dict[Stop, Event]()
            for stop, event in asked.items():
                follows = self._after_signal(event, queue.get(stop.job_id))
                if isinstance(follows, Event):
                    ready[stop] = follows
                elif follows:
                    self._defer([stop], follows)
                else:
                    waiting[stop] = event
            sure = {stop: ready[stop] for stop in self._on_reported_nodes(ready)}
            for stop in self._carry_out(sure):
                requeued.append(stop)
                if stoppable.bound_s(sure[stop].row):
                    self._set(stop, Status.DONE, "requeued without a signal")
                elif sure[stop].is_late:
                    own = stoppable.own_signal(sure[stop].row)
                    grace_s = own.before_s if own else self.settings.grace_s
                    self._set(stop, Status.DONE, f"not saved within {grace_s:g} s")
            if waiting and self.now_s() >= asked_s + _ASK_EVERY_S:
                asked_s = self.now_s()
                again = {stop: e for stop, e in waiting.items() if not stoppable.own_signal(e.row)}
                refused = again.keys() - {*self._carry_out(again)}
                waiting = {stop: e for stop, e in waiting.items() if stop not in refused}
            if waiting:
                self.pause(_POLL_S)
        return requeued

    def _after_signal(self, asked: Event, row: QueueRow | None) -> Event | str:
        """Return what follows a signal to save: a change, why none is made, or "" to wait on."""
        # A requeue would restart a job that was cancelled: check immediately before it.
        if row is None or row.state not in _RUNS or row.restarts != asked.row.restarts:
            if row and stoppable.own_signal(asked.row) and self.now_s() < asked.until_s + _LEAVE_S:
                if row.state == "COMPLETING":
                    return ""
                if row.state == "PENDING" and not row.is_held:  # it has requeued itself
                    return self._event(Kind.HOLD, row)
            return _state_now(row)
        if row.is_held_as_it_runs or not row.may_requeue:
            return _FOREIGN_HOLD if row.may_requeue else stoppable.NEVER_REQUEUED
        is_unsaved = not self._has_saved(row)
        if is_unsaved and self.now_s() < asked.until_s:
            return ""
        return replace(self._requeue(row), is_late=is_unsaved)

    def _on_reported_nodes(self, stops: Collection[Stop]) -> list[Stop]:
        """Return the stops that may be done now, and defer the others.

        Slurm 22.05.8 never again gives GPUs to a job that was requeued while one of its nodes had
        not yet reported to a slurmctld that had just started.
        """
        if not stops:
            return []
        try:
            silent = {row.node.name for row in self.slurm.nodes() if not row.has_reported}
        except SlurmUnavailable as error:
            self._defer(stops, str(error))
            return []
        late = [stop for stop in stops if not silent.isdisjoint(stop.gang.gpus_by_node)]
        for stop in late:
            self._defer([stop], f"{stop.gang} has a node that has not reported to slurmctld")
        return [stop for stop in stops if stop not in late]

    def _has_saved(self, row: QueueRow) -> bool:
        """Return whether this run of the job has reported that its checkpoint is written."""
        report = self._report(row)
        return report is not None and (report.state, report.restart) == ("saved", row.restarts)

    def _report(self, row: QueueRow) -> ProgressReport | None:
        with suppress(ReportError):
            return read_report(self.settings.spool, row.raw_id, owner_uid=row.user_id)
        return None

    def _await_pending(self, leaving: Sequence[Stop], deadline_s: float) -> None:
        """Wait until jobs are pending and held: Slurm drops earlier changes without an error."""
        until_s = dict.fromkeys(leaving, deadline_s)
        while leaving:
            queue, waiting, now_s = self._queue(), [], self.now_s()
            for stop in leaving:
                row = queue.get(stop.job_id)
                if row is not None and row.is_held_by_user:
                    self._outcomes.setdefault(stop, Outcome(stop, Status.DONE))
                elif row and row.state in ("PENDING", "COMPLETING") and now_s < until_s[stop]:
                    if row.state == "PENDING":
                        until_s[stop] = min(until_s[stop], now_s + _UNHELD_S)
                    waiting.append(stop)
                else:
                    self._defer([stop], _state_now(row))
            if leaving := waiting:
                self.pause(_POLL_S)

    def _startable(
        self, starts: Sequence[Start], reading: SlurmState, free: Counter[Slot]
    ) -> dict[Start, QueueRow]:
        """Return the jobs that may be pinned to GPUs which are `free`; defer the others."""
        rows: dict[Start, QueueRow] = {}
        for start in starts:
            row = reading.queue.get(start.job_id)
            if row is None or row.state != "PENDING":
                self._defer([start], f"it is {row.state if row else 'gone'} and not pending")
            elif why := self._why_not_pinned(start, row, reading, free):
                self._defer([start], why)
            else:
                rows[start] = row
                free.subtract(dict(start.gang.slots))
        return rows

    def _why_not_pinned(
        self, start: Start, row: QueueRow, reading: SlurmState, free: Counter[Slot]
    ) -> str:
        """Return why a pending job must not be pinned now; empty: it may be."""
        claim = self.ledger[row.key]
        if row.is_held and not claim.holds:
            return _FOREIGN_HOLD
        if row.requested_nodes and not claim.pins(row.requested_nodes):
            return "its owner has named nodes for it"
        if row.key in reading.unseen or is_edited(self.state, reading, row.key, claim):
            return "its owner has changed it since the plan was made"
        if not start.gang.gpus_by_node.keys() <= reading.cluster.open_names:
            return f"{start.gang} has a node that takes no work now"
        if any(free.get(slot, 0) < count for slot, count in start.gang.slots):
            return f"{start.gang} is not free yet"
        return ""

    def _pin(self, rows: Mapping[Start, QueueRow], reading: SlurmState) -> dict[Start, bool]:
        """Make held jobs request their gangs; return the successes, and which name the GPU type."""
        names, pins = dict[Start, bool](), dict[Start, Event]()
        keeps_types = self.slurm.abilities.keeps_types
        for start, row in rows.items():
            named = self.ledger[row.key].named_types(row) if keeps_types else frozenset()
            names[start] = names_type = must_name_type(named, start.gang, reading.cluster)
            request = request_for(start.gang, self.slurm.version, names_type=names_type)
            request = self._with_sizes(request, start, row, reading)
            shown, on = reading.shown(row.key), self.seen.limits_s.get(row.key, {})
            pins[start] = self._event(
                Kind.PIN,
                row,
                own=reading.request(row),
                request=request,
                shown=shown,
                own_excluded=self.ledger.excluded_by_owner(row, shown["excluded"]),
                limit_s=new_time_limit_s(on, start.gang.gpus_by_type, shown["limit_s"] or 0.0),
            )
        self._asked = {start: event.request.sizes for start, event in pins.items()}
        return {start: names[start] for start in self._carry_out(pins)}

    def _with_sizes(
        self, request: Request, start: Start, row: QueueRow, reading: SlurmState
    ) -> Request:
        """Return a request with the cores and the memory of a copy on its type.

        Where hadard does not know its owner's, it could not put them back and changes none.
        """
        description = self.seen.by_type.get(start.job_id)
        own = self.ledger[row.key].own or reading.request(row)
        if description is None or not any(own.sizes):
            return request
        from hadar_slurm.jobspec.cores_memory import with_sizes

        gpu_type = next(iter(start.gang.gpus_by_type)).lower()
        cores, memory_mb = description.cores.get(gpu_type), description.memory_mb.get(gpu_type)
        return with_sizes(request, own, cores=cores, memory_mb=memory_mb)

    def _release_if_pinned(self, pinned: Mapping[Start, bool]) -> None:
        """Release the jobs whose request (`_pin`) Slurm shows: Slurm may ignore an update."""
        queue = self._queue() if pinned else {}
        shown = self._shown_sizes(pinned)
        ready: dict[Start, Event] = {}
        for start, names_type in pinned.items():
            row = queue.get(start.job_id)
            if row is None or row.state != "PENDING":
                self._defer([start], _state_now(row))
            elif row.is_held_by_operator:
                self._defer([start], "an operator holds it")
            elif (sizes := self._asked.get(start)) and shown.get(start, sizes) != sizes:
                from hadar_slurm.jobspec.cores_memory import size_words

                self._set(start, Status.REFUSED, f"Slurm kept {size_words(shown[start])}")
            # The number of nodes is not compared: squeue shows that of the job's last run.
            elif (
                set(row.requested_nodes) == set(start.gang.gpus_by_node)
                and row.gpus_per_node == requested_gpus(start.gang, names_type=names_type)
                and not row.gpus_otherwise
            ):
                ready[start] = self._event(Kind.RELEASE, row)
            else:
                why = f"Slurm kept another request: nodes {','.join(row.requested_nodes)}, "
                why += f"{row.gpus_per_node} a node, {row.gpus_otherwise} otherwise"
                self._set(start, Status.REFUSED, why)
        # The ledger keeps the holds until a reading shows that they are gone.
        for start in self._carry_out(ready):
            self._set(start, Status.DONE)

    def _shown_sizes(self, starts: Iterable[Start]) -> dict[Start, tuple[str, ...]]:
        """Return the cores and memory that Slurm shows of copies for which they were set."""
        asked = [start for start in starts if any(self._asked.get(start, ()))]
        if not asked:
            return {}
        sizes: Mapping[JobId, tuple[str, ...]] = {}
        with suppress(SlurmUnavailable):
            sizes = self.slurm.read().sizes
        return {start: tuple(sizes.get(start.job_id, ("",) * len(SIZES))) for start in asked}

    def _queue(self, jobs: Collection[JobId] = ()) -> dict[JobId, QueueRow]:
        """Return the queue, and update the claims of these jobs.

        It is empty while Slurm is not reachable, so that nothing is done.
        """
        with suppress(SlurmUnavailable):
            queue = self.slurm.queue()
            self.ledger.see(self.slurm, [queue[job] for job in jobs if job in queue])
            return queue
        return {}

    def _event(self, kind: Kind, row: QueueRow, **values: Any) -> Event:
        return Event(kind=kind, row=row, now_s=self.now_s(), **values)

    def _requeue(self, row: QueueRow) -> Event:
        return self._event(Kind.REQUEUE, row, kept_part=self.seen.kept.get(row.key, 0.0))

    def _carry_out(self, events: Mapping[Moved, Event]) -> list[Moved]:
        """Record events and make their updates; return the actions that succeeded, defer others."""
        try:
            faults = self.ledger.carry_out(self.slurm, {a.job_id: e for a, e in events.items()})
        except LedgerError as error:
            self._defer(events, str(error))
            return []
        for action in events:
            if fault := faults.get(action.job_id):
                is_refused = isinstance(fault, SlurmRefused)
                self._set(action, Status.REFUSED if is_refused else Status.DEFERRED, str(fault))
        return [action for action in events if action.job_id not in faults]

    def _defer(self, actions: Iterable[Action], why: str) -> None:
        for action in actions:
            self._set(action, Status.DEFERRED, why)

    def _set(self, action: Action, status: Status, detail: str = "") -> None:
        self._outcomes[action] = Outcome(action, status, detail)


def _state_now(row: QueueRow | None) -> str:
    return f"it is {row.state if row else 'not in the queue'} now"
