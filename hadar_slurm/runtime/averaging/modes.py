"""How copies train: all together step by step, or each for itself between averagings."""

from __future__ import annotations

from collections.abc import Collection

from hadar_slurm.older_python import TextEnum


class Mode(TextEnum):
    """What a training script asks for."""

    AUTO = "auto"  # synchronous where an all-reduce costs little, else averaged
    SYNCHRONOUS = "synchronous"
    AVERAGED = "averaged"


# The part of a step that the exchange of gradients may take, beyond which copies average.
MOST_EXCHANGE = 0.3


def is_synchronous(
    mode: Mode, here: Collection[int], able: Collection[int], costly: Collection[int]
) -> bool:
    """Return whether the copies that are `here` train the next interval synchronously.

    `able` are those that can, `costly` those between which the exchange was measured as too slow:
    it is tried again when copies have come or gone.
    """
    if mode is Mode.AVERAGED or len(here) < 2 or not set(here) <= set(able):
        return False
    return mode is Mode.SYNCHRONOUS or set(here) != set(costly)


def is_costly(exchange_s: float, train_s: float) -> bool:
    """Return whether exchanging gradients takes too much of a step that trains for `train_s`."""
    return exchange_s > MOST_EXCHANGE * (exchange_s + train_s)
