"""Decides whether hadard places a job, and why; the call that follows. Imports little."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from hadar_slurm.submit.gpu_options import UNCOUNTED, other_resources
from hadar_slurm.submit.request import NO_HADAR, SbatchRequest

if TYPE_CHECKING:
    from hadar_slurm.core.cluster import Cluster
    from hadar_slurm.jobspec.description import Description
    from hadar_slurm.jobspec.estimator import Estimator

HOLD = "--hold"
# Options with which the user chooses the nodes.
_PLACES = ("nodelist", "nodefile", "clusters")
# Options with which the user keeps the job from starting.
_STARTS = ("hold", "test-only")


class Decision(NamedTuple):
    """Whether hadard places a job; `why` describes the job, or says why hadard does not."""

    taken: bool
    why: str

    @property
    def line(self) -> str:
        """Return the line to print for the user."""
        plain = f"plain Slurm places this job: {self.why}"
        return f"hadard places this job ({self.why})" if self.taken else plain


class Call(NamedTuple):
    """One call of sbatch, and whether hadard manages the job."""

    argv: tuple[str, ...]
    decision: Decision
    # Environment variables to add.
    variables: Mapping[str, str] = {}
    # Details of the decision, for the user.
    notes: tuple[str, ...] = ()
    # The description of the job for hadard.
    description: Description | None = None
    # The GPUs of the job's partition, if known, and what estimates the job's throughput there.
    cluster: Cluster | None = None
    estimator: Estimator | None = None
    # The GPU types, in lower case, that the job does not get after failures there, and why.
    bars: Mapping[str, str] = {}
    # Submitted with a hold, which hadard ends.
    is_held: bool = False

    @property
    def unheld(self) -> tuple[str, ...]:
        """Return the call without its hold."""
        place = self.argv.index(HOLD) if self.is_held else len(self.argv)
        return self.argv[:place] + self.argv[place + 1 :]

    def left(self, why: str) -> Call:
        """Return the call without its hold, which leaves the job to plain Slurm."""
        return self._replace(argv=self.unheld, decision=Decision(False, why), is_held=False)


class Fixed(NamedTuple):
    """Which option fixes the job's nodes, and which its start; empty texts: none."""

    nodes: str
    start: str

    @property
    def either(self) -> str:
        """Return the option that fixes one of them."""
        return self.nodes or self.start


def why_left(request: SbatchRequest) -> str:
    """Return why the options leave the job to plain Slurm; "" if they do not."""
    if NO_HADAR in request.flags:
        return "--no-hadar is given"
    if request.unreadable or request.hadar_options:
        # A job with --hadar-... options is described to hadard; wrong ones are refused later.
        return request.unreadable
    if request.has_components:
        return "it is a heterogeneous job"
    if why := _why_not_counted(request):
        return why
    if "time" in request.values and not request.limit_s:
        return f"--time={request.values['time']} sets no limit"
    if request.values.get("exclusive"):  # such as `user`; without a value see `managed_call`
        # Pinned to a node with free GPUs, it would wait there until all other jobs have ended.
        return f"--exclusive={request.values['exclusive']} is given; hadard counts GPUs, not nodes"
    return why_fixed(request).either


def why_fixed(request: SbatchRequest) -> Fixed:
    """Return why hadard cannot choose the job's nodes, or its start."""
    values = request.values
    nodes = next((f"--{name} is given" for name in _PLACES if name in values), "")
    if values.get("exclude") and not nodes:
        from hadar_slurm.jobspec.description import is_node_list

        if not is_node_list(values["exclude"]):
            nodes = f"hadard cannot read --exclude={values['exclude']}"
    return Fixed(nodes, next((f"--{name} is given" for name in _STARTS if name in values), ""))


def _why_not_counted(request: SbatchRequest) -> str:
    """Return why hadard cannot read the request as a number of GPUs of one or any type; or ""."""
    asked = request.gpus
    if uncounted := [o.name for o in asked if o.name in UNCOUNTED and not o.number]:
        text = "hadard reads --gpus, --gpus-per-node, --gpus-per-task and --gres=gpu:N"
        return f"--{uncounted[0]} is given; {text}"
    if not sum(option.number for option in asked):
        return "no GPUs are requested"
    named = {gpu_type: None for option in asked for gpu_type in option.gpu_types}
    if len(named) > 1:
        return f"GPUs of several types are requested together ({', '.join(named)})"
    others = other_resources(request.values)
    return f"{others} requests other resources too" if others else ""
