"""What hadard may do, by partition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from hadar_slurm.slurm.client.protocol import Partitions


class Mode(StrEnum):
    """How far hadard goes with a job, from least to most."""

    # Decides and writes its journal; changes nothing.
    OBSERVE = "observe"
    # Tells Slurm which GPU type a waiting job would rather have; Slurm decides.
    ADVISE = "advise"
    # Holds, pins, moves.
    ENFORCE = "enforce"


_FROM_LEAST = tuple(Mode)


@dataclass(frozen=True, slots=True)
class Modes:
    """The mode of every partition: `by_partition`, else `default`."""

    default: Mode = Mode.OBSERVE
    by_partition: Mapping[str, Mode] = field(default_factory=dict)

    def of(self, partitions: str) -> Mode:
        """Return the mode for a job; of several partitions, `a,b`, the most careful one."""
        modes = [self.by_partition.get(name, self.default) for name in partitions.split(",")]
        return min(modes, key=_FROM_LEAST.index)

    @property
    def all(self) -> tuple[Mode, ...]:
        """Return the modes that occur, the one that goes furthest first."""
        found = {self.default, *self.by_partition.values()}
        return tuple(sorted(found, key=_FROM_LEAST.index, reverse=True))

    def enforced(self, partitions: Partitions) -> tuple[str, ...] | None:
        """Return which of Slurm's partitions jobs may be held in; None for every one.

        An empty name among them is that of jobs which name no partition.
        """
        if self.default is Mode.ENFORCE and set(self.by_partition.values()) <= {Mode.ENFORCE}:
            return None
        names = tuple(name for name in partitions.names if self.of(name) is Mode.ENFORCE)
        return (*names, "") if partitions.default in names else names
