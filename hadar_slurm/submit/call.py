"""The call that hadar-sbatch executes. Imports little, and late what only managed jobs need."""

from __future__ import annotations

from collections.abc import Mapping

from hadar_slurm.errors import JobSpecError
from hadar_slurm.submit.decision import Bars, Call, Decision, Reason, why_left
from hadar_slurm.submit.own_options import PREFIX
from hadar_slurm.submit.request import SbatchRequest

CONFIG_VARIABLE = "HADAR_CONFIG"
# Equal to config.DEFAULT_PATH, which takes longer to import.
_DEFAULT_CONFIG = "/etc/hadar/hadar.yaml"


def call_for(request: SbatchRequest, environment: Mapping[str, str], *, is_parsable: bool) -> Call:
    """Return the call, with --parsable if asked for; raises JobSpecError for an invalid value."""
    call = _call(request, environment)
    if not call.decision.taken and lists_types(environment):
        from hadar_slurm.submit.describing.type_list import typed

        call = typed(request, environment, call)
    if not is_parsable:
        return call
    if "quiet" in request.values:
        raise JobSpecError("--quiet is given: sbatch would not print the job id; leave it out")
    for_json = call._replace(argv=(call.argv[0], "--parsable", *call.argv[1:]))
    if (other := call.otherwise) is None:
        return for_json
    other = other._replace(argv=(other.argv[0], "--parsable", *other.argv[1:]))
    return for_json._replace(otherwise=other)


def lists_types(environment: Mapping[str, str]) -> bool:
    """Return whether the site's hadar.yaml says `typing: list`; False where it cannot be read.

    It is read without YAML, and where hadard has never run: on a line of its own.
    """
    try:
        with open(environment.get(CONFIG_VARIABLE) or _DEFAULT_CONFIG, encoding="utf-8") as file:
            values = [line.removeprefix("typing: ") for line in file if line.startswith("typing: ")]
    except (OSError, ValueError):
        return False
    return any(value.partition("#")[0].strip().strip("'\"") == "list" for value in values)


def _call(request: SbatchRequest, environment: Mapping[str, str]) -> Call:
    """Return the user's own call for the first reason that counts, else hadard's."""
    reason, is_told = why_left(request), bool(request.hadar_options)
    is_left = reason is not None and (reason.bars is Bars.ALL or not is_told)
    opts_out = request.opts_out
    if reason is not None and is_left and not opts_out:
        return Call(request.plain_call, Decision(False, reason.why))
    if request.has_components and not opts_out:
        raise JobSpecError(
            "':' or hetjob is given: Hadar cannot place the components of a heterogeneous job; "
            f"give no {PREFIX}... option, or --no-hadar"
        )
    from hadar_slurm.submit.service import service_for

    service = service_for(environment, request.values.get("partition"))
    if opts_out and service.enrols:
        request = request.opting_out
    if service.why_not and (reason is None or reason.bars is Bars.STARTING):
        reason, is_left = Reason(Bars.STARTING, service.why_not), not is_told
    # A job without --hadar-... options is held only if hadard would place it, and never refused.
    if reason is not None and is_left:
        return Call(request.plain_call, Decision(False, reason.why))
    from hadar_slurm.submit.managed import managed_call

    try:
        return managed_call(request, environment, service, reason)
    except JobSpecError as error:
        if is_told:
            raise
        return Call(request.plain_call, Decision(False, str(error)))
