"""A job: its request, its progress and its phases."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from math import inf
from typing import NamedTuple, Protocol

from hadar_slurm.core.cluster import GpuType, JobId, NodeName
from hadar_slurm.core.gang import Allocation, Gang
from hadar_slurm.core.throughput import Throughputs
from hadar_slurm.errors import JobSpecError


class Shape(NamedTuple):
    """A uniform gang: `nodes` nodes with `gpus_per_node` GPUs each."""

    nodes: int
    gpus_per_node: int

    @property
    def num_gpus(self) -> int:
        """Return the GPUs of the whole gang."""
        return self.nodes * self.gpus_per_node

    def __str__(self) -> str:
        return f"{self.gpus_per_node}x{self.nodes}"


@cache
def uniform_shapes(num_gpus: int) -> tuple[Shape, ...]:
    """Return every uniform shape of a gang, on the fewest nodes first."""
    return tuple(Shape(n, num_gpus // n) for n in range(1, num_gpus + 1) if num_gpus % n == 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """The user's request; never changes."""

    job_id: JobId
    # The gang's size W; where it depends on the GPU type, the smallest.
    num_gpus: int
    # Training steps of the whole gang.
    total_steps: int
    # The gang's steps/s.
    throughputs: Throughputs
    submitted_s: float = 0.0
    # The allowed layouts of the gang.
    shapes: tuple[Shape, ...] = ()
    # If false, the job is placed once and never migrated.
    can_checkpoint: bool = True
    # Seconds from a migration's stop until training continues elsewhere.
    restart_cost_s: float = 30.0
    # Above 1 the job may be forked (HadarE): whole gangs, each on its own node, share its steps.
    max_copies: int = 1
    # The GPUs of a copy by type in lower case, sorted; it runs on no other. Empty: `num_gpus`.
    gangs: tuple[tuple[str, int], ...] = ()
    # Seconds of parameter averaging at the end of a round with two or more copies.
    aggregation_cost_s: float = 0.0
    workload: str = ""
    name: str = ""
    user: str = ""
    # The steps that its user claims, where `total_steps` are others; else 0. Policies ignore it.
    claimed_steps: int = 0
    # The time limit in seconds, at which Slurm ends each run, and the GPU type for which its owner
    # wrote it (empty: the slowest on which it trains). On a cluster of jobs of learned size only.
    limit_s: float = inf
    limit_type: str = ""
    # Slurm's QOS, in simulations of plain Slurm.
    qos: str = ""

    def __post_init__(self) -> None:
        counts = {"GPUs": self.num_gpus, "total steps": self.total_steps, "copies": self.max_copies}
        for what, value in counts.items():
            if value <= 0:
                raise JobSpecError(f"job {self.job_id}: {what} must be 1 or more, not {value}")
        if not self.shapes:
            object.__setattr__(self, "shapes", uniform_shapes(self.num_gpus))
        wrong = [str(shape) for shape in self.shapes if shape.num_gpus != self.num_gpus]
        if wrong:
            raise JobSpecError(
                f"job {self.job_id}: {', '.join(wrong)} is not a gang of {self.num_gpus} GPUs"
            )
        if self.gangs and self.num_gpus != min(size for _, size in self.gangs):
            sizes = ", ".join(f"{gpu_type}:{size}" for gpu_type, size in self.gangs)
            raise JobSpecError(
                f"job {self.job_id}: {self.num_gpus} GPUs are not the smallest gang of {sizes}"
            )

    def gpus_on(self, gpu_type: str) -> int:
        """Return the GPUs of a gang on a type."""
        if not self.gangs:
            return self.num_gpus
        return dict(self.gangs).get(gpu_type.lower(), self.num_gpus)

    def shapes_on(self, gpu_type: str) -> tuple[Shape, ...]:
        """Return the allowed layouts of a gang on a type."""
        return (Shape(1, self.gpus_on(gpu_type)),) if self.gangs else self.shapes

    def throughput_on(self, gpu_type: str) -> float:
        """Return the steps/s of a gang within one node of a type; 0 where it does not run."""
        return self.throughputs.on(gpu_type, self.gpus_on(gpu_type))

    @property
    def limit_steps(self) -> float:
        """Return the steps that fit the time limit on the type for which it was written."""
        on_it = self.throughput_on(self.limit_type)
        speeds = (on_it,) if on_it else map(self.throughput_on, self.throughputs.gpu_types)
        return self.limit_s * min(filter(None, speeds), default=1.0)

    def fastest_of(self, gpu_types: Iterable[str]) -> str:
        """Return the type with the highest throughput; empty where there is none."""
        return max(gpu_types, key=self.throughput_on, default="")

    def has_size_of(self, gang: Gang) -> bool:
        """Return whether a gang has the job's number of GPUs on each of its types."""
        return all(gang.num_gpus == self.gpus_on(gpu_type) for gpu_type in gang.gpus_by_type)


class SizeBelief(Protocol):
    """How long a job of unknown size may train, in seconds on its fastest GPU type."""

    def left_s(self, trained_s: float) -> float:
        """Return how long it is taken to train on, after `trained_s`."""
        ...

    def beyond(self, service_s: float) -> float:
        """Return the probability that it trains longer than `service_s` in all."""
        ...


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a job has come: steps trained and kept, restarts so far, GPU-seconds received."""

    steps_done: float = 0.0
    restarts: int = 0
    service_by_type: tuple[tuple[GpuType, float], ...] = ()

    @property
    def service_gpu_s(self) -> float:
        """Return the GPU-seconds received on all types."""
        return sum(service for _, service in self.service_by_type)


class Phase(StrEnum):
    """Where a job stands between submission and end."""

    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        """Whether the job has ended for good."""
        return self in _FINAL

    @property
    def is_plannable(self) -> bool:
        """Whether a policy may give the job GPUs in this round."""
        return self in _PLANNABLE


# Tuples: a search by identity is faster than the hash of an enumeration's member.
_PLANNABLE = (Phase.QUEUED, Phase.RUNNING, Phase.STARTING)
_FINAL = (Phase.DONE, Phase.FAILED, Phase.CANCELLED)


@dataclass(frozen=True, slots=True)
class Job:
    """A job at one instant. Policies ignore `partition`, `account`, `remarks` and `is_pinned`."""

    spec: JobSpec
    phase: Phase = Phase.QUEUED
    progress: Progress = Progress()
    # What the job holds or is about to hold.
    allocation: Allocation = field(default_factory=Allocation)
    # None: all nodes.
    allowed_nodes: frozenset[NodeName] | None = None
    # The type that its request names for good; None: any type.
    bound_type: GpuType | None = None
    # Slurm's figure for its user: 0 (far above the share) to 1 (no use so far); None: unknown.
    fair_share: float | None = None
    # Slurm's: where it runs, or `a,b`, all where it may run.
    partition: str = ""
    # Sentences for people, such as why it is not migrated.
    remarks: tuple[str, ...] = ()
    # Whether a starting job is still pending in Slurm, with its nodes chosen.
    is_pinned: bool = False
    # Not planned now: a limit of Slurm would keep it from starting.
    left_out: bool = False
    # Slurm's account; "" where there is none, as in simulations.
    account: str = ""
    # The seconds until its time limit, where its owner's claims are not proven (core/claims.py):
    # between users it is ranked by these. None: by its work.
    limit_left_s: float | None = None
    # What is believed of its size where that is learned; its total steps are what it is ranked by.
    belief: SizeBelief | None = None
    # Whether its total steps are not stated, but learned or those that fit its time limit.
    is_estimated: bool = False

    @property
    def job_id(self) -> JobId:
        """Return the job's id."""
        return self.spec.job_id

    @property
    def steps_left(self) -> float:
        """Return the steps still to train, 0 or more."""
        return max(0.0, self.spec.total_steps - self.progress.steps_done)

    def may_use(self, node: NodeName) -> bool:
        """Return whether the job may be placed on `node`."""
        return self.allowed_nodes is None or node in self.allowed_nodes

    @property
    def is_pinned_in_place(self) -> bool:
        """Whether the job must keep its GPUs: it cannot be checkpointed, or is about to start."""
        can_move = self.phase is Phase.RUNNING and self.spec.can_checkpoint
        return bool(self.allocation) and self.phase is not Phase.QUEUED and not can_move
