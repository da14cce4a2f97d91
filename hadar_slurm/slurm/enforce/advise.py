"""Mode `advise`: sets the preferred GPU type of pending jobs; Slurm decides."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from hadar_slurm.core.cluster import JobId
from hadar_slurm.engine.actions import Action, Outcome, Start, Status
from hadar_slurm.errors import LedgerError
from hadar_slurm.slurm.client import updates
from hadar_slurm.slurm.client.parse import NodeRow, QueueRow
from hadar_slurm.slurm.client.protocol import SlurmAdapter
from hadar_slurm.slurm.enforce.ledger import Ledger
from hadar_slurm.slurm.enforce.state_machine import Event, Kind

log = logging.getLogger(__name__)


def advise(
    slurm: SlurmAdapter,
    ledger: Ledger,
    queue: Mapping[JobId, QueueRow],
    actions: Sequence[Action],
    features: Mapping[str, str],
) -> list[Outcome]:
    """Set the preference of jobs to the GPU type that they would be started on now.

    `features` maps GPU types to features of nodes. A preference delays no job: Slurm ignores one
    that it cannot follow. Jobs that run or already have this preference are not changed.
    """
    wishes: dict[Action, Event] = {}
    for action in actions:
        gpu_types = list(action.gang.gpus_by_type) if isinstance(action, Start) else []
        feature = features.get(gpu_types[0].lower(), "") if len(gpu_types) == 1 else ""
        if feature and action.job_id in queue:
            row = queue[action.job_id]
            wishes[action] = Event(kind=Kind.PREFER, row=row, features=feature)
    new = {a: wish for a, wish in wishes.items() if ledger[a.job_id].preferred != wish.features}
    asked = [updates.Prefer(a.job_id, wish.features) for a, wish in new.items()]
    faults = dict(zip(new, slurm.change(asked), strict=True)) if new else {}
    try:
        # A refused preference is tried again.
        ledger.intend({a.job_id: wish for a, wish in new.items() if faults[a] is None})
    except LedgerError as error:
        log.warning("%s", error)
    outcomes = {a: Outcome(a, Status.DONE, f"prefers {w.features}") for a, w in wishes.items()}
    outcomes |= {a: Outcome(a, Status.REFUSED, str(f)) for a, f in faults.items() if f is not None}
    return [outcomes.get(a, Outcome(a, Status.SKIPPED, "no advice for it")) for a in actions]


def features_by_type(nodes: Sequence[NodeRow]) -> dict[str, str]:
    """Return the feature named after each GPU type that all nodes with the type have."""
    found: dict[str, frozenset[str]] = {}
    for row in nodes:
        for gpu_type, _ in row.node.gpus:
            named = frozenset(f for f in row.features if f.lower() == gpu_type.lower())
            found[gpu_type.lower()] = found.get(gpu_type.lower(), named) & named
    return {gpu_type: min(named) for gpu_type, named in found.items() if named}
