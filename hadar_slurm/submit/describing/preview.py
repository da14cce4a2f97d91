"""A job's throughput and duration on each GPU type of a cluster, as table and JSON. Pure."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType

from hadar_slurm.core.cluster import Cluster, GpuType
from hadar_slurm.jobspec.description import Description
from hadar_slurm.jobspec.estimator import Estimator
from hadar_slurm.submit.decision import Call
from hadar_slurm.submit.describing.summary import gangs_in_words


@dataclass(frozen=True, slots=True)
class TypePreview:
    """The job on one GPU type."""

    gpu_type: str
    # GPUs of the type in the cluster.
    gpus: int
    # Throughput of the gang; None if it would not run, or the job gives only a time limit.
    steps_per_s: float | None = None
    # Duration; None if the job would not run.
    hours: float | None = None
    # Source of the estimate.
    origin: str = ""
    # Factor within which two thirds of such estimates lie.
    spread: float | None = None
    # Why the job would not run.
    why_not: str = ""


def choices(
    description: Description,
    cluster: Cluster,
    estimator: Estimator,
    bars: Mapping[str, str] = MappingProxyType({}),
) -> list[TypePreview]:
    """Return a preview of each GPU type of the cluster, the fastest first; `bars` as in a call."""
    found = [
        TypePreview(name, gpus, why_not=bars[name.lower()])
        if name.lower() in bars
        else _choice(description, cluster, estimator, name)
        for name, gpus in cluster.gpus_by_type.items()
    ]
    return sorted(found, key=lambda one: (one.hours is None, one.hours, one.gpu_type))


def _choice(
    description: Description, cluster: Cluster, estimator: Estimator, gpu_type: GpuType
) -> TypePreview:
    gpus = cluster.gpus_by_type[gpu_type]
    if why_not := estimator.why_not(description, gpu_type):
        return TypePreview(gpu_type, gpus, why_not=why_not)
    throughputs = estimator.throughputs(description, "", cluster.gpus_by_type)
    on_nodes = [count for node in cluster.nodes for here, count in node.gpus if here == gpu_type]
    speeds = [
        throughputs.on(gpu_type, shape.num_gpus, is_spread=shape.nodes > 1)
        for shape in description.shapes_on(gpu_type)
        if sum(count >= shape.gpus_per_node for count in on_nodes) >= shape.nodes
    ]
    if not speeds:
        return TypePreview(gpu_type, gpus, why_not="too few for the gang")
    speed = max(speeds)
    estimate = estimator.known(description, "", cluster.gpus_by_type).estimates.get(
        gpu_type.lower()
    )
    if speed <= 0 or estimate is None:
        why_not = "no throughput is given" if estimate is None else "does not fit"
        return TypePreview(gpu_type, gpus, why_not=why_not)
    steps_per_s = speed if description.steps else None
    hours = estimator.total_steps(description, throughputs) / speed / 3600
    spread = round(math.exp(estimate.uncertainty), 2)
    return TypePreview(gpu_type, gpus, steps_per_s, hours, estimate.origin, spread)


def as_json(call: Call, job: str | None = None, cluster: str | None = None) -> str:
    """Return one JSON object with the call and, once submitted, the job's id."""
    tree = {
        "job": job,
        "cluster": cluster,
        **call.decision._asdict(),
        "is_held": call.is_held,
        "sbatch": call.argv,
        "environment": dict(call.variables),
        "notes": call.notes,
        "choices": list(map(asdict, _choices(call))),
    }
    return json.dumps(tree)


def as_text(call: Call) -> str:
    """Return the sbatch call as a shell command, and the table."""
    variables = [f"{name}={shlex.quote(text)}" for name, text in call.variables.items()]
    return "\n".join([" ".join([*variables, shlex.join(call.argv)]), *_lines(call)])


def _choices(call: Call) -> list[TypePreview]:
    if call.description is None or call.cluster is None or call.estimator is None:
        return []
    return choices(call.description, call.cluster, call.estimator, call.bars)


def _lines(call: Call) -> Iterator[str]:
    if not (found := _choices(call)):
        return
    width = max(len("GPU type"), *(len(choice.gpu_type) for choice in found))
    yield ""
    yield f"{'GPU type':{width}}  {'GPUs':>5}  {'steps/s':>10}  {'hours':>10}  known from"
    for place, choice in enumerate(found):
        line = f"{choice.gpu_type:{width}}  {choice.gpus:>5}  "
        if choice.hours is None:
            yield f"{line}{'-':>10}  {'-':>10}  {choice.why_not}"
            continue
        speed = "?" if choice.steps_per_s is None else f"{choice.steps_per_s:.4g}"
        first = ", chosen first" if place == 0 else ""
        source = f"{choice.origin}, +/- x{choice.spread:g}"
        yield f"{line}{speed:>10}  {choice.hours:>10.4g}  {source}{first}"
    if call.description and call.description.copies > 1:
        gangs = call.description.gangs
        one = f"For one copy ({gangs_in_words(gangs)})" if gangs else "For one copy"
        yield f"{one}; up to {call.description.copies} copies share the steps."
    yield "The type it gets depends on the other waiting jobs."
