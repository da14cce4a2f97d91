"""What may be changed on a job in Slurm, as values; every adapter knows how to carry them out."""

from __future__ import annotations

from dataclasses import dataclass

from hadar_slurm.core.cluster import JobId, NodeName


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The nodes and GPUs that a job asks for, in Slurm's own words.

    `num_nodes` is a number or a range such as `1-4`; the others are as in `gres/gpu:v100:2`,
    empty where nothing is asked.
    """

    num_nodes: str = "1"
    per_node: str = ""
    per_job: str = ""
    per_task: str = ""
    per_socket: str = ""
    nodes: tuple[NodeName, ...] = ()

    @property
    def is_cleared(self) -> bool:
        """Whether it asks for no GPU at all, as between the two halves of a change."""
        return not (self.per_node or self.per_job or self.per_task or self.per_socket)


@dataclass(frozen=True, slots=True)
class Hold:
    """Hold a pending job so that its owner could release it."""

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
    """Second half: the job asks for `request`; it `begins_soon` where Slurm would have it wait.

    That is a second later: a job that begins in the one in which it ended fails ("Job credential
    revoked").
    """

    job: JobId
    request: Request
    begins_soon: bool = False


@dataclass(frozen=True, slots=True)
class SetStartNow:
    """Let a requeued job begin now, not after the two minutes that Slurm would have it wait."""

    job: JobId


@dataclass(frozen=True, slots=True)
class DelayStart:
    """Keep a pending job from beginning within the next minute, whoever may release it."""

    job: JobId


@dataclass(frozen=True, slots=True)
class SignalCheckpoint:
    """Send USR1 to the batch script of a running job."""

    job: JobId


@dataclass(frozen=True, slots=True)
class Requeue:
    """Take a running job off its GPUs and hold it so that its owner could release it."""

    job: JobId


@dataclass(frozen=True, slots=True)
class Prefer:
    """Tell Slurm which node features a pending job would rather have; empty for none."""

    job: JobId
    features: str


@dataclass(frozen=True, slots=True)
class Notify:
    """Print a text in the output of a running job; `job` is Slurm's own number of it.

    Only the job's owner, root and SlurmUser may (22.05.8).
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
