"""Mode `advise` sets the GPU type that pending jobs prefer; `observe` starts and stops nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from hadar_slurm.core.cluster import JobId
from hadar_slurm.engine.actions import Action, Outcome, Start, Status
from hadar_slurm.errors import LedgerError, SlurmUnavailable
from hadar_slurm.slurm.client.parse import NodeRow
from hadar_slurm.slurm.client.protocol import SlurmAdapter
from hadar_slurm.slurm.client.state import SlurmState
from hadar_slurm.slurm.enforce.ledger import Ledger
from hadar_slurm.slurm.enforce.state_machine import Event, Kind


@dataclass
class Observing:
    """Carries out nothing; `text` returns the commands of an action."""

    text: Callable[[Action], str]

    def carry_out(self, actions: Sequence[Action]) -> Mapping[Action, Outcome]:
        """Return what would be done."""
        return {a: Outcome(a, Status.SKIPPED, self.text(a)) for a in actions}


@dataclass
class Advising:
    """Carries out starts of jobs as preferences."""

    slurm: SlurmAdapter
    ledger: Ledger
    state: SlurmState

    def carry_out(self, actions: Sequence[Action]) -> Mapping[Action, Outcome]:
        """Set the preference of jobs to the GPU type that they would be started on now.

        A preference delays no job: Slurm ignores one that it cannot follow. Jobs that run or
        already have this preference are not changed.
        """
        features, wishes = _features_by_type(self.state.nodes), dict[JobId, str]()
        for action in actions:
            gpu_types = list(action.gang.gpus_by_type) if isinstance(action, Start) else []
            if len(gpu_types) == 1 and (feature := features.get(gpu_types[0].lower())):
                wishes[action.job_id] = feature
        try:
            events = self._events(wishes) if wishes else {}
            new = {k: e for k, e in events.items() if self.ledger[k].preferred.ours != e.features}
            # A refused preference is tried again.
            faults = self.ledger.attempt(self.slurm, new) if new else {}
        except (LedgerError, SlurmUnavailable) as error:
            return {a: Outcome(a, Status.DEFERRED, str(error)) for a in actions}
        outcomes = {a: Outcome(a, Status.SKIPPED, "no advice for it") for a in actions}
        for action in (action for action in actions if action.job_id in events):
            fault, said = faults.get(action.job_id), f"prefers {wishes[action.job_id]}"
            status = Status.REFUSED if fault else Status.DONE
            outcomes[action] = Outcome(action, status, str(fault or said))
        return outcomes

    def _events(self, wishes: Mapping[JobId, str]) -> dict[JobId, Event]:
        """Return the changes of jobs that wait, by a reading just before."""
        now, events = self.ledger.read_again(self.slurm, wishes.keys()), dict[JobId, Event]()
        for job, row in now.queue.items():
            if row.state == "PENDING" and not self.ledger[job].preferred.is_kept:
                event = Event(kind=Kind.PREFER, row=row, own=now.request(row), shown=now.shown(job))
                events[job] = replace(event, features=wishes[job])
        return events


def _features_by_type(nodes: Sequence[NodeRow]) -> dict[str, str]:
    """Return the feature named after each GPU type that all nodes with the type have."""
    found: dict[str, frozenset[str]] = {}
    for row in nodes:
        for gpu_type, _ in row.node.gpus:
            named = frozenset(f for f in row.features if f.lower() == gpu_type.lower())
            found[gpu_type.lower()] = found.get(gpu_type.lower(), named) & named
    return {gpu_type: min(named) for gpu_type, named in found.items() if named}
