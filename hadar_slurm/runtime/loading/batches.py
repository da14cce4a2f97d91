"""The batches of a data loader by their samples, in any order.

Workers load the batches that are foreseen. Where another one is asked for, theirs are dropped: no
batch depends on those loaded before it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

import torch
from torch.utils.data import DataLoader

# Returns the indices of the batches that will be asked for after the current one.
Foreseen = Callable[[], Iterable[list[int]]]


class Batches:
    """Batches that a loader's workers make of its data set by its settings."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self.dataset: Any = loader.dataset
        self._source: Iterator[list[int]] = iter(())
        self._loading = deque[list[int]]()  # the batches that workers have, or are to load
        self._running: Iterator[Any] | None = None
        # A separate one: reloading batches must not change the random numbers of training.
        self._generator = torch.Generator()
        self._workers = workers = loader.num_workers
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
        for indices in self._source:
            self._loading.append(indices)
            yield indices

    def get(self, indices: list[int], foreseen: Foreseen, seed: int) -> Any:
        """Return a batch; `seed` is for the workers, where they begin with it."""
        if self._running is None or not self._loading or self._loading[0] != indices:
            self._loading.clear()
            self._source = chain([indices], foreseen() if self._workers else ())
            self._generator.manual_seed(seed)
            self._running = iter(self._loader)
        batch = next(self._running)
        self._loading.popleft()
        return batch
