"""The batches of a data loader by number, in any order.

Workers load the next numbers ahead. Where another one is asked for, their batches are dropped: no
batch depends on those loaded before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils import data
from torch.utils.data import DataLoader

from hadar_slurm.runtime.samples import mixed

# (number of a batch, batch size, size of the data set) -> the indices of that batch.
Samples = Callable[[int, int, int], list[int]]


class Batches:
    """The batches of a loader's data set; raises ValueError where the loader decides the order."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        sampler, self.batch_size = _checked(loader)
        self.dataset: Any = loader.dataset
        self._is_shuffled = isinstance(sampler, data.RandomSampler)
        self._numbers = range(0)
        self._samples: Samples | None = None
        self._running: Iterator[Any] | None = None
        self._next = 0
        # A separate one: reloading batches must not change the random numbers of training.
        self._generator = torch.Generator()
        workers = loader.num_workers
        self._loader: DataLoader[Any] = DataLoader(
            self.dataset,
            batch_sampler=self,
            num_workers=workers,
            collate_fn=loader.collate_fn,
            pin_memory=loader.pin_memory,
            timeout=loader.timeout,
            worker_init_fn=loader.worker_init_fn,
            multiprocessing_context=loader.multiprocessing_context if workers else None,
            prefetch_factor=loader.prefetch_factor if workers else None,
            persistent_workers=workers > 0,
            generator=self._generator,
        )

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the indices of the batches that are loaded from now on."""
        assert self._samples is not None
        for number in self._numbers:
            if self._is_shuffled:
                yield self._samples(number, self.batch_size, len(self.dataset))
            else:
                first = number * self.batch_size
                yield [(first + index) % len(self.dataset) for index in range(self.batch_size)]

    def get(self, number: int, end: int, samples: Samples, seed: int) -> Any:
        """Return a batch; none from `end` on is loaded ahead. `samples` gives a shuffled order."""
        if self._running is None or number != self._next:
            self._numbers, self._samples = range(number, end), samples
            self._generator.manual_seed(mixed(seed, number))
            self._running = iter(self._loader)
        self._next = number + 1
        return next(self._running)


def _checked(loader: DataLoader[Any]) -> tuple[Any, int]:
    """Return a loader's sampler and the size of its batches; raises ValueError."""
    dataset: Any = loader.dataset
    if isinstance(dataset, data.IterableDataset):
        raise ValueError(
            "the data set of a job in copies needs a length and an index: a step's number decides "
            f"which samples it sees, and {type(dataset).__name__} is an IterableDataset"
        )
    batches: Any = loader.batch_sampler
    if type(batches) is not data.BatchSampler:
        raise ValueError(
            "the data loader of a job in copies needs batch_size=, and has "
            + ("none" if batches is None else f"batch_sampler={type(batches).__name__}")
        )
    sampler: Any = batches.sampler
    is_shuffled = isinstance(sampler, data.RandomSampler) and not sampler.replacement
    is_whole = is_shuffled and sampler.num_samples == len(dataset)
    if not is_whole and (is_shuffled or type(sampler) is not data.SequentialSampler):
        raise ValueError(
            "the data loader of a job in copies has shuffle=True or shuffle=False: a step's number "
            f"decides which samples it sees, not sampler={type(sampler).__name__}"
        )
    return sampler, batches.batch_size
