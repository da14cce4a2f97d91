"""Builds a job's description for hadard from the request, and what estimates its throughput."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path

from hadar_slurm.core.cluster import Cluster
from hadar_slurm.core.gpu_types import NO_TYPES, Needs
from hadar_slurm.core.throughput import ThroughputTable
from hadar_slurm.errors import JobSpecError
from hadar_slurm.jobspec.description import Description, is_node_list
from hadar_slurm.jobspec.estimator import Estimator
from hadar_slurm.jobspec.identity import Shown, workload_name, workload_of_shown
from hadar_slurm.jobspec.throughput_table import parse_table
from hadar_slurm.resources import data_file
from hadar_slurm.state.heartbeat import Heartbeat
from hadar_slurm.submit.describing.copy_gangs import copy_gangs
from hadar_slurm.submit.describing.fitting import with_copies
from hadar_slurm.submit.describing.gang import gang_of
from hadar_slurm.submit.describing.option_numbers import option_numbers
from hadar_slurm.submit.own_options import PREFIX
from hadar_slurm.submit.request import SbatchRequest


def describe(
    request: SbatchRequest,
    estimator: Estimator,
    cluster: Cluster | None = None,
    limit_s: float = 0.0,
) -> Description:
    """Return the job's description; raises JobSpecError naming the wrong value.

    On a known `cluster` the number of copies is limited to the nodes that suit. `limit_s`: the time
    limit in seconds where the request gives none; 0 if there is none.
    """
    given, limit_s = request.hadar_options, request.limit_s or limit_s
    gangs = copy_gangs(request)
    gang = gang_of(request, gangs)
    excluded = request.values.get("exclude", "")
    excludes = excluded if is_node_list(excluded) else ""  # others leave the job to Slurm
    numbers = option_numbers(given)
    saves = numbers.saves and "no-requeue" not in request.values
    types = _types(request)
    _check(given, limit_s)
    found = Description(
        steps=numbers.steps,
        limit_s=limit_s,
        gpus=gang.gpus,
        asks=gang.asks,
        shape=gang.shape,
        copies=2 if gangs.gpus else 1,  # until they are counted
        gangs=gangs.gpus,
        cores=gangs.cores,
        memory_mb=gangs.memory_mb,
        checkpoint=saves,
        restart_loss_s=numbers.loss_s if saves else 0.0,
        restart_cost_s=numbers.restart_cost_s,
        comment=request.values.get("comment", ""),
        throughputs=numbers.throughputs,
        workload=_workload(request, estimator.table, numbers.batch_size),
        needs=Needs(
            types=types,
            memory_gb=numbers.memory_gb,
            compute_capability=numbers.compute_capability,
        ),
        time_on=given.get("time-on", "").lower(),
        excludes=excludes,
    )
    return with_copies(found, numbers.copies, estimator, cluster) if "copies" in given else found


def _check(given: Mapping[str, str], limit_s: float) -> None:
    """Raise JobSpecError where an option is missing, or is given for nothing."""
    forks, has_speeds = "copies" in given, "throughput" in given
    if "steps" not in given and (forks or not limit_s or has_speeds):
        remedy = "" if forks or has_speeds else ", or --time how long it trains at most"
        text = f"how many training steps the job has in all{remedy}"
        raise JobSpecError(f"{PREFIX}steps is missing: {text}")
    if given.get("time-on") and not limit_s:
        text = f"{given['time-on']}: of which time limit? give --time too"
        raise JobSpecError(f"{PREFIX}time-on {text}")
    if has_speeds and "model" in given:
        raise JobSpecError(f"give {PREFIX}model or {PREFIX}throughput, not both")
    if "batch-size" in given and not (has_speeds or "model" in given):
        text = f"{given['batch-size']}: of which model? give {PREFIX}model too"
        raise JobSpecError(f"{PREFIX}batch-size {text}")


def _types(request: SbatchRequest) -> tuple[str, ...]:
    """Return the GPU types that --hadar-types names, else those that sbatch's options name."""
    types = [gpu_type for option in request.gpus for gpu_type in option.gpu_types]
    if (text := request.hadar_options.get("types")) is not None:
        types = [name.strip() for name in text.split(",")]
        if not all(types):
            raise JobSpecError(f"{PREFIX}types {text!r}: expected types such as a100,h100")
    return tuple(dict.fromkeys(map(str.lower, types)))


def _workload(request: SbatchRequest, table: ThroughputTable, batch_size: int | None) -> str:
    """Return the name under which the job's throughput is stored; "" where it is given."""
    given = request.hadar_options
    if "model" in given:
        name = workload_name(given["model"], batch_size)
        return next((known for known in table.workloads if known.lower() == name.lower()), name)
    shown = _shown(request)
    return "" if "throughput" in given else workload_of_shown(shown)


def _shown(request: SbatchRequest) -> Shown:
    """Return what Slurm will show of the job."""
    given = request.values
    try:
        here = os.getcwd()
    except OSError:
        here = ""
    return Shown(
        name=given.get("job-name") or Path(request.script_name or "wrap").name,
        command=given.get("wrap") or shlex.join(word for word in request.script if word != "--"),
        directory=os.path.join(here, given.get("chdir", "")),
        container=given.get("container", ""),
        comment=given.get("comment", ""),
    )


def estimator_of(beat: Heartbeat | None) -> Estimator:
    """Return the estimator with the shipped tables, and the site's own values of GPU types."""
    path = data_file("throughputs.json")
    table = parse_table(path.read_text(encoding="utf-8"), str(path))
    return Estimator.shipped(table, own_types=beat.gpu_types if beat else NO_TYPES)
