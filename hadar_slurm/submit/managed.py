"""The call for a job that is described to hadard: described once, decided once, composed once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hadar_slurm.core.cluster import NodeName
from hadar_slurm.core.gpu_types import NO_TYPES
from hadar_slurm.core.throughput import parse_table
from hadar_slurm.errors import JobSpecError
from hadar_slurm.jobspec.estimator import Estimator
from hadar_slurm.resources import data_file
from hadar_slurm.state.heartbeat import Heartbeat
from hadar_slurm.submit.compose import compose, variables
from hadar_slurm.submit.decision import Call, Decision, Fixed, why_fixed
from hadar_slurm.submit.describing.describe import describe
from hadar_slurm.submit.describing.fitting import check_fits
from hadar_slurm.submit.describing.summary import told
from hadar_slurm.submit.nodes import PlacedJob, on_open_nodes, open_nodes
from hadar_slurm.submit.request import SbatchRequest
from hadar_slurm.submit.unsuitable import unsuitable


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
    fixed, estimator = why_fixed(request), _estimator(beat)
    job = _job(request, estimator, fixed)
    if isinstance(job, str):
        return Call(request.plain_call, Decision(False, job))
    description, cluster = job
    why_not, reads_failures = unserved or fixed.either, not unserved
    bars, wrong = unsuitable(description, estimator, cluster, run_dir if reads_failures else None)
    is_held = not why_not
    kept_off: tuple[NodeName, ...] = ()
    # Only hadard can put copies on separate nodes, and choose a type on every node: they are held.
    if (
        is_held
        and description.copies == 1
        and wrong is not None
        and beat is not None
        and beat.steers(request.values.get("partition"))
    ):
        is_held, kept_off = False, wrong
    why, notes = told(description, request, estimator.table, bars)
    return Call(
        argv=compose(request, description, is_held=is_held, excluded=kept_off),
        decision=Decision(not why_not, why_not or why),
        variables=variables(request, beat, description.copies if is_held else 1, environment),
        notes=notes,
        description=description,
        cluster=cluster,
        estimator=estimator,
        bars=bars,
        is_held=is_held,
    )


def _job(request: SbatchRequest, estimator: Estimator, fixed: Fixed) -> PlacedJob | str:
    """Return the described job, or why it is left to plain Slurm."""
    try:
        nodes = open_nodes(request, heeds_excluded=not fixed.nodes)
    except JobSpecError as error:
        return str(error)
    if not nodes.limit_s and not request.hadar_options:
        return "no time limit is given (--time), and the partition sets none"
    description = describe(request, estimator, nodes.allowed, nodes.limit_s)
    if nodes.everywhere is not None and nodes.everywhere.nodes:
        check_fits(description, nodes.everywhere, estimator)
    return fixed.nodes or on_open_nodes(request, description, nodes.allowed)


def _estimator(beat: Heartbeat | None) -> Estimator:
    """Return the estimator with the shipped tables, and the site's own values of GPU types."""
    path = data_file("throughputs.json")
    table = parse_table(path.read_text(encoding="utf-8"), str(path))
    return Estimator.shipped(table, own_types=beat.gpu_types if beat else NO_TYPES)
