"""Changes of a job in Slurm, as values that each adapter can carry out."""

from __future__ import annotations

from dataclasses import dataclass

from hadar_slurm.core.cluster import JobId, NodeName


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The nodes and GPUs that a job asks for, in Slurm's syntax."""

    # A number or a range such as `1-4`.
    num_nodes: str = "1"
    # GPUs such as `gres/gpu:v100:2`; empty for none.
    per_node: str = ""
    per_job: str = ""
    per_task: str = ""
    per_socket: str = ""
    nodes: tuple[NodeName, ...] = ()

    @property
    def is_cleared(self) -> bool:
        """Whether it asks for no GPU, as between the two halves of a change."""
        return not (self.per_node or self.per_job or self.per_task or self.per_socket)


@dataclass(frozen=True, slots=True)
class Hold:
    """Hold a pending job; its owner can release it."""

    job: JobId


@dataclass(frozen=True, slots=True)
class Release:
    """Let a held job start."""

    job: JobId


@dataclass(frozen=True, slots=True)
class ClearRequest:
    """First half of changing a request: the job asks for no GPU and no node."""

    job: JobId


@dataclass(frozen=True, slots=True)
class SetRequest:
    """Second half: the job asks for `request`; `begins_soon` replaces a later begin time.

    It then begins a second later: a job that begins in the second in which it ended fails ("Job
    credential revoked").
    """

    job: JobId
    request: Request
    begins_soon: bool = False


@dataclass(frozen=True, slots=True)
class SetStartNow:
    """Let a requeued job begin now, not after Slurm's delay of two minutes."""

    job: JobId


@dataclass(frozen=True, slots=True)
class DelayStart:
    """Keep a pending job from starting within the next minute, even if it is released."""

    job: JobId


@dataclass(frozen=True, slots=True)
class SignalCheckpoint:
    """Send USR1 to the batch script of a running job."""

    job: JobId


@dataclass(frozen=True, slots=True)
class Requeue:
    """Requeue a running job and hold it; its owner can release it."""

    job: JobId


@dataclass(frozen=True, slots=True)
class Prefer:
    """Set the node features that a pending job prefers; empty for none."""

    job: JobId
    features: str


@dataclass(frozen=True, slots=True)
class Notify:
    """Print a text in the output of a running job; `job` is its SLURM_JOB_ID.

    Allowed for the job's owner, root and SlurmUser only (22.05.8).
    """

    job: JobId
    text: str


Update = (
    Hold
    | Release
    | ClearRequest
    | SetRequest
    | SetStartNow
    | DelayStart
    | SignalCheckpoint
    | Requeue
    | Prefer
    | Notify
)
