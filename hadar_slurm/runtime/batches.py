"""The batches of a data loader by their number, whichever of them are asked for.

Workers load ahead what is likely to come next, which is the number that follows. Where another one
is asked for, what they have is dropped: no batch depends on what was loaded before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)

from hadar_slurm.runtime.samples import mixed

# (number of a batch, batch size, size of the data set) -> the indices of that batch.
Samples = Callable[[int, int, int], list[int]]


class Batches:
    """The batches of a loader's data set; `samples` says what is in a batch where it shuffles.

    Raises ValueError for a loader whose order is not ours to decide.
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        sampler, self.batch_size = _checked(loader)
        self.dataset: Any = loader.dataset
        self._is_shuffled = isinstance(sampler, RandomSampler)
        self._numbers = range(0)
        self._samples: Samples | None = None
        self._running: Iterator[Any] | None = None
        self._next = 0
        # Its own: reloading batches must not change what training draws.
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
        """Return a batch; none from `end` on is loaded ahead."""
        if self._running is None or number != self._next:
            self._numbers, self._samples = range(number, end), samples
            self._generator.manual_seed(mixed(seed, number))
            self._running = iter(self._loader)
        self._next = number + 1
        return next(self._running)


def _checked(loader: DataLoader[Any]) -> tuple[Any, int]:
    """Return a loader's sampler and the size of its batches, or say why it cannot be followed."""
    dataset: Any = loader.dataset
    if isinstance(dataset, IterableDataset):
        raise ValueError(
            "the data set of a job in copies needs a length and an index: a step's number decides "
            f"which samples it sees, and {type(dataset).__name__} is an IterableDataset"
        )
    batches: Any = loader.batch_sampler
    if type(batches) is not BatchSampler:
        raise ValueError(
            "the data loader of a job in copies needs batch_size=, and has "
            + ("none" if batches is None else f"batch_sampler={type(batches).__name__}")
        )
    sampler: Any = batches.sampler
    if isinstance(sampler, RandomSampler) and not sampler.replacement:
        is_known = sampler.num_samples == len(dataset)
    else:
        is_known = type(sampler) is SequentialSampler
    if not is_known:
        raise ValueError(
            "the data loader of a job in copies has shuffle=True or shuffle=False: which samples a "
            f"step sees its number decides, and not sampler={type(sampler).__name__}"
        )
    return sampler, batches.batch_size
