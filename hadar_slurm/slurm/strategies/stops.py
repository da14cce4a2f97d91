"""Stops: jobs are taken off their GPUs, all at once.

The order was measured (docs/slurm.md): a running job gets a signal to save, acknowledges, is
requeued with a user hold, changed only once it is pending again, then released.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from hadar_slurm.engine.actions import Outcome, Status, Stop
from hadar_slurm.errors import SlurmUnavailable
from hadar_slurm.job_files import ProgressReport, ReportError, read_report
from hadar_slurm.slurm.client.parse import QueueRow
from hadar_slurm.slurm.enforce import stoppable
from hadar_slurm.slurm.enforce.state_machine import Event, Kind
from hadar_slurm.slurm.strategies.changes import FOREIGN_HOLD, Changes, Outcomes, state_now

# How long a requeued job may take to leave its nodes; Slurm's KillWait is 30 s by default.
_LEAVE_S = 45.0
# How long it may be pending there without our hold; then its owner has released it.
_UNHELD_S = 2.0
_POLL_S = 0.1
# A signal may be lost, for example while a program replaces its handlers.
_ASK_EVERY_S = 1.0

# The second while Slurm hands out a signal (22.05.8).
_RUNS = ("RUNNING", "SIGNALING")


@dataclass
class Stops(Changes):
    """Carries out the stops of one round."""

    def stop(self, stops: Sequence[Stop]) -> Outcomes:
        """Take jobs off their GPUs, all at once, and return the outcome of each."""
        reported = self._on_reported_nodes(stops)
        queue = self._queue([stop.job_id for stop in reported])
        to_save, unsignalled = dict[Stop, Event](), dict[Stop, Event]()
        to_hold, held = dict[Stop, Event](), list[Stop]()
        for stop in reported:
            row = queue.get(stop.job_id)
            if row is None or row.state not in ("RUNNING", "PENDING"):
                self._defer([stop], state_now(row))
            elif row.is_held_by_operator or row.is_held_as_it_runs:
                self._defer([stop], FOREIGN_HOLD)  # our hold would replace it
            elif row.state == "RUNNING":
                report, claim = self._report(row), self.ledger[stop.job_id]
                if why := stoppable.why_not_migrated(row, report, claim, self.now_s()):
                    self._defer([stop], why)
                elif not stoppable.is_signalled(row):
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
                if not stoppable.is_signalled(sure[stop].row):
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
            return state_now(row)
        if row.is_held_as_it_runs or not row.may_requeue:
            return FOREIGN_HOLD if row.may_requeue else stoppable.NEVER_REQUEUED
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
                    self._defer([stop], state_now(row))
            if leaving := waiting:
                self.pause(_POLL_S)
