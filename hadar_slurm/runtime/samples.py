"""Which samples a step sees: its number decides, in the same way on every copy.

Samples have positions, counted over the whole job: step s of batches of B has positions s * B to
(s + 1) * B - 1. In a data set of N samples, position p is in epoch p // N.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

_SEED_PRIME = 1_000_003


def positions(step: int, batch_size: int, part: int = 0, parts: int = 1) -> range:
    """Return the positions of one of the `parts` into which a step's batch is cut.

    Together the parts are the batch; their sizes differ by one sample at most.
    """
    return range(step * batch_size, (step + 1) * batch_size)[part_of(batch_size, part, parts)]


def part_of(size: int, part: int, parts: int) -> slice:
    """Return one of `parts` parts of `size` samples; raises ValueError for none of them."""
    if not 0 <= part < parts:
        raise ValueError(f"part must be 0 to {parts - 1}, not {part}")
    return slice(size * part // parts, size * (part + 1) // parts)


class Shuffled:
    """A separate order for each epoch, the same for all copies that have the same seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._orders: dict[int, torch.Tensor] = {}

    def indices(self, positions: Iterable[int], size: int) -> list[int]:
        """Return the indices of positions in a data set of `size` samples."""
        return [int(self._order(each // size, size)[each % size]) for each in positions]

    def _order(self, epoch: int, size: int) -> torch.Tensor:
        if epoch not in self._orders:
            # A batch may reach into the next epoch.
            self._orders = {key: order for key, order in self._orders.items() if key == epoch - 1}
            generator = torch.Generator().manual_seed(mixed(self.seed, epoch))
            self._orders[epoch] = torch.randperm(size, generator=generator)
        return self._orders[epoch]


def mixed(*numbers: int) -> int:
    """Return one seed of several numbers."""
    seed = 0
    for number in numbers:
        seed = (seed * _SEED_PRIME + number + 1) % 2**63
    return seed
