"""Whether hadard places a job, and why or why not: the one place where this is decided.

Imports little: every submission pays for it, Hadar's or not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from hadar_slurm.submit.gpu_options import PER_TASK, gpu_options, other_resources
from hadar_slurm.submit.request import NO_HADAR, SbatchRequest

# Options by which a user chooses the place: hadard could only disagree.
_PLACES = ("nodelist", "exclude", "constraint", "reservation", "nodefile", "clusters")


class Decision(NamedTuple):
    """Whether hadard places a job; `why` is what it places, or the reason why it does not."""

    taken: bool
    why: str

    @property
    def line(self) -> str:
        """Return the line that the user reads."""
        if self.taken:
            return f"hadard places this job ({self.why})"
        return f"plain Slurm places this job: {self.why}"


def why_left(request: SbatchRequest) -> str:
    """Return why the words of a submission leave the job to plain Slurm; "" if they do not.

    A --hadar-... option asks for hadard: then what it cannot place is refused by name, later.
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
    """Return why a job is left to plain Slurm, also where no hadard is there that would place it.

    A job with --hadar-... options is described even so.
    """
    why = why_left(request)
    if why or request.own:
        return why
    from hadar_slurm.submit.served import find_hadard

    return find_hadard(request, environment)[1]


def why_chosen(request: SbatchRequest) -> str:
    """Return which option chooses the job's place or time itself, so that hadard cannot."""
    return why_place_chosen(request) or ("--hold is given" if request.given("hold") else "")


def why_place_chosen(request: SbatchRequest) -> str:
    """Return which option chooses the job's place itself."""
    return next((f"--{name} is given" for name in _PLACES if request.given(name)), "")


def _why_not_any_gpus(request: SbatchRequest) -> str:
    """Return why a job does not ask for a number of GPUs of any type."""
    asked = gpu_options(request)
    by_task = [option.name for option in asked if option.name in PER_TASK]
    if by_task:
        return f"--{by_task[0]} is given; hadard reads --gpus, --gpus-per-node and --gres=gpu:N"
    if not sum(option.number for option in asked):
        return "no GPUs are asked for"
    named = [gpu_type for option in asked for gpu_type in option.gpu_types]
    if named:
        return f"a GPU type is named ({', '.join(named)})"
    if len(asked) > 1:
        return f"GPUs are asked for twice, by --{asked[0].name} and --{asked[1].name}"
    others = other_resources(request)
    return f"{others} asks for other resources too" if others else ""


def _why_whole_nodes(request: SbatchRequest) -> str:
    """Return why a job's place depends on more than GPUs, which is all that hadard counts.

    Pinned to a node with free GPUs, it would wait there for the jobs of others to end.
    """
    given = request.given("exclusive")
    return "--exclusive is given; hadard counts GPUs, not nodes" if given else ""


def _why_no_limit(request: SbatchRequest) -> str:
    """Return why it is not known how long a job may run."""
    from hadar_slurm.submit.time_limit import parse_time_limit

    text = request.last("time")
    if text is None:
        return "no time limit is given (--time)"
    return "" if parse_time_limit(text) else f"--time={text} sets no limit"
