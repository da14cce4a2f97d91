"""Whether the cluster can hold a job, and in how many copies. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from hadar_slurm.core.cluster import Cluster
from hadar_slurm.core.job import Shape
from hadar_slurm.errors import JobSpecError
from hadar_slurm.jobspec.description import Description
from hadar_slurm.jobspec.estimator import Estimator
from hadar_slurm.submit.own_options import PREFIX

# With many more copies each step contributes less (docs/runtime.md).
AUTO_COPIES = 16


def with_copies(
    description: Description, most: int | None, estimator: Estimator, cluster: Cluster | None
) -> Description:
    """Return a forked job with the smaller of `most` copies and the nodes that suit one.

    `most` of None: as many as suit, up to AUTO_COPIES.
    """
    _check_throughputs(description.gangs, description.throughputs)
    if cluster is None:
        if most is None:
            raise JobSpecError(f"{PREFIX}copies auto: sinfo does not list the nodes; give a number")
        copies, sizes = most, {description.gpus}
    else:
        _check_nodes(description.gangs, cluster)
        copies, sizes = _suitable(description, most or AUTO_COPIES, estimator, cluster)
    if copies > 1:
        return replace(description, copies=copies)
    return in_one_copy(description, min(sizes))


def in_one_copy(description: Description, gpus: int) -> Description:
    """Return the job without further copies; of several gangs, the one of `gpus` GPUs.

    It then has throughputs on the types of that gang only.
    """
    if not description.gangs:
        return replace(description, copies=1)
    types = {gpu_type for gpu_type, size in description.gangs.items() if size == gpus}
    named = tuple(name for name in description.needs.types if name in types)
    given = {name: speed for name, speed in description.throughputs.items() if name in types}
    return replace(
        description,
        copies=1,
        gpus=gpus,
        shape=Shape(1, gpus),
        gangs={},
        cores={},
        memory_mb={},
        throughputs=given,
        needs=replace(description.needs, types=named),
    )


def _suitable(
    description: Description, most: int, estimator: Estimator, cluster: Cluster
) -> tuple[int, set[int]]:
    """Return the smaller of `most` and the number of nodes on which a copy could run.

    Also the numbers of GPUs that a copy could have there.
    """
    throughputs = estimator.throughputs(description, "", cluster.gpus_by_type)
    sizes = {name: description.gpus_on(name) for name in cluster.gpus_by_type}
    runs_on = {name for name, size in sizes.items() if throughputs.on(name, size) > 0}
    suits = [
        {sizes[name] for name, n in node.gpus if n >= sizes[name] and name in runs_on}
        for node in cluster.nodes
    ]
    found = set[int]().union(*suits) or {description.gpus}
    return max(1, min(most, sum(map(bool, suits)))), found


def _check_throughputs(gangs: Mapping[str, int], throughputs: Mapping[str, float]) -> None:
    """Raise JobSpecError unless the throughputs given, if any, are of the types of the gangs."""
    if not (gangs and throughputs):
        return
    for gpu_type in sorted(throughputs.keys() - gangs.keys()):
        remedy = f"add {gpu_type}:GPUs to {PREFIX}gang, or leave it out"
        raise JobSpecError(f"{PREFIX}throughput {gpu_type}: a copy has no GPUs there; {remedy}")
    for gpu_type in sorted(gangs.keys() - throughputs.keys()):
        remedy = f"add {gpu_type}=STEPS_PER_S to {PREFIX}throughput, or leave it out"
        raise JobSpecError(f"{PREFIX}gang {gpu_type}: no throughput is given there; {remedy}")


def _check_nodes(gangs: Mapping[str, int], cluster: Cluster) -> None:
    """Raise JobSpecError if no node of those that a job may have holds the gang of a type."""
    most: dict[str, int] = {}
    for node in cluster.nodes:
        for gpu_type, count in node.gpus:
            most[gpu_type.lower()] = max(count, most.get(gpu_type.lower(), 0))
    for name, size in gangs.items():
        if name not in most:
            names = ", ".join(cluster.gpus_by_type)
            text = f"the nodes that the job may have are of {names}; leave {name} out"
            raise JobSpecError(f"{PREFIX}gang {name}:{size}: {text}")
        if size > most[name]:
            remedy = f"give {name}:{most[name]} or less, or leave it out"
            text = f"no node has more than {most[name]}"
            raise JobSpecError(f"{PREFIX}gang {name}:{size}: {text}; {remedy}")


def check_fits(description: Description, cluster: Cluster, estimator: Estimator) -> None:
    """Raise JobSpecError unless the empty cluster could hold the gang on GPUs that suit."""
    known = {gpu_type.lower() for gpu_type in cluster.gpus_by_type}
    for gpu_type in (*description.throughputs, *description.needs.types):
        if gpu_type not in known:
            names = ", ".join(cluster.gpus_by_type)
            raise JobSpecError(f"GPU type {gpu_type!r} is not in this cluster, which has {names}")
    time_on = description.time_on
    if time_on and (why := _why_not_measured(description, estimator, known)):
        raise JobSpecError(f"{PREFIX}time-on {time_on}: {why}")
    why_not = {name: estimator.why_not(description, name) for name in cluster.gpus_by_type}
    if all(why_not.values()):
        reasons = "; ".join(f"{name}: {why}" for name, why in why_not.items())
        raise JobSpecError(f"no GPU type of this cluster suits the job: {reasons}")
    if description.gangs:
        return
    most = [
        max([0, *(count for name, count in node.gpus if not why_not[name])])
        for node in cluster.nodes
    ]
    shapes = description.shapes
    if any(sum(count >= s.gpus_per_node for count in most) >= s.nodes for s in shapes):
        return
    layouts = ", ".join(str(shape) for shape in shapes)
    raise JobSpecError(
        f"no nodes of this cluster can hold the gang {layouts} (GPUs per node x nodes): it has "
        + ", ".join(f"{n} {gpu_type}" for gpu_type, n in cluster.gpus_by_type.items())
        + f" on {len(cluster.nodes)} nodes"
    )


def _why_not_measured(
    description: Description, estimator: Estimator, gpu_types: Collection[str]
) -> str:
    """Return why a time limit given for `time_on` says nothing of other types; "" if it does."""
    time_on = description.time_on
    if why := estimator.why_not(description, time_on):
        return f"the job may not have it: {why}"
    throughputs = estimator.throughputs(description, "", gpu_types)
    is_known = throughputs.on(time_on, description.gpus) > 0
    return "" if is_known else "the job's throughput there is not known"
