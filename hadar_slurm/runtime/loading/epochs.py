"""An ordinary data loader's epochs, of the steps that this copy trains."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from torch.utils.data import DataLoader

from hadar_slurm.runtime.intervals.sharing import Share, Sharing
from hadar_slurm.runtime.loading.batches import Batches
from hadar_slurm.runtime.loading.order import Order
from hadar_slurm.runtime.samples import Shuffled, mixed


class Steps(Protocol):
    """The copy, as far as a loader needs it."""

    total_steps: int
    sharing: Sharing
    shuffled: Shuffled

    @property
    def parent_step(self) -> int:
        """Return how many steps of the whole job come before the current one."""

    def next_step(self) -> int | None:
        """Count the last step as trained; return the next one, None once the job is done."""


class Epochs:
    """Yields the batches of this copy's steps; each time for one epoch of the whole job.

    An epoch ends when the copies together have trained its steps, the last one with the job. So a
    copy that comes later passes the epochs before without a batch.
    """

    def __init__(self, copy: Steps, loader: DataLoader[Any], parts: int) -> None:
        self._copy, self._given = copy, loader
        where = copy.sharing.member.where
        self._ranks, self._process = where.ranks, (where.copy, where.rank)
        self._order = self._order_of(loader, parts)
        self._batches = Batches(loader)
        self._begun = 0  # epochs
        self._next: int | None = None  # the step that the next epoch begins with
        self.dataset, self.batch_size = loader.dataset, loader.batch_size

    def use(self, loader: DataLoader[Any], parts: int) -> None:
        """Go on with another loader of the same batches; raises ValueError for other ones."""
        order = self._order_of(loader, parts)
        if order != self._order:
            raise ValueError(
                f"a job's steps have one order of samples: this loader has {order}, the one before "
                f"has {self._order}; use copy.samples() where steps differ"
            )
        if loader is not self._given:
            self._given, self._batches = loader, Batches(loader)

    def _order_of(self, loader: DataLoader[Any], parts: int) -> Order:
        if loader.generator or getattr(loader.sampler, "generator", None):
            raise ValueError(
                "the data loader of a job in copies has no generator=: give Copy(...) a seed= "
                "instead, which decides the order of samples on all copies"
            )
        return Order.of(loader, parts, self._ranks)

    def __len__(self) -> int:
        """Return how many batches an epoch of the whole job has."""
        return self._order.num_batches

    def __iter__(self) -> Iterator[Any]:
        copy, parts = self._copy, self._order.parts
        self._begun += 1
        end = -(-self._begun * len(self) // parts)
        is_last = end >= copy.total_steps
        while True:
            step = copy.next_step() if self._next is None else self._next
            if step is None:
                return
            self._next = None if is_last or copy.parent_step < end else step
            if self._next is not None:
                return
            is_over = not is_last and copy.parent_step + 1 >= end
            positions = self._order.positions(step)
            for part in range(parts):
                yield self._batch(step, positions, part)
            if is_over:
                return

    def _batch(self, step: int, positions: list[int], part: int) -> Any:
        mine = self._part(positions, self._copy.sharing.of, part)
        seed = mixed(self._copy.shuffled.seed, step, *self._process)
        return self._batches.get(mine, lambda: self._foreseen(step, part), seed)

    def _foreseen(self, step: int, part: int) -> Iterable[list[int]]:
        """Yield the batches after one, if this copy goes on and its share stays as it is."""
        share = self._copy.sharing.foreseen()
        for number in range(step, self._copy.total_steps):
            positions = self._order.positions(number)
            for each in range(part + 1 if number == step else 0, self._order.parts):
                yield self._part(positions, share, each)

    def _part(self, positions: list[int], share: Share, part: int) -> list[int]:
        mine = positions[share(len(positions), part, self._order.parts)]
        # The last batch of an epoch may have too few: each process has to train all the same.
        return self._order.indices(mine or positions[:1], self._copy.shuffled)
