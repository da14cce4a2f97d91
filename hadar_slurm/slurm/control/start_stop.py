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
from functools import partial
from pathlib import Path
from typing import TypeVar

from hadar_slurm.core.cluster import Cluster, JobId, NodeName, Slot
from hadar_slurm.core.gang import Gang
from hadar_slurm.engine.actions import Action, Outcome, Start, Status, Stop
from hadar_slurm.errors import LedgerError, SlurmRefused, SlurmUnavailable
from hadar_slurm.handoff import ProgressReport, ReportError, read_report
from hadar_slurm.jobspec.description import decode_or_none
from hadar_slurm.slurm.client import updates
from hadar_slurm.slurm.client.parse import QueueRow
from hadar_slurm.slurm.client.protocol import SlurmAdapter
from hadar_slurm.slurm.client.scontrol import request_for, requested_gpus
from hadar_slurm.slurm.client.state import SlurmState
from hadar_slurm.slurm.control.checkpoint_signal import why_not_migrated
from hadar_slurm.slurm.control.disposition import has_foreign_hold, is_pinned_by_us
from hadar_slurm.slurm.control.ledger import Ledger

# How long a requeued job may take to leave its nodes; Slurm's KillWait is 30 s by default.
_LEAVE_S = 45.0
_POLL_S = 0.1
# A signal may be lost, for example while a program replaces its handlers.
_ASK_EVERY_S = 1.0

# The second while Slurm hands out a signal (22.05.8).
_RUNS = ("RUNNING", "SIGNALING")

log = logging.getLogger(__name__)

Outcomes = dict[Action, Outcome]
Moved = TypeVar("Moved", Start, Stop)
Value = TypeVar("Value")
_ChangeKind = type[updates.Hold | updates.Release | updates.Requeue | updates.SignalCheckpoint]
_FOREIGN_HOLD = "its owner or an operator holds it"


@dataclass
class Mover:
    """Carries out the stops and starts of one round."""

    slurm: SlurmAdapter
    ledger: Ledger
    # The directory of progress reports.
    spool: Path
    # How long jobs may take to save.
    grace_s: float
    # Sleeps for a number of seconds.
    pause: Callable[[float], None]
    now_s: Callable[[], float]
    _outcomes: Outcomes = field(default_factory=dict)

    def stop(self, stops: Sequence[Stop]) -> Outcomes:
        """Take jobs off their GPUs, all at once, and return the outcome of each."""
        reported = self._on_reported_nodes(stops)
        queue = self._queue() if reported else {}
        to_save: dict[Stop, int] = {}
        to_hold: dict[Stop, tuple[NodeName, ...]] = {}
        held: list[Stop] = []
        for stop in reported:
            row = queue.get(stop.job_id)
            if row is None or row.state not in ("RUNNING", "PENDING"):
                self._defer([stop], _state_now(row))
            elif row.is_held_by_operator or row.is_held_as_it_runs:
                self._defer([stop], _FOREIGN_HOLD)  # our hold would replace it
            elif row.state == "RUNNING":
                if why := why_not_migrated(row, self._report(row), self.ledger[stop.job_id]):
                    self._defer([stop], why)
                else:
                    to_save[stop] = row.restarts
            elif row.is_held_by_user:
                held.append(stop)
            else:
                to_hold[stop] = row.requested_nodes
        held += self._try(self._recorded(to_hold, self.ledger.record_intended_holds), updates.Hold)
        signals = partial(self.ledger.record_intended_signals, until_s=self.now_s() + self.grace_s)
        signalled = self._try(self._recorded(to_save, signals), updates.SignalCheckpoint)
        self._await_pending(held, self.now_s())
        requeued = self._requeue_when_saved({stop: to_save[stop] for stop in signalled})
        self._await_pending(requeued, self.now_s() + _LEAVE_S)
        return {stop: self._outcomes[stop] for stop in stops}

    def start(self, starts: Sequence[Start]) -> Outcomes:
        """Pin jobs to free GPUs and release them, and return the outcome of each."""
        if not starts:
            return {}
        try:
            reading = self.slurm.read()
        except SlurmUnavailable as error:
            return {start: Outcome(start, Status.DEFERRED, str(error)) for start in starts}
        self._release_if_pinned(self._pin(self._startable(starts, reading), reading))
        return {start: self._outcomes[start] for start in starts}

    def hold_timed_out(self, jobs: Collection[JobId]) -> None:
        """Hold jobs whose pins have timed out; the next round retries failures."""
        queue = self._queue() if jobs else {}
        # A job may have started since, or have a foreign hold, which ours must not replace.
        waiting = [queue[job] for job in jobs if job in queue and not queue[job].is_held]
        asked = {row.key: row.requested_nodes for row in waiting if row.state == "PENDING"}
        try:
            self.ledger.record_intended_holds(asked)
        except LedgerError as error:
            log.warning("%s", error)
            return
        faults = self.slurm.change([updates.Hold(job) for job in asked]) if asked else ()
        for fault in filter(None, faults):
            log.warning("cannot hold: %s", fault)

    def _requeue_when_saved(self, saving: dict[Stop, int]) -> list[Stop]:
        """Requeue jobs as they acknowledge, or at the end of their grace; return those requeued."""
        asked_s = self.now_s()
        deadline_s = asked_s + self.grace_s
        requeued: list[Stop] = []
        waiting = saving
        while waiting:
            is_late = self.now_s() >= deadline_s
            queue, running, waiting = self._queue(), waiting, {}
            ready: dict[Stop, bool] = {}
            for stop, restarts in running.items():
                row = queue.get(stop.job_id)
                # A requeue would restart a job that was cancelled: check immediately before it.
                if row is None or row.state not in _RUNS or row.restarts != restarts:
                    self._defer([stop], _state_now(row))
                elif row.is_held_as_it_runs:
                    self._defer([stop], _FOREIGN_HOLD)
                elif is_late or self._has_saved(row):
                    ready[stop] = self._has_saved(row)
                else:
                    waiting[stop] = restarts
            sure = {stop: saving[stop] for stop in self._on_reported_nodes(ready)}
            recorded = self._recorded(sure, self.ledger.record_intended_requeues)
            for stop in self._try(recorded, updates.Requeue):
                requeued.append(stop)
                if not ready[stop]:
                    self._set(stop, Status.DONE, f"not saved within {self.grace_s:g} s")
            if waiting and self.now_s() >= asked_s + _ASK_EVERY_S:
                asked_s = self.now_s()
                waiting = {s: waiting[s] for s in self._try(waiting, updates.SignalCheckpoint)}
            if waiting:
                self.pause(_POLL_S)
        return requeued

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
            return read_report(self.spool, row.raw_id, owner_uid=row.user_id)
        return None

    def _await_pending(self, leaving: Sequence[Stop], deadline_s: float) -> None:
        """Wait until jobs are pending and held: Slurm drops earlier changes without an error."""
        while leaving:
            queue, waiting = self._queue(), []
            for stop in leaving:
                row = queue.get(stop.job_id)
                if row is not None and row.is_held_by_user:
                    self._outcomes.setdefault(stop, Outcome(stop, Status.DONE))
                elif row is not None and row.state in ("PENDING", "COMPLETING", "RUNNING"):
                    waiting.append(stop)
                else:
                    self._defer([stop], _state_now(row))
            if waiting and self.now_s() >= deadline_s:
                self._defer(waiting, "it is still on its nodes")
                return
            if leaving := waiting:
                self.pause(_POLL_S)

    def _startable(self, starts: Sequence[Start], reading: SlurmState) -> dict[Start, QueueRow]:
        """Return the jobs that may be pinned to GPUs which no job holds; defer the others."""
        free = Counter(reading.cluster.capacity)
        free.subtract(reading.in_use)
        rows: dict[Start, QueueRow] = {}
        for start in starts:
            row = reading.queue.get(start.job_id)
            if row is None or row.state != "PENDING":
                self._defer([start], f"it is {row.state if row else 'gone'} and not pending")
            elif why := self._why_not_pinned(start, row, reading.cluster, free):
                self._defer([start], why)
            else:
                rows[start] = row
                free.subtract(dict(start.gang.slots))
        return rows

    def _why_not_pinned(
        self, start: Start, row: QueueRow, cluster: Cluster, free: Counter[Slot]
    ) -> str:
        """Return why a pending job must not be pinned now; empty: it may be."""
        # A user may have changed the job during the stops; that change stays.
        if has_foreign_hold(row, decode_or_none(row.comment), self.ledger):
            return _FOREIGN_HOLD
        if row.requested_nodes and not is_pinned_by_us(row, self.ledger):
            return "its owner has named nodes for it"
        if not all(cluster.by_name[name].is_schedulable for name in start.gang.gpus_by_node):
            return f"{start.gang} has a node that takes no work now"
        if any(free.get(slot, 0) < count for slot, count in start.gang.slots):
            return f"{start.gang} is not free yet"
        return ""

    def _pin(self, rows: Mapping[Start, QueueRow], reading: SlurmState) -> dict[Start, bool]:
        """Make held jobs request their gangs; return the successes, and which name the GPU type."""
        entries = {
            start: replace(
                self.ledger[start.job_id],
                is_held=True,
                # The request before the first pin; later ones are set by hadard.
                before=self.ledger[start.job_id].before or reading.request(row),
                pinned=tuple(start.gang.gpus_by_node),
                asked_when_held=row.requested_nodes,
            )
            for start, row in rows.items()
        }
        names: dict[Start, bool] = {}
        batch: list[tuple[Start, updates.Update]] = []
        for start in self._recorded(entries, self.ledger.note):
            job, row = start.job_id, rows[start]
            names[start] = must_name_type(
                row, start.gang, reading.cluster, keeps_types=self.slurm.abilities.keeps_types
            )
            request = request_for(start.gang, self.slurm.version, names_type=names[start])
            ask = updates.SetRequest(job, request, begins_soon=row.restarts > 0)
            # Hold again: its owner may have released the job since the last read, and Slurm would
            # then start it without a GPU between the other two changes.
            batch += [(start, c) for c in (updates.Hold(job), updates.ClearRequest(job), ask)]
        failed = self._change(batch)
        return {start: name for start, name in names.items() if start not in failed}

    def _release_if_pinned(self, pinned: Mapping[Start, bool]) -> None:
        """Release the jobs whose request (`_pin`) Slurm shows: Slurm may ignore an update."""
        queue = self._queue() if pinned else {}
        ready: list[Start] = []
        for start, names_type in pinned.items():
            row = queue.get(start.job_id)
            if row is None or row.state != "PENDING":
                self._defer([start], _state_now(row))
            elif row.is_held_by_operator:
                self._defer([start], "an operator holds it")
            # The number of nodes is not compared: squeue shows that of the job's last run.
            elif (
                set(row.requested_nodes) == set(start.gang.gpus_by_node)
                and row.gpus_per_node == requested_gpus(start.gang, names_type=names_type)
                and not row.gpus_otherwise
            ):
                ready.append(start)
            else:
                why = f"Slurm kept another request: nodes {','.join(row.requested_nodes)}, "
                why += f"{row.gpus_per_node} a node, {row.gpus_otherwise} otherwise"
                self._set(start, Status.REFUSED, why)
        # Our hold is in place now. A job pinned to the nodes that it requested before must not keep
        # them as `asked_when_held`: a hold that its owner sets right after the start would then
        # count as ours.
        known = {
            start: replace(self.ledger[start.job_id], asked_when_held=None)
            for start in ready
            if set(self.ledger[start.job_id].asked_when_held or ()) == set(start.gang.gpus_by_node)
        }
        recorded = self._recorded(known, self.ledger.note)
        ready = [start for start in ready if start not in known or start in recorded]
        # The ledger keeps the holds until an observation shows that they are gone.
        for start in self._try(ready, updates.Release):
            self._set(start, Status.DONE)

    def _queue(self) -> dict[JobId, QueueRow]:
        """Return the queue; an empty one while Slurm is not reachable, so that nothing is done."""
        with suppress(SlurmUnavailable):
            return self.slurm.queue()
        return {}

    def _recorded(
        self, values: Mapping[Moved, Value], record: Callable[[dict[JobId, Value]], None]
    ) -> list[Moved]:
        """Write the ledger with `record` and return the actions; if that fails, defer them all."""
        try:
            record({action.job_id: value for action, value in values.items()})
        except LedgerError as error:
            self._defer(values, str(error))
            return []
        return list(values)

    def _try(self, actions: Collection[Moved], kind: _ChangeKind) -> list[Moved]:
        """Make one kind of change for every action, and return those that succeeded."""
        failed = self._change([(action, kind(action.job_id)) for action in actions])
        return [action for action in actions if action not in failed]

    def _change(self, batch: Sequence[tuple[Moved, updates.Update]]) -> set[Moved]:
        """Make changes in one batch; return the actions one of whose changes failed."""
        failed: set[Moved] = set()
        faults = self.slurm.change([change for _, change in batch]) if batch else ()
        for (action, _), fault in zip(batch, faults, strict=True):
            if fault is not None and action not in failed:
                failed.add(action)
                is_refused = isinstance(fault, SlurmRefused)
                self._set(action, Status.REFUSED if is_refused else Status.DEFERRED, str(fault))
        return failed

    def _defer(self, actions: Iterable[Action], why: str) -> None:
        for action in actions:
            self._set(action, Status.DEFERRED, why)

    def _set(self, action: Action, status: Status, detail: str = "") -> None:
        self._outcomes[action] = Outcome(action, status, detail)


def _state_now(row: QueueRow | None) -> str:
    return f"it is {row.state if row else 'not in the queue'} now"


def must_name_type(row: QueueRow, gang: Gang, cluster: Cluster, *, keeps_types: bool) -> bool:
    """Return whether the request for `gang` has to name its GPU type.

    On a node with several types Slurm cannot know it otherwise; and where Slurm keeps types, a
    request that has named one cannot become untyped again.
    """
    is_ambiguous = any(not cluster.by_name[name].has_one_type for name in gang.gpus_by_node)
    is_tied = keeps_types and bool(row.named_types)
    return len(gang.gpus_by_type) == 1 and (is_ambiguous or is_tied)
