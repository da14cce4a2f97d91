"""The call for a job that is described to hadard: described once, composed once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from hadar_slurm.core.cluster import Cluster, Node, NodeName
from hadar_slurm.core.throughput import parse_table
from hadar_slurm.errors import SlurmError
from hadar_slurm.handoff import ASSIGNMENTS_VARIABLE, COPIES_VARIABLE, SPOOL_VARIABLE, user_reports
from hadar_slurm.jobspec.description import Description
from hadar_slurm.jobspec.estimator import Estimator
from hadar_slurm.resources import data_file
from hadar_slurm.slurm.client.gres import parse_gpus
from hadar_slurm.slurm.client.runner import Runner
from hadar_slurm.state.heartbeat import Heartbeat
from hadar_slurm.submit.compose import check_exports, compose
from hadar_slurm.submit.decision import Call, Decision, why_nodes_fixed, why_nodes_or_start_fixed
from hadar_slurm.submit.describe import check_fits, describe, summary, unknown_model
from hadar_slurm.submit.request import SbatchRequest


def managed_call(
    request: SbatchRequest, environment: Mapping[str, str], beat: Heartbeat | None, unserved: str
) -> Call:
    """Return the call that describes a job to hadard; plain sbatch's if an option fixes its nodes.

    The call submits the job held, for hadard to release, unless `unserved` says why hadard does not
    serve it, or its user holds it. Where waiting jobs are not held, it excludes the nodes on which
    the job cannot run.
    """
    why_fixed, why_not = why_nodes_fixed(request), unserved or why_nodes_or_start_fixed(request)
    cluster, own_cluster = _clusters(request.values.get("partition"))
    estimator = load_estimator()
    description = describe(request, estimator, own_cluster)
    if cluster is not None and cluster.nodes:
        check_fits(description, cluster)
    if why_fixed:
        return Call(request.plain_call, Decision(False, why_fixed))
    is_taken = not why_not
    excluded = _impossible(description, estimator, own_cluster)
    # Only hadard can put copies on separate nodes, and choose a type on every node: they are held.
    is_steered = (
        is_taken
        and description.copies == 1
        and excluded is not None
        and beat is not None
        and beat.steers(request.values.get("partition"))
    )
    is_held = is_taken and not is_steered
    decision = Decision(is_taken, why_not or summary(description, request, estimator.table))
    unknown = unknown_model(description, estimator.table)
    notes = [unknown] if unknown else []
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
    kept_off = excluded or () if is_steered else ()
    argv = compose(request, description, is_held=is_held, excluded=kept_off)
    return Call(argv, decision, variables, tuple(notes), description, own_cluster)


def _impossible(
    description: Description, estimator: Estimator, cluster: Cluster | None
) -> tuple[NodeName, ...] | None:
    """Return the nodes of a job's partition with a type on which it does not run.

    None where these are all, and where the nodes are not known.
    """
    if cluster is None:
        return None
    throughputs = estimator.throughputs(description, "", cluster.gpus_by_type)
    size = description.gpus
    wrong = [
        node.name
        for node in cluster.nodes
        if not throughputs.run_on_all((k for k, _ in node.gpus), size)
    ]
    return tuple(wrong) if len(wrong) < len(cluster.nodes) else None


def load_estimator() -> Estimator:
    """Return the estimator with the shipped throughput table."""
    path = data_file("throughputs.json")
    return Estimator.shipped(parse_table(path.read_text(encoding="utf-8"), str(path)))


def _clusters(partitions: str | None) -> tuple[Cluster | None, Cluster | None]:
    """Return all GPUs, and those of partitions `a,b`; of the default one for None, of all for "".

    None if Slurm does not answer: sbatch will print why.
    """
    try:
        text = Runner(timeout_s=10).run(["sinfo", "-h", "-N", "-o", "%N|%G|%P"])
    except SlurmError:
        return None, None
    everywhere, here = {}, {}
    for line in text.splitlines():
        name, gres, partition = line.split("|")
        everywhere[name] = node = Node.of(name, parse_gpus(gres))
        if partitions is None:
            is_here = partition.endswith("*")
        else:
            is_here = not partitions or partition.rstrip("*") in partitions.split(",")
        if is_here:
            here[name] = node
    whole, part = (Cluster.of(n for n in nodes.values() if n.gpus) for nodes in (everywhere, here))
    return whole, part
