"""Stopping and starting jobs on a real Slurm, in batches, every change written down and read back.

The order of things was measured (docs/slurm.md): a running job is asked to save, acknowledges, is
requeued with a user hold, changed only once it is pending again, then released.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from hadar_slurm.core.cluster import Cluster, JobId, NodeName, Slot
from hadar_slurm.core.gang import Gang
from hadar_slurm.engine.actions import Action, Outcome, Start, Status, Stop
from hadar_slurm.errors import LedgerError, SlurmError, SlurmRefused, SlurmUnavailable
from hadar_slurm.handoff import ProgressReport, ReportError, read_report
from hadar_slurm.jobspec.description import decode_or_none
from hadar_slurm.slurm.client.parse import QueueRow
from hadar_slurm.slurm.client.protocol import SlurmAdapter
from hadar_slurm.slurm.client.scontrol import request_for, requested_gpus
from hadar_slurm.slurm.client.state import SlurmState
from hadar_slurm.slurm.client.updates import (
    ClearRequest,
    Hold,
    Release,
    Requeue,
    SetRequest,
    SignalCheckpoint,
    Update,
)
from hadar_slurm.slurm.control.checkpoint_signal import why_not_migrated
from hadar_slurm.slurm.control.claim import is_held_by_others, is_pinned_by_us, was_submitted_held
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


@dataclass
class Mover:
    """Carries out the stops and starts of one round.

    `grace_s` is how long jobs may take to save. `pause` sleeps and `now_s` reads the clock, both
    in seconds.
    """

    slurm: SlurmAdapter
    ledger: Ledger
    spool: Path
    grace_s: float
    pause: Callable[[float], None]
    now_s: Callable[[], float]
    _outcomes: Outcomes = field(default_factory=dict)

    def stop(self, stops: Sequence[Stop]) -> Outcomes:
        """Take jobs off their GPUs, all at once, and return what came of each."""
        if not stops:
            return {}
        stops_given, stops = stops, self._on_reported_nodes(stops)
        queue = self._queue() if stops else {}
        to_save: dict[Stop, int] = {}
        to_hold: dict[Stop, tuple[NodeName, ...]] = {}
        held: list[Stop] = []
        for stop in stops:
            row = queue.get(stop.job_id)
            if row is None or row.state not in ("RUNNING", "PENDING"):
                self._defer(stop, f"it is {row.state if row else 'not to be seen'} by now")
            elif row.is_held_by_operator or row.is_held_as_it_runs:
                # Our hold would replace theirs.
                self._defer(stop, "its owner or an operator holds it")
            elif row.state == "RUNNING":
                why = why_not_migrated(row, self._report(row), self.ledger[stop.job_id])
                if why:
                    self._defer(stop, why)
                else:
                    to_save[stop] = row.restarts
            elif row.is_held_by_user:
                held.append(stop)
            else:
                to_hold[stop] = row.requested_nodes
        held += self._noted(to_hold, Hold, asked=to_hold)
        saving = {stop: to_save[stop] for stop in self._ask_to_save(to_save)}
        self._await_pending(held, self.now_s())
        self._await_pending(self._requeue_when_saved(saving), self.now_s() + _LEAVE_S)
        return {stop: self._outcomes[stop] for stop in stops_given}

    def start(self, starts: Sequence[Start]) -> Outcomes:
        """Pin jobs to free GPUs and release them, and return what came of each."""
        if not starts:
            return {}
        try:
            reading = self.slurm.read()
        except SlurmUnavailable as error:
            return {start: Outcome(start, Status.DEFERRED, str(error)) for start in starts}
        free, nodes = _free_slots(reading), reading.cluster.by_name
        rows: dict[Start, QueueRow] = {}
        for start in starts:
            row = reading.queue.get(start.job_id)
            if row is None or row.state != "PENDING":
                self._defer(start, f"it is {row.state if row else 'gone'} and not pending")
            # Users may have changed the job while others were stopped; their changes stay.
            elif is_held_by_others(
                row,
                self.ledger,
                was_submitted_held=was_submitted_held(decode_or_none(row.comment)),
            ):
                self._defer(start, "its owner or an operator holds it")
            elif row.requested_nodes and not is_pinned_by_us(row, self.ledger):
                self._defer(start, "its owner has named nodes for it")
            elif not all(nodes[name].is_schedulable for name in start.gang.gpus_by_node):
                self._defer(start, f"{start.gang} has a node that takes no work now")
            elif any(free.get(slot, 0) < count for slot, count in start.gang.slots):
                self._defer(start, f"{start.gang} is not free yet")
            else:
                rows[start] = row
                free.subtract(dict(start.gang.slots))
        self._release_if_pinned(self._pin(rows, reading))
        return {start: self._outcomes[start] for start in starts}

    def hold(self, jobs: Iterable[JobId]) -> None:
        """Hold jobs whose pins have timed out; the next round retries failures."""
        jobs = list(jobs)
        queue = self._queue() if jobs else {}
        # A job may have started since, or have a foreign hold, which ours must not replace.
        waiting = [queue[job] for job in jobs if job in queue]
        asked = {
            row.key: row.requested_nodes
            for row in waiting
            if row.state == "PENDING" and not row.is_held
        }
        try:
            self.ledger.expect_holds(asked)
        except LedgerError as error:
            log.warning("%s", error)
            return
        for fault in self.slurm.change([Hold(job) for job in asked]) if asked else ():
            if fault is not None:
                log.warning("cannot hold: %s", fault)

    def _requeue_when_saved(self, saving: dict[Stop, int]) -> list[Stop]:
        """Requeue jobs as they acknowledge, or at the end of their grace; return those requeued."""
        asked_s = self.now_s()
        deadline_s = asked_s + self.grace_s
        requeued: list[Stop] = []
        waiting = dict(saving)
        while waiting:
            is_late = self.now_s() >= deadline_s
            queue = self._queue()
            ready: dict[Stop, bool] = {}
            for stop, restarts in list(waiting.items()):
                row = queue.get(stop.job_id)
                # Requeueing brings a cancelled job back to life, so look right before.
                if row is None or row.state not in _RUNS or row.restarts != restarts:
                    self._defer(stop, f"it is {row.state if row else 'not to be seen'} by now")
                elif row.is_held_as_it_runs:
                    self._defer(stop, "its owner or an operator holds it")
                elif is_late or self._has_saved(row):
                    ready[stop] = self._has_saved(row)
                else:
                    continue
                del waiting[stop]
            sure = self._on_reported_nodes(ready)
            restarted = {stop.job_id: saving[stop] for stop in sure}
            for stop in self._noted(sure, Requeue, restarts=restarted):
                requeued.append(stop)
                if not ready[stop]:
                    self._set(stop, Status.DONE, f"not saved within {self.grace_s:g} s")
            if waiting and self.now_s() >= asked_s + _ASK_EVERY_S:
                asked_s = self.now_s()
                waiting = {stop: waiting[stop] for stop in self._try(waiting, SignalCheckpoint)}
            if waiting:
                self.pause(_POLL_S)
        return requeued

    def _ask_to_save(self, restarts: Mapping[Stop, int]) -> list[Stop]:
        """Send USR1 to runs, restarted so often, once it is written down that we do."""
        until_s = self.now_s() + self.grace_s
        try:
            asked = {stop.job_id: times for stop, times in restarts.items()}
            self.ledger.expect_signals(asked, until_s)
        except LedgerError as error:
            for stop in restarts:
                self._defer(stop, str(error))
            return []
        return self._try(restarts, SignalCheckpoint)

    def _on_reported_nodes(self, stops: Collection[Stop]) -> list[Stop]:
        """Return the stops that may be done now, and defer the others.

        Slurm 22.05.8 gives no GPUs ever again to a job that was requeued while one of its nodes had
        not yet reported to slurmctld, just started.
        """
        if not stops:
            return []
        try:
            silent = {row.node.name for row in self.slurm.nodes() if not row.has_reported}
        except SlurmUnavailable as error:
            for stop in stops:
                self._defer(stop, str(error))
            return []
        sure = [stop for stop in stops if silent.isdisjoint(stop.gang.gpus_by_node)]
        for stop in stops:
            if stop not in sure:
                self._defer(stop, f"{stop.gang} has a node that has not reported to slurmctld")
        return sure

    def _has_saved(self, row: QueueRow) -> bool:
        """Return whether this very run of the job says that its checkpoint is written."""
        report = self._report(row)
        return report is not None and report.state == "saved" and report.restart == row.restarts

    def _report(self, row: QueueRow) -> ProgressReport | None:
        try:
            return read_report(self.spool, row.raw_id, owner_uid=row.user_id)
        except ReportError:
            return None

    def _await_pending(self, leaving: Sequence[Stop], deadline_s: float) -> None:
        """Wait until jobs are pending and held; until then changes would be lost in silence."""
        waiting = list(leaving)
        while waiting:
            queue = self._queue()
            for stop in list(waiting):
                row = queue.get(stop.job_id)
                if row is not None and row.is_held_by_user:
                    self._outcomes.setdefault(stop, Outcome(stop, Status.DONE))
                elif row is not None and row.state in ("PENDING", "COMPLETING", "RUNNING"):
                    continue
                else:
                    self._defer(stop, f"it is {row.state if row else 'not to be seen'} by now")
                waiting.remove(stop)
            if waiting and self.now_s() >= deadline_s:
                for stop in waiting:
                    self._defer(stop, "it is still on its nodes")
                return
            if waiting:
                self.pause(_POLL_S)

    def _pin(self, rows: Mapping[Start, QueueRow], reading: SlurmState) -> dict[Start, bool]:
        """Make pending jobs ask for exactly their gangs; they stay held.

        Returns the starts that this was done for, and whether each names its GPU type.
        """
        entries = {
            start.job_id: replace(
                self.ledger[start.job_id],
                is_held=True,
                # What it asked for before the first pin; later it is our own request.
                before=self.ledger[start.job_id].before or reading.request(row),
                pinned=tuple(start.gang.gpus_by_node),
                asked_when_held=row.requested_nodes,
            )
            for start, row in rows.items()
        }
        try:
            self.ledger.note(entries)
        except LedgerError as error:
            for start in rows:
                self._defer(start, str(error))
            return {}
        keeps_types = self.slurm.abilities.keeps_types
        names = {
            start: must_name_type(row, start.gang, reading.cluster, keeps_types=keeps_types)
            for start, row in rows.items()
        }
        batch: list[tuple[Start, Update]] = []
        for start, row in rows.items():
            job = start.job_id
            request = request_for(start.gang, self.slurm.version, names_type=names[start])
            # Held once more: its owner may have released it since we looked, and it would start
            # with no GPU between the other two.
            ask = SetRequest(job, request, begins_soon=row.restarts > 0)
            batch += [(start, change) for change in (Hold(job), ClearRequest(job), ask)]
        failed = self._change(batch)
        return {start: names[start] for start in rows if start not in failed}

    def _release_if_pinned(self, pinned: Mapping[Start, bool]) -> None:
        """Release the jobs whose request Slurm really took over; an update can lie.

        `pinned` maps each start to whether its request names the GPU type.
        """
        if not pinned:
            return
        queue = self._queue()
        ready: list[Start] = []
        for start, names_type in pinned.items():
            row = queue.get(start.job_id)
            if row is None or row.state != "PENDING":
                self._defer(start, f"it is {row.state if row else 'not to be seen'} by now")
            elif row.is_held_by_operator:
                self._defer(start, "an operator holds it")
            elif not asks_for(row, start.gang, names_type=names_type):
                self._set(
                    start,
                    Status.REFUSED,
                    f"Slurm kept another request: nodes {','.join(row.requested_nodes)}, "
                    f"{row.gpus_per_node} a node, {row.gpus_otherwise} otherwise",
                )
            else:
                ready.append(start)
        # That the holds are gone is written down when the next look shows it, not on Slurm's word.
        for start in self._try(self._in_no_doubt(ready), Release):
            self._set(start, Status.DONE)

    def _in_no_doubt(self, starts: Sequence[Start]) -> list[Start]:
        """Record that our holds are in place where the requested nodes do not show it.

        That is where a job was pinned to the very nodes that it is pinned to again: held by its
        owner right after its start, it would look as if our hold had come with that start.
        """
        told = {
            start: replace(self.ledger[start.job_id], asked_when_held=None)
            for start in starts
            if set(self.ledger[start.job_id].asked_when_held or ()) == set(start.gang.gpus_by_node)
        }
        try:
            self.ledger.note({start.job_id: entry for start, entry in told.items()})
        except LedgerError as error:
            for start in told:
                self._defer(start, str(error))
            return [start for start in starts if start not in told]
        return list(starts)

    def _queue(self) -> dict[JobId, QueueRow]:
        """Return the queue; an unreachable Slurm shows none, so that nothing is done to it."""
        try:
            return self.slurm.queue()
        except SlurmUnavailable:
            return {}

    def _noted(
        self,
        actions: Iterable[Moved],
        kind: type[Hold | Requeue],
        *,
        restarts: Mapping[JobId, int] | None = None,
        asked: Mapping[Stop, tuple[NodeName, ...]] | None = None,
    ) -> list[Moved]:
        """Hold jobs, one way or the other, once it is written down that we do.

        For a requeue, `restarts` says how often each has been restarted; for a hold, `asked` which
        nodes each asks for.
        """
        actions = list(actions)
        try:
            self.ledger.expect_holds({stop.job_id: nodes for stop, nodes in (asked or {}).items()})
            self.ledger.expect_requeues(restarts or {})
        except LedgerError as error:
            for action in actions:
                self._defer(action, str(error))
            return []
        return self._try(actions, kind)

    def _try(
        self, actions: Iterable[Moved], kind: type[Hold | Release | Requeue | SignalCheckpoint]
    ) -> list[Moved]:
        """Make one kind of change for every action, and return those it was made for."""
        actions = list(actions)
        failed = self._change([(action, kind(action.job_id)) for action in actions])
        return [action for action in actions if action not in failed]

    def _change(self, batch: Sequence[tuple[Moved, Update]]) -> set[Moved]:
        """Make changes in one batch; return the actions one of whose changes failed."""
        if not batch:
            return set()
        failed: set[Moved] = set()
        faults = self.slurm.change([change for _, change in batch])
        for (action, _), fault in zip(batch, faults, strict=True):
            if fault is not None and action not in failed:
                failed.add(action)
                self._set(action, _status(fault), str(fault))
        return failed

    def _defer(self, action: Action, why: str) -> None:
        self._set(action, Status.DEFERRED, why)

    def _set(self, action: Action, status: Status, detail: str = "") -> None:
        self._outcomes[action] = Outcome(action, status, detail)


def _status(fault: SlurmError) -> Status:
    return Status.REFUSED if isinstance(fault, SlurmRefused) else Status.DEFERRED


def must_name_type(row: QueueRow, gang: Gang, cluster: Cluster, *, keeps_types: bool) -> bool:
    """Return whether the request for `gang` has to name its GPU type.

    On a node with several types Slurm has no other way to know it; and where Slurm keeps types, a
    request that has named one cannot become untyped again.
    """
    nodes = cluster.by_name
    is_ambiguous = any(not nodes[name].has_one_type for name in gang.gpus_by_node)
    is_tied = keeps_types and bool(row.named_types)
    return len(gang.gpus_by_type) == 1 and (is_ambiguous or is_tied)


def asks_for(row: QueueRow, gang: Gang, *, names_type: bool) -> bool:
    """Return whether a job's request, as Slurm shows it, is exactly `gang`.

    The number of nodes is not compared: squeue shows that of the job's last run.
    """
    return (
        set(row.requested_nodes) == set(gang.gpus_by_node)
        and row.gpus_per_node == requested_gpus(gang, names_type=names_type)
        and not row.gpus_otherwise
    )


def _free_slots(reading: SlurmState) -> Counter[Slot]:
    """Return the GPUs in every slot that no job holds."""
    free = Counter(reading.cluster.capacity)
    free.subtract(reading.in_use)
    return free
