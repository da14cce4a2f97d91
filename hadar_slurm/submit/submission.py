"""From a user's words to the exact sbatch call. Pure, standard library only."""

from __future__ import annotations

import difflib
from dataclasses import replace
from pathlib import Path

from hadar_slurm.core.cluster import Cluster
from hadar_slurm.core.job import Shape, uniform_shapes
from hadar_slurm.core.quantity import parse_count, parse_number
from hadar_slurm.core.throughput import ThroughputTable, workload_name
from hadar_slurm.errors import JobSpecError
from hadar_slurm.handoff import ASSIGNMENTS_VARIABLE, COPIES_VARIABLE, SPOOL_VARIABLE
from hadar_slurm.slurm.estimates import Estimator
from hadar_slurm.slurm.metadata import Description, encode, parse_shape
from hadar_slurm.submit.request import FOR_GPUS, PREFIX, Request
from hadar_slurm.submit.time_limit import parse_time_limit

# With many more copies each step counts for less (docs/runtime.md).
AUTO_COPIES = 16
# Before the name of a job that says no model: no model is called so.
_OF_A_JOB = "job:"
_MOST_OF_A_NAME = 100
# Whose GPUs depend on how many tasks and sockets there will be.
_OF_TASKS = ("gpus-per-task", "gpus-per-socket", "tres-per-task")


def describe(request: Request, estimator: Estimator, cluster: Cluster | None = None) -> Description:
    """Return what hadard is to know of the job; raises JobSpecError naming the wrong value.

    On a known `cluster` it has no more copies than there are nodes that suit.
    """
    own = request.own
    gpus, shape = _gang(request)
    if shape is None and request.given("ntasks-per-node"):
        shape = _shape_of_tasks(request, gpus)
    wants = own.get("checkpoint", "no").lower()
    if wants not in ("yes", "no"):
        raise JobSpecError(f"{PREFIX}checkpoint {wants!r}: expected yes or no")
    cost = own.get("restart-cost")
    forks = "copies" in own
    if forks:
        shape, wants = _shape_of_copy(request, gpus, shape), "yes"
    limit_s = _limit_s(request)
    if "steps" not in own and (forks or not limit_s or "throughput" in own):
        remedy = "" if forks or "throughput" in own else ", or --time how long it trains at most"
        raise JobSpecError(
            f"{PREFIX}steps is missing: how many training steps the job has in all{remedy}"
        )
    found = Description(
        steps=_whole(own["steps"], "steps") if "steps" in own else 0,
        limit_s=limit_s,
        gpus=gpus,
        shape=shape,
        checkpoint=wants == "yes" and not request.given("no-requeue"),
        restart_cost_s=None if cost is None else _number(cost, "restart-cost"),
        comment=request.last("comment") or "",
        rates=_rates(own["throughput"]) if "throughput" in own else {},
        workload=_workload(request, estimator.table),
    )
    if not forks:
        return found
    return replace(found, copies=_copies(own["copies"], found, estimator, cluster))


def _shape_of_tasks(request: Request, gpus: int) -> Shape:
    """Return the layout of a job that says how many tasks each node has.

    Slurm 22.05 keeps the number of tasks of the widest layout that a job has had: in a narrower one
    such a job would never start.
    """
    nodes = _nodes(request)
    if gpus % nodes:
        raise JobSpecError(
            f"--ntasks-per-node is given: {gpus} GPUs do not lie evenly on {nodes} nodes; say with "
            f"{PREFIX}gang how they do, GPUs per node x nodes"
        )
    return Shape(nodes, gpus // nodes)


def _nodes(request: Request) -> int:
    """Return the most nodes that sbatch's options ask for, one if they do not say."""
    return _whole((request.last("nodes") or "1").split("-")[-1], "gang: --nodes")


def _limit_s(request: Request) -> float:
    """Return the job's time limit in seconds, 0 where there is none.

    What cannot be read sbatch will refuse in its own words.
    """
    return parse_time_limit(request.last("time") or "") or 0.0


def _shape_of_copy(request: Request, gpus: int, shape: Shape | None) -> Shape:
    """Return how one copy of a forked job lies; raises JobSpecError for what cannot be forked."""
    name = PREFIX + "copies"
    if request.given("array"):
        raise JobSpecError(f"--array is given: {name} makes the job an array of its own")
    if request.given("no-requeue"):
        raise JobSpecError(f"--no-requeue is given: with {name} copies are moved")
    if request.own.get("checkpoint", "yes").lower() != "yes":
        raise JobSpecError(f"{PREFIX}checkpoint no: with {name} the copies save every slot")
    nodes = request.last("nodes")
    if nodes is not None and nodes not in ("1", "1-1"):
        raise JobSpecError(f"--nodes={nodes} is given: with {name} each copy has one node")
    if shape is not None and shape.nodes > 1:
        raise JobSpecError(f"{shape} spans nodes: with {name} a copy has its GPUs on one node")
    return Shape(1, gpus)


def check_exports(request: Request) -> None:
    """Raise JobSpecError if a forked job's tasks would not see that they are copies.

    Each would train all by itself.
    """
    exported = request.last("export")
    if not exported:
        return
    names = {part.partition("=")[0].strip() for part in exported.split(",")}
    needed = {COPIES_VARIABLE, SPOOL_VARIABLE, ASSIGNMENTS_VARIABLE}
    if "ALL" not in {name.upper() for name in names} and not needed <= names:
        missing = ", ".join(sorted(needed - names))
        raise JobSpecError(f"--export={exported} hides {missing}: add that, or ALL")


def _copies(
    asked: str, description: Description, estimator: Estimator, cluster: Cluster | None
) -> int:
    """Return how many copies a job may have: as many as asked for, or as nodes suit, the fewer.

    A node suits that has GPUs enough of a type on which the job is taken to train at all.
    """
    is_auto = asked.lower() == "auto"
    most = AUTO_COPIES if is_auto else _whole(asked, "copies")
    if cluster is None:
        if is_auto:
            raise JobSpecError(f"{PREFIX}copies auto: sinfo does not tell the nodes; give a number")
        return most
    rates = estimator.rates(description, "", cluster.gpus_by_type)
    suits = [
        any(
            count >= description.gpus and rates.on(kind, description.gpus) > 0
            for kind, count in node.gpus
        )
        for node in cluster.nodes
    ]
    return max(1, min(most, sum(suits)))


def _workload(request: Request, table: ThroughputTable) -> str:
    """Return the name under which the job's speed is known or will be."""
    own = request.own
    if "throughput" in own:
        if "model" in own:
            raise JobSpecError(f"give {PREFIX}model or {PREFIX}throughput, not both")
        return ""
    size = own.get("batch-size")
    if "model" in own:
        name = workload_name(own["model"], None if size is None else _whole(size, "batch-size"))
        return next((known for known in table.workloads if known.lower() == name.lower()), name)
    if size is not None:
        raise JobSpecError(f"{PREFIX}batch-size {size}: of which model? give {PREFIX}model too")
    return f"{_OF_A_JOB}{_job_name(request)}"[:_MOST_OF_A_NAME]


def _job_name(request: Request) -> str:
    """Return the name that tells this user's work from other work of theirs."""
    return request.last("job-name") or Path(request.script_name or "wrap").name


def unknown_model(description: Description, table: ThroughputTable) -> str | None:
    """Return what to tell a user whose model has no known speed, or None."""
    name = description.workload
    if not name or name.startswith(_OF_A_JOB) or table.rates(name) is not None:
        return None
    known = {workload.lower(): workload for workload in table.workloads}
    near = difflib.get_close_matches(name.lower(), known, n=5, cutoff=0.3)
    names = ", ".join(known[n] for n in near)
    return f"{name!r} is not in the throughput table: its speed will be measured" + (
        f"; near it: {names}" if names else ""
    )


def _rates(text: str) -> dict[str, float]:
    rates: dict[str, float] = {}
    for part in text.split(","):
        kind, equals, value = part.partition("=")
        if not (kind and equals):
            raise JobSpecError(f"{PREFIX}throughput {part!r}: expected TYPE=STEPS_PER_S")
        rates[kind.strip().lower()] = _number(value, "throughput")
    return rates


def _gang(request: Request) -> tuple[int, Shape | None]:
    text = request.own.get("gang")
    if text is None:
        return _gang_from_sbatch(request)
    if "x" in text.lower():
        shape = parse_shape(text)
        return shape.num_gpus, shape
    return _whole(text, "gang"), None


def _gang_from_sbatch(request: Request) -> tuple[int, Shape | None]:
    """Return the gang that sbatch's own options ask for, else a single GPU."""
    per_node = _count(request.last("gpus-per-node") or "") or _count_in_gres(request.last("gres"))
    if per_node is not None:
        nodes = _nodes(request)
        return per_node * nodes, Shape(nodes, per_node)
    in_all = _count(request.last("gpus") or "")
    if in_all is not None:
        return in_all, None
    for name in _OF_TASKS:
        if _asks_for_gpus(request, name):
            raise JobSpecError(f"--{name} is given: say with {PREFIX}gang how many GPUs it makes")
    return 1, None


def _asks_for_gpus(request: Request, *names: str) -> bool:
    """Return whether sbatch's own options ask for GPUs: those of `names`, or any."""
    return any(
        (value := request.last(name)) is not None
        and (name not in ("gres", "tres-per-task") or "gpu" in value)
        for name in names or FOR_GPUS
    )


def _count(text: str) -> int | None:
    """Return the GPUs in `4`, `v100:4` or `v100:2,k80:2`; a type alone is one; None of nothing."""
    if not text:
        return None
    counts = [part.rsplit(":", 1)[-1] for part in text.split(",")]
    return sum(int(count) if count.isascii() and count.isdigit() else 1 for count in counts)


def _count_in_gres(text: str | None) -> int | None:
    """Return the GPUs in `gpu`, `gpu:4` or `gpu:v100:4,other:1`; None where there are none."""
    parts = [part for part in (text or "").split(",") if part.split(":")[0] == "gpu"]
    return _count(",".join(parts))


def _whole(text: str, what: str) -> int:
    return parse_count(text, PREFIX + what, JobSpecError)


def _number(text: str, what: str) -> float:
    return parse_number(text, PREFIX + what, JobSpecError)


def check_fits(description: Description, cluster: Cluster) -> None:
    """Raise JobSpecError unless the cluster could hold the gang when nothing else runs."""
    kinds = {str(kind).lower(): str(kind) for kind in cluster.gpus_by_type}
    for kind in description.rates:
        if kind not in kinds:
            raise JobSpecError(
                f"GPU type {kind!r} is not in this cluster, which has {', '.join(kinds.values())}"
            )
    shapes = (description.shape,) if description.shape else uniform_shapes(description.gpus)
    most = [max(count for _, count in node.gpus) for node in cluster.nodes]
    for shape in shapes:
        if sum(count >= shape.gpus_per_node for count in most) >= shape.nodes:
            return
    layouts = ", ".join(str(shape) for shape in shapes)
    raise JobSpecError(
        f"no nodes of this cluster can hold the gang {layouts} (GPUs per node x nodes): it has "
        + ", ".join(f"{n} {kind}" for kind, n in cluster.gpus_by_type.items())
        + f" on {len(cluster.nodes)} nodes"
    )


def compose(request: Request, description: Description, *, is_held: bool) -> tuple[str, ...]:
    """Return the sbatch call: ours first where the user said nothing, then all of the user's."""
    if not is_held:
        # Under plain Slurm nobody would spread the copies out, or need more than one.
        description = replace(description, copies=1)
    added = [f"--comment={encode(replace(description, is_held=is_held))}"]
    if is_held:
        added.append("--hold")
    if description.copies > 1:
        added.append(f"--array=0-{description.copies - 1}")
    if not _asks_for_gpus(request):
        shape = description.shape
        if shape is None:
            added.append(f"--gpus={description.gpus}")
        else:
            added += [f"--nodes={shape.nodes}", f"--gpus-per-node={shape.gpus_per_node}"]
    elif description.copies > 1:
        added.append("--nodes=1")
    if description.checkpoint:
        added += ["--requeue"]
        if not request.given("open-mode"):
            # A job that moves would otherwise empty its output at every restart.
            added.append("--open-mode=append")
    kept = [word for option in request.options if option.name != "comment" for word in option.words]
    return ("sbatch", *added, *kept, *request.script)
