"""The call for a job that is described to hadard: described once, composed once."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from hadar_slurm.core.cluster import Cluster, Node, NodeName
from hadar_slurm.core.gpu_types import NO_TYPES
from hadar_slurm.core.throughput import parse_table
from hadar_slurm.core.time_limit import late_types, parse_time_limit
from hadar_slurm.errors import JobSpecError, SlurmError
from hadar_slurm.job_files import (
    ASSIGNMENTS_VARIABLE,
    COPIES_VARIABLE,
    SPOOL_VARIABLE,
    user_reports,
)
from hadar_slurm.jobspec.description import Description, is_node_list
from hadar_slurm.jobspec.estimator import Estimator, fitting_types, words, work_of
from hadar_slurm.resources import data_file
from hadar_slurm.slurm.client.constraint import Allows, allows
from hadar_slurm.slurm.client.gres import parse_gpus
from hadar_slurm.slurm.client.runner import Runner
from hadar_slurm.state.failures import read_failures
from hadar_slurm.state.heartbeat import Heartbeat
from hadar_slurm.submit.compose import check_exports, compose
from hadar_slurm.submit.decision import Call, Decision, why_nodes_fixed, why_nodes_or_start_fixed
from hadar_slurm.submit.describe import check_fits, describe, summary, unknown_model
from hadar_slurm.submit.request import SbatchRequest


def managed_call(
    request: SbatchRequest,
    environment: Mapping[str, str],
    beat: Heartbeat | None,
    unserved: str,
    run_dir: Path,
) -> Call:
    """Return the call that describes a job to hadard; plain sbatch's if an option fixes its nodes.

    The call submits the job held, for hadard to release, unless `unserved` says why hadard does not
    serve it, or its user holds it. Where waiting jobs are not held, it excludes the nodes on which
    the job cannot run, or on which its workload has failed by hadard's file in `run_dir`.
    """
    why_fixed, why_not = why_nodes_fixed(request), unserved or why_nodes_or_start_fixed(request)
    constraint = request.values.get("constraint", "")
    try:
        excluded = "" if why_fixed else request.values.get("exclude", "")
        nodes = _nodes(request.values.get("partition"), allows(constraint), excluded)
    except JobSpecError as error:
        return _left(request, str(error))
    cluster, own_cluster = nodes.everywhere, nodes.allowed
    estimator = _estimator(beat)
    limit_s = request.limit_s or (0.0 if "time" in request.values else nodes.limit_s)
    if not limit_s and not request.hadar_options:
        return _left(request, "no time limit is given (--time), and the partition sets none")
    description = describe(request, estimator, own_cluster, limit_s)
    if cluster is not None and cluster.nodes:
        check_fits(description, cluster, estimator)
    if why := why_fixed or _why_not_satisfied(request, description, own_cluster):
        return _left(request, why)
    if "exclusive" in request.values and own_cluster is not None:
        others = _of_other_sizes(description, own_cluster)
        if others is not None:
            own_cluster = Cluster.of(n for n in own_cluster.nodes if n.name not in others)
            description = replace(description, excludes=_with(description.excludes, others))
        elif not request.hadar_options:
            return _left(request, "--exclusive is given, and the gang does not fill nodes")
    is_taken = not why_not
    bars = {} if unserved else _bars(description, estimator, own_cluster, run_dir)
    impossible = _impossible(description, estimator, own_cluster, bars)
    # Only hadard can put copies on separate nodes, and choose a type on every node: they are held.
    is_steered = (
        is_taken
        and description.copies == 1
        and impossible is not None
        and beat is not None
        and beat.steers(request.values.get("partition"))
    )
    is_held = is_taken and not is_steered
    decision = Decision(is_taken, why_not or summary(description, request, estimator.table))
    unknown = unknown_model(description, estimator.table)
    notes = [unknown] if unknown else []
    notes += [f"not on {name}: {why}" for name, why in bars.items()]
    if "copies" in request.hadar_options and description.copies == 1:
        notes.append("only one node suits a copy: submitted as an ordinary job")
    variables = {}
    if beat is not None:
        # The directories that the job shares with hadard.
        variables[SPOOL_VARIABLE] = str(user_reports(Path(beat.spool), os.getuid()))
        if beat.assignments:
            variables[ASSIGNMENTS_VARIABLE] = beat.assignments
    variables = {name: text for name, text in variables.items() if name not in environment}
    if is_held and description.copies > 1:
        check_exports(request)
        variables[COPIES_VARIABLE] = str(description.copies)
    kept_off = impossible or () if is_steered else ()
    argv = compose(request, description, is_held=is_held, excluded=kept_off)
    told = tuple(notes)
    return Call(argv, decision, variables, told, description, own_cluster, estimator, bars, is_held)


def _of_other_sizes(description: Description, cluster: Cluster) -> list[NodeName] | None:
    """Return the nodes on which an exclusive job would get other GPUs than its gang.

    None where no others are left: hadard counts GPUs, not nodes.
    """

    def is_filled(node: Node) -> bool:
        gpu_type, count = node.gpus[0]
        return any(shape.gpus_per_node == count for shape in description.shapes_on(gpu_type))

    others = [n.name for n in cluster.nodes if not (n.has_one_type and is_filled(n))]
    left = len(cluster.nodes) - len(others)
    return others if any(shape.nodes <= left for shape in description.shapes) else None


def _with(excludes: str, nodes: Sequence[NodeName]) -> str:
    """Return a list of nodes with more of them, in Slurm's syntax."""
    text = ",".join(filter(None, (excludes, *nodes)))
    if is_node_list(text):
        return text
    return Runner(timeout_s=10).run(["scontrol", "show", "hostlistsorted", text]).strip()


def _left(request: SbatchRequest, why: str) -> Call:
    """Return the call that leaves a job to plain Slurm."""
    return Call(request.plain_call, Decision(False, why))


def _impossible(
    description: Description,
    estimator: Estimator,
    cluster: Cluster | None,
    bars: Mapping[str, str],
) -> tuple[NodeName, ...] | None:
    """Return the nodes of a job's partition with a type on which it does not run or end in time.

    None where these are all, and where the nodes are not known. hadard gives a job more time on a
    slower type, sbatch does not.
    """
    if cluster is None:
        return None
    throughputs = estimator.throughputs(description, "", cluster.gpus_by_type, without=bars)
    size = description.gpus
    if description.limit_s and (description.steps or description.time_on):
        limits_s = dict.fromkeys(throughputs.gpu_types, description.limit_s)
        steps = estimator.total_steps(description, throughputs)
        late = late_types(throughputs, size, steps, limits_s, cluster.gpus_by_type)
        throughputs = throughputs.without(late.keys())
    wrong = [
        node.name
        for node in cluster.nodes
        if not throughputs.run_on_all((k for k, _ in node.gpus), size)
    ]
    return tuple(wrong) if len(wrong) < len(cluster.nodes) else None


def _bars(
    description: Description, estimator: Estimator, cluster: Cluster | None, run_dir: Path
) -> dict[str, str]:
    """Return why failures deprive the job of GPU types, by their names in lower case."""
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return {}
    work = work_of(description, user)
    if cluster is None or work is None or description.copies > 1:
        return {}
    estimator.heed(work, read_failures(run_dir, work))
    types = fitting_types(cluster.nodes, description.shapes)
    return {k: words(bar) for k, bar in estimator.barred(description, user, types).items()}


def _estimator(beat: Heartbeat | None) -> Estimator:
    """Return the estimator with the shipped tables, and the site's own values of GPU types."""
    path = data_file("throughputs.json")
    table = parse_table(path.read_text(encoding="utf-8"), str(path))
    return Estimator.shipped(table, own_types=beat.gpu_types if beat else NO_TYPES)


def _why_not_satisfied(
    request: SbatchRequest, description: Description, cluster: Cluster | None
) -> str:
    """Return why hadard cannot place a job with a constraint or excluded nodes; "" if it can."""
    given = [name for name in ("constraint", "exclude") if name in request.values]
    if "constraint" in given:
        try:
            constraint, most = (
                request.values["constraint"],
                max(s.nodes for s in description.shapes),
            )
            allows(constraint, most)
        except JobSpecError as error:
            return str(error)
    if not given or cluster is None or cluster.nodes:
        return ""
    options = " and ".join(f"--{name}={request.values[name]}" for name in given)
    return f"{options} leaves no node with GPUs"


class _Nodes(NamedTuple):
    """The nodes with GPUs of all partitions and of a job's that it may have; None: not known."""

    everywhere: Cluster | None = None
    allowed: Cluster | None = None
    # The time limit of a job that gives none, in seconds; 0: none, or not known.
    limit_s: float = 0.0


def _nodes(partitions: str | None, is_allowed: Allows, excluded: str = "") -> _Nodes:
    """Return the nodes for a job of partitions `a,b`; of the default one for None, of all for "".

    `excluded` is a list of nodes that it must not have, in Slurm's syntax.
    Nothing is known if Slurm does not answer: sbatch will print why.
    """
    try:
        runner = Runner(timeout_s=10)
        text = runner.run(["sinfo", "-h", "-N", "-o", "%N|%G|%P|%L|%l|%b"])
        hostnames = ["scontrol", "show", "hostnames", excluded]
        not_here = set(runner.run(hostnames).split()) if excluded else set()
    except SlurmError:
        return _Nodes()
    everywhere, here, limits = {}, {}, set()
    for line in text.splitlines():
        name, gres, partition, default, most, features = line.split("|", 5)
        everywhere[name] = node = Node.of(name, parse_gpus(gres))
        if partitions is None:
            is_here = partition.endswith("*")
        else:
            is_here = not partitions or partition.rstrip("*") in partitions.split(",")
        if is_here:
            limits.add(parse_time_limit(default) or parse_time_limit(most) or 0.0)
        if is_here and name not in not_here and is_allowed(features.split(",")):
            here[name] = node
    whole, part = (Cluster.of(n for n in nodes.values() if n.gpus) for nodes in (everywhere, here))
    return _Nodes(whole, part, max(limits) if limits and min(limits) > 0 else 0.0)
