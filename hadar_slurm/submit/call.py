"""The call that hadar-sbatch executes. Imports little, and late what only managed jobs need."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from hadar_slurm.errors import JobSpecError
from hadar_slurm.submit.decision import Call, Decision, why_left
from hadar_slurm.submit.request import NO_HADAR, PREFIX, SbatchRequest

if TYPE_CHECKING:
    from pathlib import Path

    from hadar_slurm.state.heartbeat import Heartbeat


def call_for(
    request: SbatchRequest,
    environment: Mapping[str, str],
    *,
    is_parsable: bool,
    unserved: str = "",
) -> Call:
    """Return the call, with --parsable if asked for; raises JobSpecError for an invalid value.

    `unserved`: why hadard does not place the job, whatever it would do.
    """
    call = _call(request, environment, unserved)
    if not is_parsable:
        return call
    if "quiet" in request.values:
        raise JobSpecError("--quiet is given: sbatch would not print the job id; leave it out")
    name, *words = call.argv
    return call._replace(argv=(name, "--parsable", *words))


def _call(request: SbatchRequest, environment: Mapping[str, str], unserved: str) -> Call:
    if why := why_left(request):
        if NO_HADAR in request.flags and _is_enrolling(environment):
            request = request.opting_out
        return Call(request.plain_call, Decision(False, why))
    if request.has_components:
        raise JobSpecError(
            "':' or hetjob is given: Hadar cannot place the components of a heterogeneous job; "
            f"give no {PREFIX}... option, or --no-hadar"
        )
    from hadar_slurm.state.heartbeat import read_heartbeat, run_dir

    directory = run_dir(environment)
    beat = read_heartbeat(directory)
    unserved = unserved or _why_unserved(beat, directory, request.values.get("partition"))
    # A job without --hadar-... options is held only if hadard would place it, and never refused.
    if unserved and not request.hadar_options:
        return Call(request.plain_call, Decision(False, unserved))
    from hadar_slurm.submit.managed import managed_call

    try:
        return managed_call(request, environment, beat, unserved, directory)
    except JobSpecError as error:
        if request.hadar_options:
            raise
        return Call(request.plain_call, Decision(False, str(error)))


def _why_unserved(beat: Heartbeat | None, directory: Path, partition: str | None) -> str:
    """Return why hadard would not place a job of this partition; "" if it would."""
    if beat is None or not beat.is_fresh(time.time()):
        return f"hadard is not alive here (no fresh heartbeat in {directory})"
    if names := beat.not_placed(partition):
        where = f"partition {' and '.join(names)}" if partition else "the default partition"
        return f"hadard places no jobs in {where}"
    return ""


def _is_enrolling(environment: Mapping[str, str]) -> bool:
    """Return whether hadard steers jobs that are not described to it."""
    from hadar_slurm.state.heartbeat import read_heartbeat, run_dir

    beat = read_heartbeat(run_dir(environment))
    return beat is not None and beat.enrols
