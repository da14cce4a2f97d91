"""What hadar-sbatch will execute for a job, and why: the sbatch call, variables, notes."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from hadar_slurm.core.cluster import Cluster, Node
from hadar_slurm.core.throughput import parse_table
from hadar_slurm.errors import JobSpecError, SlurmError
from hadar_slurm.handoff import ASSIGNMENTS_VARIABLE, COPIES_VARIABLE, SPOOL_VARIABLE, user_reports
from hadar_slurm.resources import data_file
from hadar_slurm.slurm.estimates import Estimator
from hadar_slurm.slurm.gres import parse_gpus
from hadar_slurm.slurm.heartbeat import Heartbeat, read_heartbeat, run_dir
from hadar_slurm.slurm.metadata import Description
from hadar_slurm.slurm.runner import Runner
from hadar_slurm.submit.request import NO_HADAR, PREFIX, Request, without_hadar
from hadar_slurm.submit.submission import (
    check_exports,
    check_fits,
    compose,
    describe,
    unknown_model,
)

# Options by which a user chooses the place: hadard could only disagree.
_PLACES = ("nodelist", "exclude", "constraint", "reservation", "nodefile", "clusters")


@dataclass(frozen=True, slots=True)
class Call:
    """One call of sbatch: its words, the variables added for it, and notes for the user.

    `description` is of a job that Hadar places, on the GPUs of `cluster` if they are known;
    `is_held` says that it waits for hadard.
    """

    argv: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    description: Description | None = None
    cluster: Cluster | None = None
    is_held: bool = False


def call_for(
    request: Request, environment: Mapping[str, str], *, is_parsable: bool = False
) -> Call:
    """Return the call for a request; raises JobSpecError naming what cannot be.

    `is_parsable` has sbatch say the job's id in the form of --parsable.
    """
    call = _call(request, environment)
    if not is_parsable:
        return call
    if request.given("quiet"):
        raise JobSpecError("--quiet is given: sbatch does not tell the job then; leave it out")
    name, *words = call.argv
    return replace(call, argv=(name, "--parsable", *words))


def _call(request: Request, environment: Mapping[str, str]) -> Call:
    if NO_HADAR in request.flags:
        return _left_to_slurm(request, "--no-hadar is given")
    beat = read_heartbeat(run_dir(environment))
    is_at_work = beat is not None and beat.covers(request.last("partition"), time.time())
    if request.own:
        if request.has_components:
            raise JobSpecError(
                "':' or hetjob is given: Hadar cannot place the components of a heterogeneous job; "
                f"give no {PREFIX}... option, or --no-hadar"
            )
        return _placed(request, environment, beat, is_at_work=is_at_work)
    # Who says nothing of Hadar loses nothing by it: the job waits for hadard only where it may go
    # anywhere and hadard is there to place it, and nothing about it is refused.
    if not request.leaves_type_open:
        return _left_to_slurm(request, f"no {PREFIX}... option, nor GPUs of any type and --time")
    if not is_at_work or request.has_components or request.given("hold"):
        return _left_to_slurm(request, f"no {PREFIX}... option")
    try:
        return _placed(request, environment, beat, is_at_work=is_at_work)
    except JobSpecError as error:
        return _left_to_slurm(request, str(error))


def _placed(
    request: Request,
    environment: Mapping[str, str],
    beat: Heartbeat | None,
    *,
    is_at_work: bool,
) -> Call:
    """Return the call for a job that Hadar is to place, unless its user has chosen the place."""
    rows = _node_rows()
    cluster = _cluster(rows)
    own_cluster = _cluster(rows, request.last("partition"))
    estimator = load_estimator()
    description = describe(request, estimator, own_cluster)
    if cluster is not None and cluster.nodes:
        check_fits(description, cluster)
    chosen = next((name for name in _PLACES if request.given(name)), None)
    if chosen:
        return _left_to_slurm(request, f"--{chosen} is given")
    # A job that its user holds is not ours to release.
    is_held = is_at_work and not request.given("hold")
    variables = {}
    if beat is not None:
        variables[SPOOL_VARIABLE] = str(user_reports(Path(beat.spool), os.getuid()))
        if beat.assignments:
            variables[ASSIGNMENTS_VARIABLE] = beat.assignments
    variables = {name: text for name, text in variables.items() if name not in environment}
    notes = [] if is_at_work else ["hadard is not at work here: submitted to plain Slurm, unheld"]
    unknown = unknown_model(description, estimator.table)
    if unknown:
        notes.append(unknown)
    if "copies" in request.own and description.copies == 1:
        notes.append("one node suits a copy: submitted as an ordinary job")
    if is_held and description.copies > 1:
        check_exports(request)
        variables[COPIES_VARIABLE] = str(description.copies)
    argv = compose(request, description, is_held=is_held)
    return Call(argv, variables, tuple(notes), description, own_cluster, is_held)


def _left_to_slurm(request: Request, why: str) -> Call:
    return Call(without_hadar(request), notes=(f"{why}: left to Slurm, not placed by Hadar",))


def load_estimator() -> Estimator:
    """Return what can be known of speeds before anything is measured: what is shipped."""
    path = data_file("throughputs.json")
    return Estimator.shipped(parse_table(path.read_text(encoding="utf-8"), str(path)))


def _node_rows() -> list[tuple[str, str, str]] | None:
    """Return each node's name, GPUs and partition, once for each partition.

    None where Slurm does not answer: sbatch will say why.
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
    """Return the GPUs of partitions, `a,b`; of the default one for None, of all for nothing."""
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
