"""What sinfo says of the nodes that a job may have: Slurm is asked once."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import NamedTuple

from hadar_slurm.core.cluster import Cluster, Node, NodeName
from hadar_slurm.core.time_limit import format_time_limit, parse_time_limit
from hadar_slurm.errors import JobSpecError, SlurmError
from hadar_slurm.jobspec.constraint import allows, fold, fold_out
from hadar_slurm.jobspec.description import Description, is_node_list
from hadar_slurm.jobspec.gres import parse_gpus
from hadar_slurm.slurm.client.runner import Runner
from hadar_slurm.submit.request import SbatchRequest

_SINFO = ("sinfo", "-h", "-N", "-o", "%N|%G|%P|%L|%l|%b")
# All else is what a wrapper of sinfo says of its own.
_ROW = re.compile(r"^([\w.-]+)" + r"\|([^|\n]+)" * 4 + r"\|(.+)$", re.MULTILINE)
_CLOSED = ("sinfo", "-h", "-N", "-t", "down,drain,fail,maint,no_respond", "-o", "%N|")


class OpenNodes(NamedTuple):
    """The nodes with GPUs of all partitions and of a job's that it may have; None: not known."""

    everywhere: Cluster | None = None
    allowed: Cluster | None = None
    # The job's time limit, or that of its partitions where it gives none; 0: none, or not known.
    limit_s: float = 0.0
    # By node.
    features: Mapping[NodeName, Collection[str]] = {}


def open_nodes(request: SbatchRequest, *, heeds_excluded: bool) -> OpenNodes:
    """Return the nodes for a job; raises JobSpecError for a constraint that counts nodes.

    Also for a time limit above those of all its partitions, with which Slurm never starts it,
    unless a QOS or a least time limit is given, which may allow that.

    Those of its partitions `a,b`; of the default one for None, of all for "". Nothing is known if
    Slurm does not answer: sbatch will print why.
    """
    values, limit_s = request.values, request.limit_s
    partitions, excluded = values.get("partition"), values.get("exclude", "")
    is_allowed = allows(values.get("constraint", ""))
    try:
        rows = _ROW.findall(Runner(timeout_s=10).run(_SINFO))
        not_here = set(fold_out(excluded if heeds_excluded else ""))
    except SlurmError:
        rows = []
    if not rows:  # without nodes nothing is known of them
        return OpenNodes(limit_s=limit_s)
    everywhere, here, features, limits, most_s = {}, {}, {}, set(), set()
    for name, gres, partition, default, most, its_features in rows:
        everywhere[name] = node = Node.of(name, parse_gpus(gres))
        if partitions is None:
            is_here = partition.endswith("*")
        else:
            is_here = not partitions or partition.rstrip("*") in partitions.split(",")
        if is_here:
            limits.add(parse_time_limit(default) or parse_time_limit(most) or 0.0)
            most_s.add(parse_time_limit(most) or math.inf)
        features[node.name] = its_features.split(",")
        if is_here and name not in not_here and is_allowed(features[node.name]):
            here[name] = node
    is_bound = not {"qos", "time-min"} & values.keys()
    if is_bound and most_s and limit_s > (longest_s := max(most_s)):
        longest = format_time_limit(longest_s)
        raise JobSpecError(f"--time={values['time']} is above the partition's limit, {longest}")
    whole, part = (Cluster.of(n for n in nodes.values() if n.gpus) for nodes in (everywhere, here))
    if not limit_s and "time" not in values and limits and min(limits) > 0:
        limit_s = max(limits)
    return OpenNodes(whole, part, limit_s, features)


def closed_nodes() -> frozenset[str]:
    """Return the nodes that take no work now; raises SlurmError where Slurm does not answer."""
    text = Runner(timeout_s=10).run(_CLOSED)
    return frozenset(re.findall(r"^([\w.-]+)\|$", text, re.MULTILINE))


class PlacedJob(NamedTuple):
    """A described job, and the nodes that it may have, if they are known."""

    description: Description
    cluster: Cluster | None


def on_open_nodes(
    request: SbatchRequest, description: Description, cluster: Cluster | None
) -> PlacedJob | str:
    """Return the job on the nodes that it may have, or why hadard cannot choose among them.

    An exclusive job excludes the nodes on which it would get more than its gang, unless too few are
    left: hadard counts GPUs, not nodes.
    """
    given = [name for name in ("constraint", "exclude") if name in request.values]
    if "constraint" in given:
        try:
            allows(request.values["constraint"], max(s.nodes for s in description.shapes))
        except JobSpecError as error:
            return str(error)
    if cluster is None:
        return PlacedJob(description, None)
    if given and not cluster.nodes:
        options = " and ".join(f"--{name}={request.values[name]}" for name in given)
        return f"{options} leaves no node with GPUs"
    if "exclusive" not in request.values:
        return PlacedJob(description, cluster)

    def is_filled(node: Node) -> bool:
        gpu_type, count = node.gpus[0]
        return any(shape.gpus_per_node == count for shape in description.shapes_on(gpu_type))

    others = [n.name for n in cluster.nodes if not (n.has_one_type and is_filled(n))]
    if all(shape.nodes > len(cluster.nodes) - len(others) for shape in description.shapes):
        is_plain = not request.hadar_options
        why = "--exclusive is given, and the gang does not fill nodes"
        return why if is_plain else PlacedJob(description, cluster)
    excludes = ",".join(filter(None, (description.excludes, *others)))
    if not is_node_list(excludes):
        excludes = fold(fold_out(excludes))
    left = Cluster.of(n for n in cluster.nodes if n.name not in others)
    return PlacedJob(replace(description, excludes=excludes), left)
