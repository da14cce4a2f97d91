"""Mode `advise` sets the GPU type that pending jobs prefer; `observe` changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from hadar_slurm.core.cluster import JobId
from hadar_slurm.engine.actions import Action, Outcome, Start, Status
from hadar_slurm.errors import LedgerError
from hadar_slurm.slurm.client.parse import NodeRow
from hadar_slurm.slurm.client.protocol import SlurmAdapter
from hadar_slurm.slurm.client.state import SlurmState
from hadar_slurm.slurm.enforce.ledger import Ledger
from hadar_slurm.slurm.enforce.state_machine import Event, Kind


@dataclass
class Observing:
    """Changes nothing; `text` returns the commands of an action."""

    text: Callable[[Action], str]

    def carry_out(self, actions: Sequence[Action]) -> Mapping[Action, Outcome]:
        """Return what would be done."""
        return {a: Outcome(a, Status.SKIPPED, self.text(a)) for a in actions}


@dataclass
class Advising:
    """Sets preferences, and nothing else."""

    slurm: SlurmAdapter
    ledger: Ledger
    state: SlurmState

    def carry_out(self, actions: Sequence[Action]) -> Mapping[Action, Outcome]:
        """Set the preference of jobs to the GPU type that they would be started on now.

        A preference delays no job: Slurm ignores one that it cannot follow. Jobs that run or
        already have this preference are not changed.
        """
        state, features = self.state, _features_by_type(self.state.nodes)
        outcomes = {a: Outcome(a, Status.SKIPPED, "no advice for it") for a in actions}
        wishes: dict[JobId, Event] = {}
        for action in actions:
            gpu_types = list(action.gang.gpus_by_type) if isinstance(action, Start) else []
            feature = features.get(gpu_types[0].lower(), "") if len(gpu_types) == 1 else ""
            row, preferred = state.queue.get(action.job_id), self.ledger[action.job_id].preferred
            if not feature or row is None or preferred.is_kept:
                continue
            outcomes[action] = Outcome(action, Status.DONE, f"prefers {feature}")
            if preferred.ours != feature:
                event = Event(kind=Kind.PREFER, row=row, own=state.request(row), features=feature)
                wishes[row.key] = replace(event, shown=state.shown(row.key))
        try:
            # A refused preference is tried again.
            faults = self.ledger.attempt(self.slurm, wishes) if wishes else {}
        except LedgerError as error:
            return {a: Outcome(a, Status.DEFERRED, str(error)) for a in actions}
        refused = {a: str(faults[a.job_id]) for a in actions if a.job_id in faults}
        return outcomes | {a: Outcome(a, Status.REFUSED, why) for a, why in refused.items()}


def _features_by_type(nodes: Sequence[NodeRow]) -> dict[str, str]:
    """Return the feature named after each GPU type that all nodes with the type have."""
    found: dict[str, frozenset[str]] = {}
    for row in nodes:
        for gpu_type, _ in row.node.gpus:
            named = frozenset(f for f in row.features if f.lower() == gpu_type.lower())
            found[gpu_type.lower()] = found.get(gpu_type.lower(), named) & named
    return {gpu_type: min(named) for gpu_type, named in found.items() if named}
