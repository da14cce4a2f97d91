"""What hadard may do, by partition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from hadar_slurm.slurm.client.protocol import Partitions


class Mode(StrEnum):
    """What hadard may do to a job, from least to most invasive."""

    # Plans and writes its journal; changes nothing.
    OBSERVE = "observe"
    # Sets the preferred GPU type of pending jobs; Slurm decides.
    ADVISE = "advise"
    # Holds, pins, migrates.
    ENFORCE = "enforce"


_FROM_LEAST = tuple(Mode)


@dataclass(frozen=True, slots=True)
class Modes:
    """The mode of every partition: `by_partition`, else `default`."""

    default: Mode = Mode.OBSERVE
    by_partition: Mapping[str, Mode] = field(default_factory=dict)

    def of(self, partitions: str) -> Mode:
        """Return the mode of a job; of several partitions, `a,b`, the least invasive one."""
        modes = [self.by_partition.get(name, self.default) for name in partitions.split(",")]
        return min(modes, key=_FROM_LEAST.index)

    @property
    def all(self) -> tuple[Mode, ...]:
        """Return the modes that occur, the most invasive first."""
        found = {self.default, *self.by_partition.values()}
        return tuple(sorted(found, key=_FROM_LEAST.index, reverse=True))

    def enforced(self, partitions: Partitions) -> tuple[str, ...] | None:
        """Return where jobs may be held (None: all); an empty name: jobs without a partition."""
        if self.default is Mode.ENFORCE and set(self.by_partition.values()) <= {Mode.ENFORCE}:
            return None
        names = tuple(name for name in partitions.names if self.of(name) is Mode.ENFORCE)
        return (*names, "") if partitions.default in names else names
