"""Samples by position from what can only be read forwards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Stream(Generic[T]):
    """Samples that come one after the other, in the same order each time that they are opened.

    `begin` returns the samples of an epoch by its number, from 0, and `size` is their number;
    without it there is one epoch, which may be endless. All copies must see the same samples.

        stream = Stream(lambda epoch: read(shards, seed=epoch), size=1_000_000)
        batch = stream.take(copy.positions(step, batch_size=64))

    Samples of other copies are read and dropped. For a step that another copy has lost the epoch
    may be opened again.
    """

    def __init__(self, begin: Callable[[int], Iterable[T]], size: int | None = None) -> None:
        """Raise ValueError for an epoch without samples; nothing is opened yet."""
        if size is not None and size < 1:
            raise ValueError(f"size must be 1 or more, not {size}")
        self.begin, self.size = begin, size
        self._epoch, self._next = -1, 0
        self._samples: Iterator[T] = iter(())

    def take(self, positions: Iterable[int]) -> list[T]:
        """Return the samples at positions, counted from 0 over the whole job.

        Raises EOFError where an epoch ends too early.
        """
        size = self.size
        return [self._at(*(divmod(each, size) if size else (0, each))) for each in positions]

    def _at(self, epoch: int, index: int) -> T:
        if epoch != self._epoch or index < self._next:
            self._epoch, self._next = epoch, 0
            self._samples = iter(self.begin(epoch))
        for sample in self._samples:
            self._next += 1
            if self._next > index:
                return sample
        # The next call opens the epoch again: the data set may still grow.
        self._epoch, read = -1, self._next
        raise EOFError(f"epoch {epoch} ended after {read} samples, and sample {index} is missing")
