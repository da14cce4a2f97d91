"""The GPUs of a job's gang and their layout, by its own options and by sbatch's. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from hadar_slurm.core.job import Shape
from hadar_slurm.errors import JobSpecError
from hadar_slurm.jobspec.description import GPU_OPTIONS, may_ask, parse_shape
from hadar_slurm.jobspec.units import parse_count
from hadar_slurm.submit.describing.copy_gangs import CopyGangs
from hadar_slurm.submit.gpu_options import PER_NODE, UNCOUNTED
from hadar_slurm.submit.own_options import PREFIX
from hadar_slurm.submit.request import SbatchRequest

_TASKS = ("ntasks", "ntasks-per-node")


class RequestedGang(NamedTuple):
    """The GPUs of a job, or of each copy."""

    gpus: int
    # None: every uniform layout is allowed.
    shape: Shape | None
    # The user's options for GPUs and nodes where `gpus` alone does not stand for them.
    asks: Mapping[str, str]


def gang_of(request: SbatchRequest, gangs: CopyGangs) -> RequestedGang:
    """Return the gang; raises JobSpecError naming the wrong value."""
    if "copies" in request.hadar_options:
        _check_copy(request)
    counts = {what: parse_count(text, what, JobSpecError) for what, text in _counted(request)}
    nodes, text = _nodes(request, counts), request.hadar_options.get("gang")
    if gangs.gpus:
        gpus = min(gangs.gpus.values())
        shape: Shape | None = Shape(1, gpus)
    elif text is None:
        gpus, shape = _from_sbatch(request, counts, nodes)
    elif "x" in text.lower():
        shape = parse_shape(text)
        gpus = shape.num_gpus
    else:
        gpus, shape = counts[f"{PREFIX}gang"], None
    if shape is None and "ntasks-per-node" in request.values:
        # Slurm 22.05 keeps the number of tasks of the widest layout that a job has had: in a
        # narrower one such a job would never start.
        if gpus % nodes:
            raise JobSpecError(
                f"--ntasks-per-node is given: {gpus} GPUs do not divide evenly over {nodes} nodes; "
                f"give the layout with {PREFIX}gang, GPUs per node x nodes"
            )
        shape = Shape(nodes, gpus // nodes)
    if "copies" in request.hadar_options:
        if shape is not None and shape.nodes > 1:
            text = f"with {PREFIX}copies a copy has its GPUs on one node"
            raise JobSpecError(f"{shape} spans nodes: {text}")
        shape = Shape(1, gpus)
    given = {n: v for n, v in request.values.items() if n in (*GPU_OPTIONS, "nodes")}
    is_plain = not request.gpus or given == {"gpus": str(gpus)}
    return RequestedGang(gpus, shape, {} if is_plain or not may_ask(given) else given)


def _counted(request: SbatchRequest) -> list[tuple[str, str]]:
    """Return the options that are numbers, and their texts, where they say how many GPUs there are.

    sbatch itself refuses a wrong number of nodes or tasks.
    """
    values, gang = request.values, request.hadar_options.get("gang", "")
    own = [(f"{PREFIX}gang", gang)] if gang and not {"x", ":"} & set(gang.lower()) else []
    if not (request.gpus or "ntasks-per-node" in values):
        return own
    most = [("--nodes", values["nodes"].split("-")[-1])] if values.get("nodes") else []
    return [*own, *most, *((f"--{name}", values[name]) for name in _TASKS if name in values)]


def _from_sbatch(
    request: SbatchRequest, counts: Mapping[str, int], nodes: int
) -> tuple[int, Shape | None]:
    """Return the gang that sbatch's own options request, else a single GPU."""
    asked = {option.name: option.number for option in request.gpus}
    if not asked:
        return 1, None
    uncounted = [name for name in UNCOUNTED if asked.get(name) == 0]
    if uncounted and "gpus" not in asked:
        remedy = f"give the total number of GPUs with {PREFIX}gang"
        raise JobSpecError(f"--{uncounted[0]} is given: {remedy}")
    per_node = {name: asked[name] for name in PER_NODE if asked.get(name)}
    if per_node and "gpus" in asked and "nodes" not in request.values:
        nodes = max(1, asked["gpus"] // next(iter(per_node.values())))
    totals = {name: number * nodes for name, number in per_node.items()}
    if "gpus" in asked:
        totals["gpus"] = asked["gpus"]
    elif "gpus-per-task" in asked:
        tasks = counts.get("--ntasks", nodes * counts.get("--ntasks-per-node", 1))
        totals["gpus-per-task"] = asked["gpus-per-task"] * tasks
    if len(set(totals.values())) > 1:
        numbers = ", ".join(f"--{name} for {number} in all" for name, number in totals.items())
        raise JobSpecError(f"GPUs are requested twice, with different numbers: {numbers}")
    gpus = next(iter(totals.values()))
    least, _, most = request.values.get("nodes", "").partition("-")
    is_fixed = "gpus" in asked and bool(least) and most in ("", least)
    # With tasks, Slurm may give a node of another layout more tasks than GPUs for them.
    if not (per_node or is_fixed or "gpus-per-task" in asked):
        return gpus, None
    if gpus % nodes:
        name = "gpus-per-task" if "gpus-per-task" in asked else "gpus"
        raise JobSpecError(f"--{name}: {gpus} GPUs do not divide evenly over {nodes} nodes")
    return gpus, Shape(nodes, gpus // nodes)


def _nodes(request: SbatchRequest, counts: Mapping[str, int]) -> int:
    """Return the largest number of nodes that --nodes allows; else 1, or as many as tasks need.

    The latter only where sbatch's own options request GPUs, which Slurm then counts by node.
    """
    tasks, per_node = (counts.get(f"--{name}", 1) for name in _TASKS)
    by_tasks = request.gpus and "ntasks-per-node" in request.values
    return counts.get("--nodes", -(-tasks // per_node) if by_tasks else 1)


def _check_copy(request: SbatchRequest) -> None:
    """Raise JobSpecError where sbatch's options do not let a job be forked."""
    name = PREFIX + "copies"
    if "array" in request.values:
        raise JobSpecError(f"--array is given: {name} makes the job an array of its own")
    if "no-requeue" in request.values:
        raise JobSpecError(f"--no-requeue is given: with {name} copies are migrated")
    if (given := request.hadar_options.get("checkpoint", "yes").lower()) != "yes":
        text = f"with {name} the copies save in every averaging interval, and when asked"
        raise JobSpecError(f"{PREFIX}checkpoint {given}: {text}; leave it out")
    nodes = request.values.get("nodes", "1")
    if nodes not in ("1", "1-1"):
        raise JobSpecError(f"--nodes={nodes} is given: with {name} each copy has one node")
