"""The call that hadar-sbatch executes for a job: the sbatch command, variables, decision."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from hadar_slurm.core.cluster import Cluster, Node
from hadar_slurm.core.throughput import parse_table
from hadar_slurm.errors import JobSpecError, SlurmError
from hadar_slurm.handoff import ASSIGNMENTS_VARIABLE, COPIES_VARIABLE, SPOOL_VARIABLE, user_reports
from hadar_slurm.jobspec.description import Description
from hadar_slurm.jobspec.estimator import Estimator
from hadar_slurm.resources import data_file
from hadar_slurm.slurm.client.gres import parse_gpus
from hadar_slurm.slurm.client.runner import Runner
from hadar_slurm.state.heartbeat import Heartbeat
from hadar_slurm.submit.compose import check_exports, compose
from hadar_slurm.submit.decision import Decision, why_chosen, why_left, why_place_chosen
from hadar_slurm.submit.describe import check_fits, describe, summary, unknown_model
from hadar_slurm.submit.request import PREFIX, SbatchRequest, without_hadar
from hadar_slurm.submit.served import find_hadard


@dataclass(frozen=True, slots=True)
class Call:
    """One call of sbatch, and whether hadard manages the job."""

    argv: tuple[str, ...]
    decision: Decision
    # Environment variables to add.
    variables: Mapping[str, str] = field(default_factory=dict)
    # Details of the decision, for the user.
    notes: tuple[str, ...] = ()
    # The description of the job for hadard.
    description: Description | None = None
    # The GPUs of the job's partition, if known.
    cluster: Cluster | None = None

    @property
    def is_held(self) -> bool:
        """Return whether the job is submitted held, for hadard to release."""
        return self.decision.taken


def call_for(
    request: SbatchRequest, environment: Mapping[str, str], *, is_parsable: bool = False
) -> Call:
    """Return the call for a request; raises JobSpecError naming the invalid value.

    `is_parsable` adds --parsable, with which sbatch prints only the job's id.
    """
    call = _call(request, environment)
    if not is_parsable:
        return call
    if request.given("quiet"):
        raise JobSpecError("--quiet is given: sbatch would not print the job id; leave it out")
    name, *words = call.argv
    return replace(call, argv=(name, "--parsable", *words))


def _call(request: SbatchRequest, environment: Mapping[str, str]) -> Call:
    why = why_left(request)
    if why:
        return _left_to_slurm(request, why)
    if request.has_components:
        raise JobSpecError(
            "':' or hetjob is given: Hadar cannot place the components of a heterogeneous job; "
            f"give no {PREFIX}... option, or --no-hadar"
        )
    beat, unserved = find_hadard(request, environment)
    if request.own:
        return _placed(request, environment, beat, unserved)
    # A job without --hadar-... options is held only if hadard would place it, and never refused.
    if unserved:
        return _left_to_slurm(request, unserved)
    try:
        return _placed(request, environment, beat, unserved)
    except JobSpecError as error:
        return _left_to_slurm(request, str(error))


def _placed(
    request: SbatchRequest,
    environment: Mapping[str, str],
    beat: Heartbeat | None,
    unserved: str,
) -> Call:
    """Return the call for a job that is described to hadard, unless its user chose the place.

    A job that is `unserved`, or held by its user, is not held for hadard.
    """
    rows = _node_rows()
    cluster = _cluster(rows)
    own_cluster = _cluster(rows, request.last("partition"))
    estimator = load_estimator()
    description = describe(request, estimator, own_cluster)
    if cluster is not None and cluster.nodes:
        check_fits(description, cluster)
    chosen = why_place_chosen(request)
    if chosen:
        return _left_to_slurm(request, chosen)
    # A hold set by the user is not hadard's to release.
    why_not = unserved or why_chosen(request)
    is_held = not why_not
    decision = Decision(is_held, why_not or summary(description, request, estimator.table))
    variables = {}
    if beat is not None:
        variables[SPOOL_VARIABLE] = str(user_reports(Path(beat.spool), os.getuid()))
        if beat.assignments:
            variables[ASSIGNMENTS_VARIABLE] = beat.assignments
    variables = {name: text for name, text in variables.items() if name not in environment}
    notes = []
    unknown = unknown_model(description, estimator.table)
    if unknown:
        notes.append(unknown)
    if "copies" in request.own and description.copies == 1:
        notes.append("only one node suits a copy: submitted as an ordinary job")
    if is_held and description.copies > 1:
        check_exports(request)
        variables[COPIES_VARIABLE] = str(description.copies)
    argv = compose(request, description, is_held=is_held)
    return Call(argv, decision, variables, tuple(notes), description, own_cluster)


def _left_to_slurm(request: SbatchRequest, why: str) -> Call:
    return Call(without_hadar(request), Decision(False, why))


def load_estimator() -> Estimator:
    """Return the estimator with the shipped throughput table."""
    path = data_file("throughputs.json")
    return Estimator.shipped(parse_table(path.read_text(encoding="utf-8"), str(path)))


def _node_rows() -> list[tuple[str, str, str]] | None:
    """Return (name, GPUs, partition) of each node and partition.

    None if Slurm does not answer: sbatch will print why.
    """
    try:
        text = Runner(timeout_s=10).run(["sinfo", "-h", "-N", "-o", "%N|%G|%P"])
    except SlurmError:
        return None
    rows = (line.split("|") for line in text.splitlines())
    return [(name, gres, partition) for name, gres, partition in rows]


def _cluster(
    rows: list[tuple[str, str, str]] | None, partitions: str | None = ""
) -> Cluster | None:
    """Return the GPUs of partitions `a,b`; None: the default one, "": all."""
    if rows is None:
        return None
    found = {}
    for name, gres, partition in rows:
        is_default, name_of_it = partition.endswith("*"), partition.rstrip("*")
        if partitions is None:
            is_in = is_default
        else:
            is_in = not partitions or name_of_it in partitions.split(",")
        if is_in:
            found[name] = Node.of(name, parse_gpus(gres))
    return Cluster.of(node for node in found.values() if node.gpus)
