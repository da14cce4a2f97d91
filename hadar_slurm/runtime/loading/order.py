"""Which samples each step sees, as in the epochs of an ordinary data loader."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch.utils import data
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from hadar_slurm.runtime.samples import Shuffled

_BY_HAND = "index the data set by copy.samples(step, batch_size=..., size=len(dataset)) instead"


@dataclass(frozen=True)
class Order:
    """The batches of a loader, numbered over all epochs; a step has `parts` of them."""

    size: int  # samples of the data set
    batch_size: int
    is_shuffled: bool
    drops_last: bool = False
    parts: int = 1

    @classmethod
    def of(cls, loader: DataLoader[Any], parts: int = 1, ranks: int = 1) -> Order:
        """Return the order of a loader, of which each of `ranks` processes has one.

        Raises ValueError, with the remedy, for a loader whose order cannot be the same on all
        copies.
        """
        if parts < 1:
            raise ValueError(f"parts must be 1 or more, not {parts}")
        sampler, batch_size = checked(loader)
        batches: Any = loader.batch_sampler
        is_spread = type(sampler) is DistributedSampler
        if is_spread and sampler.num_replicas != ranks:
            raise ValueError(
                f"DistributedSampler(num_replicas={sampler.num_replicas}): this copy has {ranks} "
                "processes; leave num_replicas out, copies share the steps themselves"
            )
        dataset: Any = loader.dataset
        order = cls(
            size=len(dataset),
            # A DistributedSampler's loader has a batch of each process, others that of the copy.
            batch_size=batch_size * (ranks if is_spread else 1),
            is_shuffled=sampler.shuffle if is_spread else isinstance(sampler, data.RandomSampler),
            drops_last=batches.drop_last,  # a prepared loader's own is False
            parts=parts,
        )
        if order.num_batches < 1:
            raise ValueError(f"the data loader has no batch: its data set has {order.size} samples")
        return order

    @property
    def num_batches(self) -> int:
        """Return how many batches an epoch has."""
        whole, rest = divmod(self.size, self.batch_size)
        return whole + (rest > 0 and not self.drops_last)

    def positions(self, step: int) -> list[int]:
        """Return where in the stream of all samples, epoch after epoch, those of a step are."""
        found: list[int] = []
        for number in range(step * self.parts, (step + 1) * self.parts):
            epoch, batch = divmod(number, self.num_batches)
            first = batch * self.batch_size
            last = min(first + self.batch_size, self.size)
            found += range(epoch * self.size + first, epoch * self.size + last)
        return found

    def indices(self, positions: list[int], shuffled: Shuffled) -> list[int]:
        """Return the indices of positions; each epoch is `shuffled` by itself, if at all."""
        if self.is_shuffled:
            return shuffled.indices(positions, self.size)
        return [position % self.size for position in positions]


def checked(loader: DataLoader[Any]) -> tuple[Any, int]:
    """Return a loader's sampler and the size of its batches; raises ValueError."""
    dataset: Any = loader.dataset
    if isinstance(dataset, data.IterableDataset):
        raise ValueError(
            "the data set of a job in copies needs a length and an index: a step's number decides "
            f"which samples it sees, and {type(dataset).__name__} is an IterableDataset; read it "
            "by copy.positions() and hadar_slurm.runtime.stream.Stream"
        )
    batches: Any = loader.batch_sampler
    if type(batches) is not data.BatchSampler:
        raise ValueError(
            "the data loader of a job in copies needs batch_size=, and has "
            + ("none" if batches is None else f"batch_sampler={type(batches).__name__}")
            + f"; {_BY_HAND}"
        )
    sampler: Any = batches.sampler
    is_plain = type(sampler) in (data.SequentialSampler, DistributedSampler)
    if type(sampler) is data.RandomSampler and not sampler.replacement:
        is_plain = sampler.num_samples == len(dataset)
    if not is_plain:
        raise ValueError(
            "the data loader of a job in copies has shuffle=True or shuffle=False: a step's number "
            f"decides which samples it sees, not sampler={type(sampler).__name__}; for a part of "
            f"the data set use torch.utils.data.Subset, or {_BY_HAND}"
        )
    return sampler, batches.batch_size
