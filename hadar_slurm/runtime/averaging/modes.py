"""How copies train: all together step by step, or each for itself between averagings."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum, auto

from hadar_slurm.older_python import TextEnum


class TrainingMode(TextEnum):
    """What a training script asks for."""

    AUTO = "auto"  # synchronous where an all-reduce costs little, else averaged
    SYNCHRONOUS = "synchronous"
    AVERAGED = "averaged"


class IntervalKind(Enum):
    """How copies train an interval."""

    AVERAGED = auto()
    SYNCHRONOUS = auto()
    WATCHED = auto()  # a step each, averaged, in which copies see whether steps can be shared


# The part of a step that the exchange of gradients may take, beyond which copies average.
MOST_EXCHANGE = 0.3


@dataclass
class IntervalChooser:
    """Chooses how the next interval is trained, for one copy."""

    mode: TrainingMode
    _watched: set[frozenset[int]] = field(default_factory=set)

    def kind(
        self, here: Collection[int], able: Collection[int], costly: Collection[int]
    ) -> IntervalKind:
        """Return how the copies that are `here` train the next interval.

        `able` are those that can train synchronously, `costly` those between which the exchange was
        measured as too slow: it is tried again when copies have come or gone. Copies of which it is
        not known whether they can are watched for one interval.
        """
        if self.mode is TrainingMode.AVERAGED or len(here) < 2:
            return IntervalKind.AVERAGED
        if set(here) <= set(able):
            is_cheap = self.mode is TrainingMode.SYNCHRONOUS or set(here) != set(costly)
            return IntervalKind.SYNCHRONOUS if is_cheap else IntervalKind.AVERAGED
        if self.mode is TrainingMode.SYNCHRONOUS or frozenset(here) in self._watched:
            return IntervalKind.AVERAGED
        self._watched.add(frozenset(here))
        return IntervalKind.WATCHED


def is_costly(exchange_s: float, train_s: float) -> bool:
    """Return whether exchanging gradients takes too much of a step that trains for `train_s`."""
    return exchange_s > MOST_EXCHANGE * (exchange_s + train_s)
