"""How the rest of the project reaches Slurm, whatever the way: the adapters' common protocol.

Adapters read and change; they decide nothing and remember nothing about jobs. They pass one file of
contract tests (tests/contract).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from hadar_slurm.core.cluster import JobId
from hadar_slurm.errors import SlurmError
from hadar_slurm.slurm.client.parse import NodeRow, QueueRow
from hadar_slurm.slurm.client.state import SlurmState
from hadar_slurm.slurm.client.updates import Update

Version = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Site:
    """Which Slurm this is: its name, and where its controller listens.

    `booted_s` is when slurmctld started, in seconds since the epoch by its clock; 0: not known.
    """

    name: str
    address: str
    booted_s: float = field(default=0.0, compare=False)


@dataclass(frozen=True, slots=True)
class Partitions:
    """The partitions of a Slurm; `default` is empty where it has none."""

    names: tuple[str, ...]
    default: str = ""


@dataclass(frozen=True, slots=True)
class Abilities:
    """What an adapter can express; policies propose nothing else.

    `keeps_types`: a job stays tied to nodes that have every GPU type its request ever named.
    `spreads`: a job's number of nodes can be changed, so that a gang may lie on several.
    """

    keeps_types: bool = False
    spreads: bool = True


class SlurmAdapter(Protocol):
    """One way to a Slurm. Reading raises SlurmUnavailable when it cannot be seen."""

    @property
    def name(self) -> str:
        """Return what the way is called in logs and messages."""
        ...

    @property
    def version(self) -> Version:
        """Return Slurm's version, such as (22, 5)."""
        ...

    @property
    def abilities(self) -> Abilities:
        """Return what can be expressed this way."""
        ...

    def site(self) -> Site:
        """Return which Slurm this reaches."""
        ...

    def queue(self) -> dict[JobId, QueueRow]:
        """Return every job and array task that Slurm remembers, ended ones included."""
        ...

    def nodes(self) -> tuple[NodeRow, ...]:
        """Return every node."""
        ...

    def read(self) -> SlurmState:
        """Return the queue, the nodes and the GPUs that jobs hold.

        The queue is read first: a job that starts right after it is not in the reading at all and
        is seen by the next; one that ends after it still counts.
        """
        ...

    def change(self, changes: Sequence[Update]) -> list[SlurmError | None]:
        """Attempt every change in order and return what was wrong with each.

        None is Slurm's word for having done it, which is not always true: read back. A refused
        change keeps no other from being attempted. SlurmRefused is Slurm's answer,
        SlurmUnavailable that there was none: the change may have been made or not.
        """
        ...

    def fair_shares(self) -> Mapping[str, float]:
        """Return the fair-share factor by user, from 0 to 1; empty where Slurm has none."""
        ...

    def partitions(self) -> Partitions:
        """Return the names of all partitions, and which one jobs go to that name none."""
        ...
