"""The list `[fast|...|slow]` by which plain Slurm gives a whole gang one GPU type.

Without it an untyped gang gets nodes of unlike types where those of one are busy, and trains at the
speed of the slowest. With it all nodes have the same of these features: the first with which the
job can start now, else the one with which it can start soonest (observed with 22.05.8). Listed are
all types that can hold the gang, however slow, so that it waits for no type where another is free.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from hadar_slurm.core.cluster import Cluster, GpuType, Node, NodeName
from hadar_slurm.core.job import Shape
from hadar_slurm.errors import HadarError
from hadar_slurm.jobspec.description import Description
from hadar_slurm.jobspec.estimator import Estimator
from hadar_slurm.submit.decision import Call, Decision
from hadar_slurm.submit.describing.describe import describe, estimator_of
from hadar_slurm.submit.gpu_options import why_not_counted
from hadar_slurm.submit.nodes import closed_nodes, open_nodes
from hadar_slurm.submit.own_options import NO_HADAR, PASSED_ON
from hadar_slurm.submit.request import SbatchRequest
from hadar_slurm.submit.service import not_placed, service_for

# A time limit for jobs without one: it changes no relative speeds.
_SOME_S = 3600.0
# With these the owner has chosen nodes, or the list would be read by another cluster.
_OWN = ("constraint", "prefer", "nodelist", "nodefile", "clusters")

_Features = Mapping[NodeName, Collection[str]]


def typed(request: SbatchRequest, environment: Mapping[str, str], call: Call) -> Call:
    """Return a call of plain Slurm's with a list of GPU types, if its nodes could be of several.

    The call as it was, for where Slurm refuses that, is its `otherwise`.
    """
    if not _may_list(request):
        return call
    partition = request.values.get("partition")
    beat = service_for(environment, partition).beat
    is_hadards = call.description is not None or (beat is not None and beat.enrols)
    if is_hadards and not (beat and not_placed(beat, partition)):
        # hadard takes it up as soon as it is back, but no job with such a list.
        return call
    estimator = estimator_of(beat)
    try:
        description = describe(request, estimator, limit_s=_SOME_S)
        if description.gpus < 2:
            return call
        nodes, closed = open_nodes(request, heeds_excluded=True), closed_nodes()
    except HadarError:
        return call
    if nodes.allowed is None:
        return call
    layout = _layout_of(request, description)
    found = _type_list(
        layout,
        description=description,
        estimator=estimator,
        cluster=nodes.allowed,
        features=nodes.features,
        closed=closed,
    )
    if not found.gpu_types:
        why = f"; {found.why_not}: its GPUs may be of several types" if found.why_not else ""
        return call._replace(decision=Decision(False, f"{call.decision.why}{why}"))
    option = f"--constraint={found.constraint}"
    how = f"; {option} gives it one GPU type, --{NO_HADAR} or a constraint of yours prevents that"
    return call._replace(
        argv=(call.argv[0], option, *call.argv[1:]),
        decision=Decision(False, f"{call.decision.why}{how}"),
        otherwise=call,
    )


def _may_list(request: SbatchRequest) -> bool:
    """Return whether the request leaves the GPU types of a gang, counted here, to Slurm."""
    return not (
        {NO_HADAR, PASSED_ON} & request.flags
        or request.unreadable
        or request.has_components
        or any(name in request.values for name in _OWN)
        or any(option.gpu_types for option in request.gpus)
        or "copies" in request.hadar_options
        or (request.gpus and why_not_counted(request.gpus, request.values))
    )


class _TypeList(NamedTuple):
    """The types, the fastest first; without any the reason, "" where it need not be shown."""

    gpu_types: tuple[GpuType, ...] = ()
    why_not: str = ""

    @property
    def constraint(self) -> str:
        """Return the value of sbatch's option --constraint."""
        return f"[{'|'.join(self.gpu_types)}]"


class _Layout(NamedTuple):
    """How Slurm may distribute a job's GPUs."""

    # None: in any way, on at most `most_nodes`.
    shape: Shape | None
    most_nodes: int

    def is_held_by(self, counts: Iterable[int], num_gpus: int) -> bool:
        """Return whether nodes with these numbers of GPUs can hold the gang."""
        if self.shape is None:
            return sum(sorted(counts, reverse=True)[: self.most_nodes]) >= num_gpus
        return sum(n >= self.shape.gpus_per_node for n in counts) >= self.shape.nodes


def _layout_of(request: SbatchRequest, description: Description) -> _Layout:
    """Return the layout in which Slurm, not hadard, reads a request."""
    gpus, shape = description.gpus, description.shape
    is_by_task = any(option.name == "gpus-per-task" for option in request.gpus)
    if is_by_task and not {"nodes", "ntasks-per-node"} & request.values.keys():
        # hadard takes tasks that fit on a node for one on a node, Slurm may distribute them.
        return _Layout(None, gpus)
    if shape is not None:
        least = int(description.num_nodes.partition("-")[0])
        return _Layout(Shape(least, shape.gpus_per_node), shape.nodes)
    return _Layout(None, min(gpus, int(description.num_nodes.partition("-")[2])))


def _type_list(
    layout: _Layout,
    description: Description,
    estimator: Estimator,
    cluster: Cluster,
    features: _Features,
    closed: Collection[str] = (),
) -> _TypeList:
    """Return the list for a job on these nodes, of which `closed` take no work now.

    There is none where it cannot mix their types, and where no type alone can hold it now.
    """
    if layout.most_nodes < 2 or len(cluster.gpus_by_type) < 2:
        return _TypeList()
    least = layout.shape.gpus_per_node if layout.shape else 1
    usable = [node for node in cluster.nodes if sum(node.by_type.values()) >= least]
    if why_not := next(_unnamed(usable, features), ""):
        return _TypeList(why_not=why_not)
    on_nodes = {k: [n.by_type.get(k, 0) for n in usable] for k in cluster.gpus_by_type}
    held = [k for k, counts in on_nodes.items() if layout.is_held_by(counts, description.gpus)]
    now = {k: [n.by_type.get(k, 0) for n in usable if n.name not in closed] for k in held}
    if not any(layout.is_held_by(counts, description.gpus) for counts in now.values()):
        return _TypeList()
    if unknown := _unknown(description, estimator, held):
        return _TypeList(why_not=f"nothing is known of the speed of {unknown}")
    throughputs = estimator.throughputs(description, "", cluster.gpus_by_type)
    speeds = {k: throughputs.on(k, description.gpus, is_spread=True) for k in held}
    runs_on = (name for name in held if speeds[name] > 0)
    return _TypeList(tuple(sorted(runs_on, key=lambda name: (-speeds[name], name))))


def _unnamed(nodes: Sequence[Node], features: _Features) -> Iterator[str]:
    """Yield for each node why its features do not say which GPUs a job gets there."""
    known = {gpu_type for node in nodes for gpu_type in node.by_type}
    for node in nodes:
        names = {gpu_type for gpu_type, _ in node.gpus}
        if len(names) > 1:
            yield f"{node.name} has GPUs of several types ({', '.join(sorted(names))})"
        elif known.intersection(features.get(node.name, ())) != names:
            yield f"the features of {node.name} do not name its GPU type ({', '.join(names)})"


def _unknown(description: Description, estimator: Estimator, held: Collection[GpuType]) -> str:
    """Return the types on which not even the relative speed of a job is known."""
    if description.throughputs:
        return ""
    rows = estimator.table.throughputs(description.workload)
    family = estimator.ratios.family(description.workload)
    ratios = estimator.ratios.speeds(held, family)
    known = rows.gpu_types if rows else ()
    return " and ".join(k for k in held if not (ratios[k.lower()] or k.lower() in known))
