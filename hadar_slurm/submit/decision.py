"""Decides whether hadard places a job, and why; the call that follows. Imports little."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from hadar_slurm.submit.gpu_options import why_not_counted
from hadar_slurm.submit.own_options import NO_HADAR, PASSED_ON
from hadar_slurm.submit.request import SbatchRequest

if TYPE_CHECKING:
    from hadar_slurm.core.cluster import Cluster
    from hadar_slurm.jobspec.description import Description
    from hadar_slurm.jobspec.estimator import Estimator

HOLD = "--hold"
# Options with which the user chooses the nodes.
_PLACES = ("nodelist", "nodefile", "clusters")
# Options with which the user keeps the job from starting.
_STARTS = ("hold", "test-only")


class Bars(Enum):
    """What a reason not to place a job keeps hadard from, and what follows."""

    # hadard has no say: the user's own call.
    ALL = "all"
    # What is requested is not known: the user's own call, unless --hadar-... options describe it.
    READING = "reading"
    # The user has chosen the nodes: the user's own call, once the other options are checked.
    NODES = "nodes"
    # hadard does not start it: described by --hadar-... options, it is submitted without a hold.
    STARTING = "starting"


class Reason(NamedTuple):
    """Why hadard does not place a job, in words for its user; "": nothing is said of it."""

    bars: Bars
    why: str


class Decision(NamedTuple):
    """Whether hadard places a job; `why` describes the job, or says why hadard does not.

    An empty `why`: nothing is said of it.
    """

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
    # Submitted without that hold, and held once Slurm has accepted it.
    is_held_late: bool = False
    # Where it is held: the call for a job that Slurm cannot start now and that cannot be held late.
    # Where it has a list of GPU types: the call without it, for a job that Slurm refuses with it.
    otherwise: Call | None = None

    @property
    def unheld(self) -> tuple[str, ...]:
        """Return the call without its hold."""
        place = self.argv.index(HOLD) if self.is_held else len(self.argv)
        return self.argv[:place] + self.argv[place + 1 :]

    def left(self, why: str) -> Call:
        """Return the call without its hold, which leaves the job to plain Slurm."""
        return self._replace(argv=self.unheld, decision=Decision(False, why), is_held=False)


def why_left(request: SbatchRequest) -> Reason | None:
    """Return the first reason in the options that counts for this job; None if there is none."""
    is_told = bool(request.hadar_options)
    return next((r for r in _reasons(request) if not (is_told and r.bars is Bars.READING)), None)


def _reasons(request: SbatchRequest) -> Iterator[Reason]:
    """Yield every reason in the options not to place the job, the one to print first."""
    values = request.values
    if PASSED_ON in request.flags:
        yield Reason(Bars.ALL, "")
    if request.opts_out:
        given = "--no-hadar" if NO_HADAR in request.flags else "--comment=no-hadar"
        yield Reason(Bars.ALL, f"{given} is given")
    if request.unreadable:
        yield Reason(Bars.ALL, request.unreadable)
    if request.has_components:
        yield Reason(Bars.READING, "it is a heterogeneous job")
    if why := why_not_counted(request.gpus, values):
        yield Reason(Bars.READING, why)
    if "time" in values and not request.limit_s:
        yield Reason(Bars.READING, f"--time={values['time']} sets no limit")
    if kind := values.get("exclusive"):  # such as `user`; without a value see `on_open_nodes`
        # Pinned to a node with free GPUs, it would wait there until all other jobs have ended.
        yield Reason(Bars.READING, f"--exclusive={kind} is given; hadard counts GPUs, not nodes")
    for name in _PLACES:
        if name in values:
            yield Reason(Bars.NODES, f"--{name} is given")
    if excluded := values.get("exclude"):
        from hadar_slurm.jobspec.description import is_node_list

        if not is_node_list(excluded):
            yield Reason(Bars.NODES, f"hadard cannot read --exclude={excluded}")
    for name in _STARTS:
        if name in values:
            yield Reason(Bars.STARTING, f"--{name} is given")
