"""The nodes off which a waiting job is kept where Slurm chooses among the others. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from hadar_slurm.core.cluster import Cluster, JobId, Node, NodeName
from hadar_slurm.core.gang import Gang
from hadar_slurm.core.job import Job


@dataclass(frozen=True, slots=True)
class Limit:
    """The nodes that a job must not have, and the only ones left to it, if they are chosen."""

    excluded: tuple[NodeName, ...] = ()
    aimed: tuple[NodeName, ...] = ()


def limits(
    jobs: Iterable[Job], named: Mapping[JobId, Gang], free: Collection[JobId], cluster: Cluster
) -> dict[JobId, Limit]:
    """Return the limit of each job: to its `named` gang's nodes, else those of its fastest type.

    Jobs in `free` are kept only off nodes where they cannot run.
    """
    found: dict[JobId, Limit] = {}
    # Thousands of jobs differ in a few keys only.
    known: dict[object, tuple[NodeName, ...]] = {}
    names = [node.name for node in cluster.nodes]
    for job in jobs:
        if job.job_id in free:
            found[job.job_id] = Limit(excluded=_impossible(job, cluster))
            continue
        if gang := named.get(job.job_id):
            aimed = frozenset(gang.gpus_by_node)
            if aimed not in known:
                known[aimed] = tuple([name for name in names if name not in aimed])
            found[job.job_id] = Limit(known[aimed], tuple(gang.gpus_by_node))
            continue
        key = (job.spec.throughputs, job.spec.shapes, job.allowed_nodes, job.bound_type)
        if key not in known:
            known[key] = _excluded(job, cluster)
        found[job.job_id] = Limit(excluded=known[key])
    return found


def _excluded(job: Job, cluster: Cluster) -> tuple[NodeName, ...]:
    """Return the nodes without the fastest type that has enough open nodes for a job.

    Nodes with several types as well, where Slurm would choose, also those not meant for the job.
    """
    best: tuple[float, frozenset[NodeName]] = (0.0, frozenset())
    for gpu_type, places in cluster.open_by_type.items():
        may_be = job.bound_type in (None, gpu_type)
        fitting = [n for n, _ in places if may_be and n.has_one_type and job.may_use(n.name)]
        for shape in job.spec.shapes:
            speed = job.spec.throughputs.on(gpu_type, job.spec.num_gpus, is_spread=shape.nodes > 1)
            has_room = sum(node.gpus[0][1] >= shape.gpus_per_node for node in fitting)
            if speed > best[0] and has_room >= shape.nodes:
                best = (speed, frozenset(node.name for node in fitting))
    if not best[1]:
        return _impossible(job, cluster)
    others = [n for n in cluster.nodes if n.name not in best[1]]
    narrows = any(job.may_use(n.name) for n in others)
    return tuple(n.name for n in others if narrows and (job.may_use(n.name) or len(n.gpus) > 1))


def _impossible(job: Job, cluster: Cluster) -> tuple[NodeName, ...]:
    """Return the nodes with a type on which a job does not run, unless these are all.

    On nodes with several types Slurm would choose. Slurm accepts a job that excludes all nodes, and
    never starts it.
    """
    usable = [node for node in cluster.nodes if job.may_use(node.name)]
    wrong = [node.name for node in usable if not _runs_on_all_of(job, node)]
    return tuple(wrong) if len(wrong) < len(usable) else ()


def may_wait_unheld(job: Job, cluster: Cluster, *, may_exclude: bool) -> bool:
    """Return whether Slurm can keep a job off the types on which it does not run.

    Where its owner has changed the excluded nodes since, hadard may exclude no others.
    """
    runs = [_runs_on_all_of(job, node) for node in cluster.nodes if job.may_use(node.name)]
    return any(runs) and (all(runs) or may_exclude)


def _runs_on_all_of(job: Job, node: Node) -> bool:
    return job.spec.throughputs.run_on_all((k for k, _ in node.gpus), job.spec.num_gpus)
