"""What hadard may do, by partition."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Mode(StrEnum):
    """What hadard may do to a job, from least to most invasive."""

    # Plans and writes its journal; changes nothing, but gives back what another mode had changed.
    OBSERVE = "observe"
    # Sets the preferred GPU type of pending jobs; Slurm decides.
    ADVISE = "advise"
    # Limits the nodes that Slurm may choose, orders a user's own jobs, and migrates. Slurm keeps
    # the queue: held are only copies, jobs between two runs, and those that it could not limit so.
    STEER = "steer"
    # Holds waiting jobs, pins and migrates; steers while plain jobs wait (disposition.py).
    HOLD = "hold"

    @property
    def changes(self) -> bool:
        """Whether hadard changes jobs, and so has to record that."""
        return self is not Mode.OBSERVE

    @property
    def places(self) -> bool:
        """Whether hadard decides on which GPUs jobs run."""
        return self in (Mode.STEER, Mode.HOLD)


@dataclass(frozen=True, slots=True)
class Partitions:
    """The partitions of a Slurm; `default` is empty where it has none."""

    names: tuple[str, ...]
    default: str = ""


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

    def places_in(self, partitions: Partitions) -> tuple[str, ...] | None:
        """Return where hadard places jobs (None: all); an empty name: jobs without a partition."""
        if all(mode.places for mode in (self.default, *self.by_partition.values())):
            return None
        return self._where(partitions, lambda mode: mode.places)

    def steers_in(self, partitions: Partitions) -> tuple[str, ...]:
        """Return where jobs that wait are not held, in the form of `places_in`."""
        return self._where(partitions, lambda mode: mode is Mode.STEER)

    def _where(self, partitions: Partitions, test: Callable[[Mode], bool]) -> tuple[str, ...]:
        names = tuple(name for name in partitions.names if test(self.of(name)))
        return (*names, "") if partitions.default in names else names
