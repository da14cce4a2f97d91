"""Builds a job's description for hadard from the request. Pure, standard library only."""

from __future__ import annotations

import difflib
import os
import shlex
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

from hadar_slurm.core.cluster import Cluster
from hadar_slurm.core.gpu_types import Needs, parse_memory_gb
from hadar_slurm.core.job import Shape
from hadar_slurm.core.throughput import ThroughputTable, workload_name
from hadar_slurm.core.time_limit import format_time_limit, parse_duration
from hadar_slurm.core.units import parse_count, parse_number
from hadar_slurm.errors import JobSpecError
from hadar_slurm.jobspec.description import (
    GPU_OPTIONS,
    MAX_LOSS_S,
    MIN_LOSS_S,
    Description,
    is_node_list,
    may_ask,
    parse_shape,
)
from hadar_slurm.jobspec.estimator import Estimator
from hadar_slurm.jobspec.identity import OF_A_JOB, Shown, workload_of_shown
from hadar_slurm.submit.copy_gangs import (
    CopyGangs,
    check_nodes,
    check_throughputs,
    copy_gangs,
    words,
)
from hadar_slurm.submit.gpu_options import PER_NODE, UNCOUNTED
from hadar_slurm.submit.request import PREFIX, SbatchRequest

# With many more copies each step contributes less (docs/runtime.md).
AUTO_COPIES = 16


def describe(
    request: SbatchRequest,
    estimator: Estimator,
    cluster: Cluster | None = None,
    limit_s: float = 0.0,
) -> Description:
    """Return the job's description; raises JobSpecError naming the wrong value.

    On a known `cluster` the number of copies is limited to the nodes that suit. `limit_s`: the time
    limit in seconds where the request gives none; 0 if there is none.
    """
    limit_s = request.limit_s or limit_s
    given = request.hadar_options
    gangs = copy_gangs(request)
    gpus, shape = _gang(request, gangs)
    saves, loss_s = _checkpoint(given.get("checkpoint", "no"))
    forks, cost = "copies" in given, given.get("restart-cost")
    excluded = request.values.get("exclude", "")
    if forks:
        shape, saves = _shape_of_copy(request, gpus, shape), True
    saves = saves and "no-requeue" not in request.values
    if "steps" not in given and (forks or not limit_s or "throughput" in given):
        remedy = "" if forks or "throughput" in given else ", or --time how long it trains at most"
        text = f"how many training steps the job has in all{remedy}"
        raise JobSpecError(f"{PREFIX}steps is missing: {text}")
    found = Description(
        steps=_whole(given["steps"], "steps") if "steps" in given else 0,
        limit_s=limit_s,
        gpus=gpus,
        asks=_asks(request, gpus),
        shape=shape,
        copies=2 if gangs.gpus else 1,  # until they are counted
        gangs=gangs.gpus,
        cores=gangs.cores,
        memory_mb=gangs.memory_mb,
        checkpoint=saves,
        restart_loss_s=loss_s if saves else 0.0,
        restart_cost_s=None if cost is None else _number(cost, "restart-cost"),
        comment=request.values.get("comment", ""),
        throughputs=_throughputs(given["throughput"]) if "throughput" in given else {},
        workload=_workload(request, estimator.table),
        needs=_needs(request),
        time_on=_time_on(given.get("time-on", ""), limit_s),
        # Others leave the job to Slurm.
        excludes=excluded if is_node_list(excluded) else "",
    )
    check_throughputs(found.gangs, found.throughputs)
    if not forks:
        return found
    if gangs.gpus and cluster is not None:
        check_nodes(gangs.gpus, cluster)
    copies, sizes = _copies(given["copies"], found, estimator, cluster)
    return replace(found, copies=copies) if copies > 1 else found.in_one_copy(min(sizes))


def _checkpoint(text: str) -> tuple[bool, float]:
    """Return whether the job saves, and the seconds of work that a requeue may lose; 0: none.

    The former with a signal, the latter without one.
    """
    level, colon, time = text.lower().partition(":")
    if not colon and level in ("yes", "no"):
        return level == "yes", 0.0
    loss_s = parse_duration(time) if level == "restart" else None
    if loss_s is None:
        wanted = "yes, no, or restart:TIME with the work that a requeue may lose, such as 20m"
        raise JobSpecError(f"{PREFIX}checkpoint {text!r}: expected {wanted}, 90s or 1h")
    if not MIN_LOSS_S <= loss_s <= MAX_LOSS_S:
        least, most = f"{MIN_LOSS_S:g}s", f"{MAX_LOSS_S / 86_400:g}d"
        raise JobSpecError(f"{PREFIX}checkpoint {text!r}: expected a time of {least} to {most}")
    return True, loss_s


def _gang(request: SbatchRequest, gangs: CopyGangs) -> tuple[int, Shape | None]:
    """Return the number of GPUs, and their layout unless every uniform one is allowed."""
    text = request.hadar_options.get("gang")
    if gangs.gpus:
        gpus = min(gangs.gpus.values())
        shape: Shape | None = Shape(1, gpus)
    elif text is None:
        gpus, shape = _gang_from_sbatch(request)
    elif "x" in text.lower():
        shape = parse_shape(text)
        gpus = shape.num_gpus
    else:
        gpus, shape = _whole(text, "gang"), None
    if shape is None and "ntasks-per-node" in request.values:
        # Slurm 22.05 keeps the number of tasks of the widest layout that a job has had: in a
        # narrower one such a job would never start.
        nodes = _nodes(request)
        if gpus % nodes:
            raise JobSpecError(
                f"--ntasks-per-node is given: {gpus} GPUs do not divide evenly over {nodes} nodes; "
                f"give the layout with {PREFIX}gang, GPUs per node x nodes"
            )
        shape = Shape(nodes, gpus // nodes)
    return gpus, shape


def _gang_from_sbatch(request: SbatchRequest) -> tuple[int, Shape | None]:
    """Return the gang that sbatch's own options request, else a single GPU."""
    asked = {option.name: option.number for option in request.gpus}
    if not asked:
        return 1, None  # sbatch itself refuses a wrong number of nodes
    uncounted = [name for name in UNCOUNTED if asked.get(name) == 0]
    if uncounted and "gpus" not in asked:
        remedy = f"give the total number of GPUs with {PREFIX}gang"
        raise JobSpecError(f"--{uncounted[0]} is given: {remedy}")
    nodes = _nodes(request)
    per_node = {name: asked[name] for name in PER_NODE if asked.get(name)}
    if per_node and "gpus" in asked and "nodes" not in request.values:
        nodes = max(1, asked["gpus"] // next(iter(per_node.values())))
    totals = {name: number * nodes for name, number in per_node.items()}
    if "gpus" in asked:
        totals["gpus"] = asked["gpus"]
    elif "gpus-per-task" in asked:
        totals["gpus-per-task"] = asked["gpus-per-task"] * _tasks(request)
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


def _tasks(request: SbatchRequest) -> int:
    """Return the number of tasks of the whole job, as Slurm counts them."""
    given = {
        name: parse_count(request.values[name], f"--{name}", JobSpecError)
        for name in ("ntasks", "ntasks-per-node")
        if name in request.values
    }
    return given.get("ntasks", _nodes(request) * given.get("ntasks-per-node", 1))


def _needs(request: SbatchRequest) -> Needs:
    """Return what the job needs of each GPU; without --hadar-types the types that it names."""
    given = request.hadar_options
    types = [gpu_type for option in request.gpus for gpu_type in option.gpu_types]
    if "types" in given:
        types = [name.strip() for name in given["types"].split(",")]
        if not all(types):
            text = f"{PREFIX}types {given['types']!r}: expected types such as a100,h100"
            raise JobSpecError(text)
    memory_gb = parse_memory_gb(given.get("gpu-memory", "0"))
    if memory_gb is None:
        text = f"{PREFIX}gpu-memory {given['gpu-memory']!r}: expected a size such as 40G"
        raise JobSpecError(text)
    return Needs(
        types=tuple(dict.fromkeys(map(str.lower, types))),
        memory_gb=memory_gb,
        compute_capability=_number(given.get("compute-capability", "0"), "compute-capability"),
    )


def _time_on(gpu_type: str, limit_s: float) -> str:
    """Return the GPU type for which the time limit is given."""
    if gpu_type and not limit_s:
        raise JobSpecError(f"{PREFIX}time-on {gpu_type}: of which time limit? give --time too")
    return gpu_type.lower()


def _asks(request: SbatchRequest, gpus: int) -> Mapping[str, str]:
    """Return the user's options for GPUs and nodes where `gpus` alone does not stand for them."""
    given = {n: v for n, v in request.values.items() if n in (*GPU_OPTIONS, "nodes")}
    is_plain = not request.gpus or given == {"gpus": str(gpus)}
    return {} if is_plain or not may_ask(given) else given


def _nodes(request: SbatchRequest) -> int:
    """Return the largest number of nodes that --nodes allows; else 1, or as many as tasks need.

    The latter only where sbatch's own options request GPUs, which Slurm then counts by node.
    """
    if text := request.values.get("nodes"):
        return parse_count(text.split("-")[-1], "--nodes", JobSpecError)
    tasks, per_node = (
        parse_count(request.values.get(name, "1"), f"--{name}", JobSpecError)
        for name in ("ntasks", "ntasks-per-node")
    )
    is_by_tasks = request.gpus and "ntasks-per-node" in request.values
    return -(-tasks // per_node) if is_by_tasks else 1


def _shape_of_copy(request: SbatchRequest, gpus: int, shape: Shape | None) -> Shape:
    """Return the layout of one copy; raises JobSpecError if the job cannot be forked."""
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
    if shape is not None and shape.nodes > 1:
        raise JobSpecError(f"{shape} spans nodes: with {name} a copy has its GPUs on one node")
    return Shape(1, gpus)


def _copies(
    asked: str, description: Description, estimator: Estimator, cluster: Cluster | None
) -> tuple[int, set[int]]:
    """Return the smaller of `asked` and the number of nodes on which a copy could run.

    Also the numbers of GPUs that a copy could have there.
    """
    is_auto = asked.lower() == "auto"
    if is_auto and cluster is None:
        raise JobSpecError(f"{PREFIX}copies auto: sinfo does not list the nodes; give a number")
    most = AUTO_COPIES if is_auto else _whole(asked, "copies")
    if cluster is None:
        return most, {description.gpus}
    throughputs = estimator.throughputs(description, "", cluster.gpus_by_type)
    sizes = {name: description.gpus_on(name) for name in cluster.gpus_by_type}
    runs_on = {name for name, size in sizes.items() if throughputs.on(name, size) > 0}
    suits = [
        {sizes[name] for name, n in node.gpus if n >= sizes[name] and name in runs_on}
        for node in cluster.nodes
    ]
    found = set[int]().union(*suits) or {description.gpus}
    return max(1, min(most, sum(map(bool, suits)))), found


def _workload(request: SbatchRequest, table: ThroughputTable) -> str:
    """Return the name under which the job's throughput is stored."""
    given = request.hadar_options
    if "throughput" in given:
        if "model" in given:
            raise JobSpecError(f"give {PREFIX}model or {PREFIX}throughput, not both")
        return ""
    size = given.get("batch-size")
    if "model" in given:
        name = workload_name(given["model"], None if size is None else _whole(size, "batch-size"))
        return next((known for known in table.workloads if known.lower() == name.lower()), name)
    if size is not None:
        raise JobSpecError(f"{PREFIX}batch-size {size}: of which model? give {PREFIX}model too")
    return workload_of_shown(_shown(request))


def _shown(request: SbatchRequest) -> Shown:
    """Return what Slurm will show of the job."""
    given = request.values
    try:
        here = os.getcwd()
    except OSError:
        here = ""
    return Shown(
        name=given.get("job-name") or Path(request.script_name or "wrap").name,
        command=given.get("wrap") or shlex.join(word for word in request.script if word != "--"),
        directory=os.path.join(here, given.get("chdir", "")),
        container=given.get("container", ""),
        comment=given.get("comment", ""),
    )


def unknown_model(description: Description, table: ThroughputTable) -> str | None:
    """Return a note for the user if the model's throughput is not known."""
    name = description.workload
    if not name or name.startswith(OF_A_JOB) or table.throughputs(name) is not None:
        return None
    known = {workload.lower(): workload for workload in table.workloads}
    near = [known[n] for n in difflib.get_close_matches(name.lower(), known, n=5, cutoff=0.3)]
    similar = f"; similar names: {', '.join(near)}" if near else ""
    return f"{name!r} is not in the throughput table: its throughput will be measured{similar}"


def summary(description: Description, request: SbatchRequest, table: ThroughputTable) -> str:
    """Return a short description of the job for the user."""
    needs = description.needs
    of_type = f"type {' or '.join(needs.types)}" if needs.types else "any type"
    parts = [f"{_counted(description.gpus, 'GPU')} of {of_type}"]
    if description.gangs:
        parts = [words(description.gangs)]
    if needs.memory_gb:
        parts[0] += f" with {needs.memory_gb:g} GB"
    if needs.compute_capability:
        parts[0] += f" and compute capability {needs.compute_capability:g}"
    if description.shape and description.shape.nodes > 1:
        parts[0] += f" on {description.shape.nodes} nodes"
    if description.copies > 1:
        parts.append(f"in up to {description.copies} copies")
    elif "copies" in request.hadar_options:
        parts.append("in one copy (only one node suits)")
    if description.steps:
        parts.append(_counted(description.steps, "step"))
    if description.limit_s:
        parts.append(f"up to {format_time_limit(description.limit_s)}")
    if unknown_model(description, table):
        parts.append(f"no throughput is known for {description.workload}")
    return ", ".join(parts)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'s' if count != 1 else ''}"


def _throughputs(text: str) -> dict[str, float]:
    throughputs = {}
    for part in text.split(","):
        gpu_type, equals, value = part.partition("=")
        if not (gpu_type and equals):
            raise JobSpecError(f"{PREFIX}throughput {part!r}: expected TYPE=STEPS_PER_S")
        throughputs[gpu_type.strip().lower()] = _number(value, "throughput")
    return throughputs


def _whole(text: str, what: str) -> int:
    return parse_count(text, PREFIX + what, JobSpecError)


def _number(text: str, what: str) -> float:
    return parse_number(text, PREFIX + what, JobSpecError)


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
