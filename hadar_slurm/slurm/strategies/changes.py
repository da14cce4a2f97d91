"""What stops and starts have in common: each change is recorded, made in a batch, and read back."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from hadar_slurm.core.cluster import JobId
from hadar_slurm.engine.actions import Action, Outcome, Start, Status, Stop
from hadar_slurm.errors import LedgerError, SlurmRefused, SlurmUnavailable
from hadar_slurm.slurm.client.parse import QueueRow
from hadar_slurm.slurm.client.protocol import SlurmAdapter
from hadar_slurm.slurm.client.state import SlurmState
from hadar_slurm.slurm.enforce.ledger import Ledger
from hadar_slurm.slurm.enforce.state_machine import Event, Kind
from hadar_slurm.slurm.jobs.observation import Observation
from hadar_slurm.slurm.settings import BackendSettings

log = logging.getLogger(__name__)

Outcomes = dict[Action, Outcome]
Moved = TypeVar("Moved", Start, Stop)
FOREIGN_HOLD = "its owner or an operator holds it"


@dataclass
class Changes:
    """Makes the changes of one round, and has the outcome of each action."""

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

    @property
    def shared(self) -> dict[str, Any]:
        """Return what the strategies of one round share, by name."""
        return {each.name: getattr(self, each.name) for each in fields(Changes) if each.init}

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


def state_now(row: QueueRow | None) -> str:
    """Return the state of a job in words."""
    return f"it is {row.state if row else 'not in the queue'} now"
