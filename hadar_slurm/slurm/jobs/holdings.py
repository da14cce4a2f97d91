"""The GPUs that jobs hold, against those that Slurm lists.

Both can differ while jobs run: a node is hidden, removed or gets fewer GPUs, or its GPUs get
another type. What a job holds is then occupied, and the job is not planned. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from hadar_slurm.core.cluster import Cluster, JobId, Slot
from hadar_slurm.core.gang import Gang
from hadar_slurm.slurm.client.state import SlurmState


def unlisted(state: SlurmState) -> frozenset[JobId]:
    """Return the jobs that hold GPUs which Slurm does not list, or lists fewer of."""
    cluster, gangs = state.cluster, state.gangs
    used = _listed(cluster, gangs.values())
    over = {slot for slot, count in used.items() if count > cluster.capacity[slot]}
    return frozenset(
        job
        for job, gang in gangs.items()
        if any(slot not in cluster.capacity or slot in over for slot, _ in gang.slots)
    )


def occupied(state: SlurmState, planned: Iterable[JobId]) -> Counter[Slot]:
    """Return the GPUs that a plan cannot use: those of all jobs but the ones `planned`.

    Nodes of which jobs have all cores are occupied: of no use are their free GPUs.
    """
    capacity, own = state.cluster.capacity, set(planned)
    used = _listed(state.cluster, (gang for job, gang in state.gangs.items() if job not in own))
    used.update({slot: n for slot, n in state.shared.items() if slot in capacity})
    if full := {row.node.name for row in state.nodes if row.is_full}:
        kept = _listed(state.cluster, (state.gangs[job] for job in own if job in state.gangs))
        used |= {slot: n - kept[slot] for slot, n in capacity.items() if slot.node in full}
    return Counter({slot: min(count, capacity[slot]) for slot, count in used.items()})


def _listed(cluster: Cluster, gangs: Iterable[Gang]) -> Counter[Slot]:
    """Return how many GPUs of each listed slot are held; a type not listed counts as any."""
    used: Counter[Slot] = Counter()
    for gang in gangs:
        for slot, count in gang.slots:
            if slot in cluster.capacity:
                used[slot] += count
            elif slot.node in cluster.by_name:
                used.update({each: count for each, _ in cluster.by_name[slot.node].slots})
    return used
