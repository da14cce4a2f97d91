"""Changes of a job in Slurm, as values that each adapter can carry out."""

from __future__ import annotations

from dataclasses import dataclass

from hadar_slurm.core.cluster import JobId, NodeName
from hadar_slurm.core.moves import USR1, OwnSignal
from hadar_slurm.jobspec.request import Request

# Longer than a job with a cleared request waits for the reaper, in seconds.
DELAY_S = 60
# For how long Slurm delays a job after a requeue, which it takes for a submission; in seconds.
REQUEUE_DELAY_S = 121


@dataclass(frozen=True, slots=True)
class _JobChange:
    job: JobId


class Hold(_JobChange):
    """Hold a pending job; its owner can release it."""


class Release(_JobChange):
    """Let a held job start."""


@dataclass(frozen=True, slots=True)
class ClearRequest(_JobChange):
    """First half of changing a request: the job asks for no GPU and no node.

    With `delays_start` it cannot start for DELAY_S, even if it is released. It excludes the nodes
    in `excluded` and no others (None: as before). With `keeps_nodes` it goes on asking for nodes.
    """

    delays_start: bool = False
    excluded: tuple[NodeName, ...] | None = None
    keeps_nodes: bool = False


@dataclass(frozen=True, slots=True)
class SetRequest(_JobChange):
    """Second half: the job asks for `request`; `begins_in_s` replaces its begin time.

    A job that has run begins a second later at the earliest: one that begins in the second in which
    it ended fails ("Job credential revoked").
    """

    request: Request
    begins_in_s: int | None = None
    # Its time limit, in seconds; None: as before.
    limit_s: int | None = None


@dataclass(frozen=True, slots=True)
class Steer(_JobChange):
    """Limit the nodes of a pending job, which need not be held; its GPUs stay as requested.

    It gets none of `excluded`, and `num_nodes` nodes (empty: as before). `nice` is taken off its
    priority, `limit_s` is its time limit in seconds (None: as before). With `clears_nodes` it no
    longer requires nodes. It never requires any: Slurm up to 23.11 takes that for a resize where
    the job has just started, and ends a job whose required node leaves its configuration. Its
    comment becomes `comment`, which marks what is changed (None: as before).
    """

    excluded: tuple[NodeName, ...] = ()
    num_nodes: str = ""
    nice: int | None = None
    limit_s: int | None = None
    clears_nodes: bool = False
    comment: str | None = None


class SetStartNow(_JobChange):
    """Let a requeued job begin now, not after Slurm's delay of two minutes."""


@dataclass(frozen=True, slots=True)
class SignalCheckpoint(_JobChange):
    """Send a signal to save to the batch script of a running job, or to its steps."""

    signal: OwnSignal = USR1


class Requeue(_JobChange):
    """Requeue a running job and hold it; its owner can release it."""


@dataclass(frozen=True, slots=True)
class Prefer(_JobChange):
    """Set the node features that a pending job prefers; empty for none."""

    features: str


@dataclass(frozen=True, slots=True)
class Notify(_JobChange):
    """Print a text in the output of a running job; `job` is its SLURM_JOB_ID.

    Allowed for the job's owner, root and SlurmUser only (22.05.8).
    """

    text: str


_Simple = Hold | Release | ClearRequest | SetStartNow | SignalCheckpoint | Requeue
Update = _Simple | SetRequest | Steer | Prefer | Notify
