"""Decides whether hadard places a job, with the reason.

Imports little, because every submission pays for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from hadar_slurm.submit.gpu_options import PER_TASK, gpu_options, other_resources
from hadar_slurm.submit.request import NO_HADAR, SbatchRequest

# Options with which the user chooses the nodes.
_PLACES = ("nodelist", "exclude", "constraint", "reservation", "nodefile", "clusters")


class Decision(NamedTuple):
    """Whether hadard places a job; `why` describes the job, or says why hadard does not."""

    taken: bool
    why: str

    @property
    def line(self) -> str:
        """Return the line to print for the user."""
        if self.taken:
            return f"hadard places this job ({self.why})"
        return f"plain Slurm places this job: {self.why}"


def why_left(request: SbatchRequest) -> str:
    """Return why the options leave the job to plain Slurm; "" if they do not.

    With a --hadar-... option, options that hadard cannot serve are refused later.
    """
    if NO_HADAR in request.flags:
        return "--no-hadar is given"
    if request.unreadable:
        return request.unreadable
    if request.own:
        return ""
    if request.has_components:
        return "it is a heterogeneous job"
    return (
        _why_not_any_gpus(request)
        or _why_no_limit(request)
        or _why_whole_nodes(request)
        or why_chosen(request)
    )


def why_left_here(request: SbatchRequest, environment: Mapping[str, str]) -> str:
    """Return why a job is left to plain Slurm, also for lack of a hadard that would place it.

    A job with --hadar-... options is described in that case as well.
    """
    why = why_left(request)
    if why or request.own:
        return why
    from hadar_slurm.submit.served import find_hadard

    return find_hadard(request, environment)[1]


def why_chosen(request: SbatchRequest) -> str:
    """Return the option that fixes the job's nodes or start, so that hadard cannot choose."""
    return why_place_chosen(request) or ("--hold is given" if request.given("hold") else "")


def why_place_chosen(request: SbatchRequest) -> str:
    """Return the option that fixes the job's nodes."""
    return next((f"--{name} is given" for name in _PLACES if request.given(name)), "")


def _why_not_any_gpus(request: SbatchRequest) -> str:
    """Return why the request is not for a number of GPUs of any type."""
    asked = gpu_options(request)
    by_task = [option.name for option in asked if option.name in PER_TASK]
    if by_task:
        return f"--{by_task[0]} is given; hadard reads --gpus, --gpus-per-node and --gres=gpu:N"
    if not sum(option.number for option in asked):
        return "no GPUs are requested"
    named = [gpu_type for option in asked for gpu_type in option.gpu_types]
    if named:
        return f"a GPU type is named ({', '.join(named)})"
    if len(asked) > 1:
        return f"GPUs are requested twice, with --{asked[0].name} and --{asked[1].name}"
    others = other_resources(request)
    return f"{others} requests other resources too" if others else ""


def _why_whole_nodes(request: SbatchRequest) -> str:
    """Return why a job needs more than GPUs, which is all that hadard counts.

    Pinned to a node with free GPUs, it would wait there until all other jobs have ended.
    """
    given = request.given("exclusive")
    return "--exclusive is given; hadard counts GPUs, not nodes" if given else ""


def _why_no_limit(request: SbatchRequest) -> str:
    """Return why a job has no known time limit."""
    from hadar_slurm.submit.time_limit import parse_time_limit

    text = request.last("time")
    if text is None:
        return "no time limit is given (--time)"
    return "" if parse_time_limit(text) else f"--time={text} sets no limit"
