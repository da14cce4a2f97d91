"""The common protocol of the adapters to Slurm.

Adapters make no decisions and keep no state about jobs. All pass the tests of tests/contract.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from hadar_slurm.core.cluster import JobId, NodeName
from hadar_slurm.engine.modes import Partitions
from hadar_slurm.errors import SlurmError
from hadar_slurm.slurm.client.parse import NodeRow, QueueRow
from hadar_slurm.slurm.client.state import SlurmState
from hadar_slurm.slurm.client.updates import Update

if TYPE_CHECKING:
    from hadar_slurm.slurm.client.submission import Submission

Version = tuple[int, int]
# Fair-share factors by (account, user).
Shares = Mapping[tuple[str, str], float]
# GraceTime and PreemptExemptTime in seconds by `partition=NAME` and `qos=NAME`.
Preemptible = Mapping[str, tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Site:
    """The identity of a Slurm."""

    name: str
    # Where its controller listens.
    address: str
    # When slurmctld started, in seconds since the epoch by its clock; 0: not known.
    booted_s: float = field(default=0.0, compare=False)
    # Users do not see each other's jobs (`PrivateData=jobs`).
    hides_jobs: bool = field(default=False, compare=False)
    # How many RPCs slurmctld answers to this account, in the long run (`rl_enable`).
    rpcs_per_s: float = field(default=math.inf, compare=False)


@dataclass(frozen=True, slots=True)
class Abilities:
    """What an adapter can express; policies propose nothing else."""

    # A job stays tied to nodes that have each GPU type that its request ever named.
    keeps_types: bool = False


class SlurmAdapter(Protocol):
    """Access to one Slurm. Reading raises SlurmUnavailable where Slurm gives no answer."""

    @property
    def name(self) -> str:
        """Return the adapter's name in logs and messages."""

    @property
    def version(self) -> Version:
        """Return Slurm's version, such as (22, 5)."""

    @property
    def abilities(self) -> Abilities:
        """Return what the adapter can express."""

    @property
    def rpcs_per_s(self) -> float:
        """Return how many RPCs slurmctld answers to this account, once `site` has read it."""

    def site(self) -> Site:
        """Return the Slurm that this adapter reaches."""

    def queue(self) -> dict[JobId, QueueRow]:
        """Return each job and array task that Slurm remembers, ended ones included."""

    def nodes(self) -> tuple[NodeRow, ...]:
        """Return every node."""

    def read(self) -> SlurmState:
        """Return the queue, the nodes and the GPUs that jobs hold.

        The queue is read first: the state lacks a job that starts after it until the next read,
        and still counts a job that ends after it.
        """

    def read_jobs(self, jobs: Collection[JobId]) -> SlurmState:
        """Return what Slurm shows now of those of these jobs that it knows, in two calls."""

    def submissions(self) -> dict[JobId, Submission]:
        """Return what each job and array task asked for beside GPUs and nodes."""

    def change(self, changes: Sequence[Update]) -> list[SlurmError | None]:
        """Attempt every change in order and return the fault of each.

        None: Slurm reported success, which is not always true, so read the job back. SlurmRefused:
        Slurm refused the change; later changes are still attempted. SlurmUnavailable: Slurm gave no
        answer, and the change may have been made or not.
        """

    def fair_shares(self) -> Shares:
        """Return the fair-share factors, from 0 to 1; empty where Slurm has none."""

    def reserved_nodes(self) -> frozenset[NodeName]:
        """Return the nodes of all reservations, also of those that have not begun."""

    def partitions(self) -> Partitions:
        """Return the names of all partitions, and the default one."""

    def preemptible(self) -> Preemptible:
        """Return what Slurm preempts by requeue."""
