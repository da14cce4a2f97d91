"""The call for a job that is described to hadard: described once, decided once, composed once."""

from __future__ import annotations

from collections.abc import Mapping

from hadar_slurm.errors import JobSpecError
from hadar_slurm.job_files import COPIES_VARIABLE
from hadar_slurm.jobspec.estimator import Estimator
from hadar_slurm.submit.compose import compose, variables
from hadar_slurm.submit.decision import Bars, Call, Decision, Reason
from hadar_slurm.submit.describing.describe import describe, estimator_of
from hadar_slurm.submit.describing.fitting import check_fits, in_one_copy
from hadar_slurm.submit.describing.summary import told
from hadar_slurm.submit.nodes import PlacedJob, on_open_nodes, open_nodes
from hadar_slurm.submit.request import SbatchRequest
from hadar_slurm.submit.service import Service
from hadar_slurm.submit.unsuitable import unsuitable


def managed_call(
    request: SbatchRequest, environment: Mapping[str, str], service: Service, reason: Reason | None
) -> Call:
    """Return the call that describes a job to hadard; plain sbatch's if an option fixes its nodes.

    The call submits the job held, for hadard to release, unless there is a `reason` not to. Where
    waiting jobs are not held, it excludes the nodes on which the job cannot run, or on which its
    workload has failed by hadard's file.
    """
    estimator = estimator_of(service.beat)
    job = _job(request, estimator, service, reason)
    if isinstance(job, str):
        return Call(request.plain_call, Decision(False, job))
    description, cluster = job
    failures = None if service.why_not else service.run_dir
    bars, wrong = unsuitable(description, estimator, cluster, failures)
    # Only hadard can put copies on separate nodes, and choose a type on every node: they are held.
    may_steer = service.steers and description.copies == 1 and wrong is not None
    is_held = reason is None and not may_steer
    why, notes = told(description, request, estimator.table, bars)
    kept_off = wrong if may_steer and reason is None else ()
    unheld = in_one_copy(description, description.gpus)
    taken = description if is_held else unheld
    call = Call(
        variables=variables(request, service.beat, taken.copies, environment),
        argv=compose(request, taken, is_held=is_held, excluded=kept_off or ()),
        decision=Decision(False, reason.why) if reason else Decision(True, why),
        notes=notes,
        description=description,
        cluster=cluster,
        estimator=estimator,
        bars=bars,
        is_held=is_held,
    )
    if not is_held:
        return call
    late = Decision(False, "Slurm cannot start it now")
    if not request.hadar_options:
        return call._replace(otherwise=Call(request.plain_call, late))
    argv = compose(request, unheld, is_held=False)
    added = {name: text for name, text in call.variables.items() if name != COPIES_VARIABLE}
    otherwise = call._replace(argv=argv, decision=late, variables=added, is_held=False)
    return call._replace(otherwise=otherwise)


def _job(
    request: SbatchRequest, estimator: Estimator, service: Service, reason: Reason | None
) -> PlacedJob | str:
    """Return the described job, or why it is left to plain Slurm."""
    has_nodes = reason is not None and reason.bars is Bars.NODES
    try:
        nodes = open_nodes(request, heeds_excluded=not has_nodes)
    except JobSpecError as error:
        return str(error)
    if not nodes.limit_s and not request.hadar_options:
        return "no time limit is given (--time), and the partition sets none"
    description = describe(request, estimator, nodes.allowed, nodes.limit_s)
    if "signal" in request.values or (service.beat and service.beat.preemptible):
        from hadar_slurm.submit.describing.own_signal import as_movable

        description = as_movable(description, request, service)
    if nodes.everywhere is not None and nodes.everywhere.nodes:
        check_fits(description, nodes.everywhere, estimator)
    if reason is not None and has_nodes:
        return reason.why
    return on_open_nodes(request, description, nodes.allowed)
