"""The call for a job that is described to hadard: described once, decided once, composed once."""

from __future__ import annotations

from collections.abc import Mapping

from hadar_slurm.core.gpu_types import NO_TYPES
from hadar_slurm.errors import HadarError, JobSpecError
from hadar_slurm.job_files import COPIES_VARIABLE
from hadar_slurm.jobspec.estimator import Estimator
from hadar_slurm.jobspec.throughput_table import parse_table
from hadar_slurm.resources import data_file
from hadar_slurm.state.heartbeat import Heartbeat
from hadar_slurm.submit.compose import compose, variables
from hadar_slurm.submit.decision import Bars, Call, Decision, Reason
from hadar_slurm.submit.describing.describe import describe
from hadar_slurm.submit.describing.fitting import check_fits, in_one_copy
from hadar_slurm.submit.describing.summary import told
from hadar_slurm.submit.describing.type_list import layout_of, may_list, type_list
from hadar_slurm.submit.nodes import PlacedJob, closed_nodes, on_open_nodes, open_nodes
from hadar_slurm.submit.own_options import NO_HADAR
from hadar_slurm.submit.request import SbatchRequest
from hadar_slurm.submit.service import Service, not_placed, service_for
from hadar_slurm.submit.unsuitable import unsuitable

# A time limit for jobs without one: it changes no relative speeds.
_SOME_S = 3600.0


def managed_call(
    request: SbatchRequest, environment: Mapping[str, str], service: Service, reason: Reason | None
) -> Call:
    """Return the call that describes a job to hadard; plain sbatch's if an option fixes its nodes.

    The call submits the job held, for hadard to release, unless there is a `reason` not to. Where
    waiting jobs are not held, it excludes the nodes on which the job cannot run, or on which its
    workload has failed by hadard's file.
    """
    estimator = _estimator(service.beat)
    job = _job(request, estimator, reason)
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


def typed(request: SbatchRequest, environment: Mapping[str, str], call: Call) -> Call:
    """Return a call of plain Slurm's with a list of GPU types, if its nodes could be of several.

    The call as it was, for where Slurm refuses that, is its `otherwise`.
    """
    if not may_list(request):
        return call
    partition = request.values.get("partition")
    beat = service_for(environment, partition).beat
    is_hadards = call.description is not None or (beat is not None and beat.enrols)
    if is_hadards and not (beat and not_placed(beat, partition)):
        # hadard takes it up as soon as it is back, but no job with such a list.
        return call
    estimator = _estimator(beat)
    try:
        description = describe(request, estimator, limit_s=_SOME_S)
        layout = layout_of(request, description)
        if layout.most_nodes < 2:
            return call
        nodes, closed = open_nodes(request, heeds_excluded=True), closed_nodes()
    except HadarError:
        return call
    if nodes.allowed is None:
        return call
    found = type_list(
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


def _job(request: SbatchRequest, estimator: Estimator, reason: Reason | None) -> PlacedJob | str:
    """Return the described job, or why it is left to plain Slurm."""
    has_nodes = reason is not None and reason.bars is Bars.NODES
    try:
        nodes = open_nodes(request, heeds_excluded=not has_nodes)
    except JobSpecError as error:
        return str(error)
    if not nodes.limit_s and not request.hadar_options:
        return "no time limit is given (--time), and the partition sets none"
    description = describe(request, estimator, nodes.allowed, nodes.limit_s)
    if nodes.everywhere is not None and nodes.everywhere.nodes:
        check_fits(description, nodes.everywhere, estimator)
    if reason is not None and has_nodes:
        return reason.why
    return on_open_nodes(request, description, nodes.allowed)


def _estimator(beat: Heartbeat | None) -> Estimator:
    """Return the estimator with the shipped tables, and the site's own values of GPU types."""
    path = data_file("throughputs.json")
    table = parse_table(path.read_text(encoding="utf-8"), str(path))
    return Estimator.shipped(table, own_types=beat.gpu_types if beat else NO_TYPES)
