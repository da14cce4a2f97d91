"""A copy that a trainer's loop drives.

A copy counts a step as trained when the next is asked for, a trainer only loads batches. So
`StepLoader` yields the batches of the current step alone, and `Driven.advance`, which a trainer's
hook calls, counts it as trained and takes the next.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from hadar_slurm.runtime.averaging.modes import TrainingMode
from hadar_slurm.runtime.copy import Copy
from hadar_slurm.runtime.loading.batches import Batches
from hadar_slurm.runtime.loading.order import Order
from hadar_slurm.runtime.membership.surroundings import Surroundings
from hadar_slurm.runtime.samples import mixed
from hadar_slurm.runtime.settings import Settings
from hadar_slurm.runtime.trainers.rates import LearningRates, Scheduled

log = logging.getLogger(__name__)


@dataclass(eq=False)
class Driven:
    """One copy of a job, step by step."""

    seed: int = 0
    settings: Settings | None = None
    surroundings: Surroundings | None = None
    parts: int = 1  # how many batches are accumulated to a step
    copy: Copy | None = None
    step: int | None = None  # the current one; None before the first and once the job is done
    turn: int = 0  # how many steps were taken; a number may come twice, where a slot was lost
    _steps: Iterator[int] = field(default_factory=lambda: iter(()))
    _rates: LearningRates | None = None

    def begin(
        self,
        model: nn.Module,
        optimiser: Optimizer,
        total_steps: int,
        scheduled: Sequence[Scheduled] = (),
        known_as: Sequence[Any] = (),
        scaler: Any = None,
    ) -> bool:
        """Join and take the first step, if there is one; `known_as` wrap the optimiser."""
        self._rates = LearningRates(optimiser, scheduled, known_as)
        copy = Copy(
            model,
            optimiser,
            total_steps=total_steps,
            extra=() if scaler is None else (scaler,),
            seed=self.seed,
            mode=TrainingMode.AVERAGED,
            settings=self.settings,
            surroundings=self.surroundings,
        )
        self.copy = copy.__enter__()
        self._steps = copy.steps()
        return self.advance()

    def advance(self) -> bool:
        """Count the current step as trained and take the next; return whether there is one.

        Between the two a slot may end, and the parameters become the average of all copies.
        """
        if self.copy is None or self._rates is None:
            return False
        self.step = None
        try:
            self.step = next(self._steps, None)
        except BaseException as error:
            self.end(error)
            raise
        self.turn += 1
        if self.step is not None:
            self._rates.set(self.copy.parent_step)
        return self.step is not None

    def stopped(self, own_steps: int) -> None:
        """Leave the job after the trainer has ended its loop, with `own_steps` of this copy.

        Raises RuntimeError if it could not continue although the job is not done.
        """
        copy, is_early = self.copy, self.step is not None
        if copy is not None and is_early and own_steps >= copy.total_steps:
            error = RuntimeError(
                "the trainer has made all of its steps, some of which were lost: start it again, "
                "and it makes those that are missing"
            )
            self.end(error)
            raise error
        self.end()
        if copy is not None and is_early:
            log.warning("the trainer has stopped this copy before the job was done")

    def end(self, error: BaseException | None = None) -> None:
        """Leave the job, for an error or because the trainer has ended."""
        copy, self.copy, self.step = self.copy, None, None
        self._steps = iter(())
        if copy is not None:
            copy.__exit__(type(error) if error else None, error, None)

    def loader(self, loader: DataLoader[Any]) -> StepLoader:
        """Return a loader like the one given, of the batches of this copy's steps."""
        return StepLoader(self, loader)


class StepLoader:
    """The batches of a copy's steps, from one epoch of the trainer to the next.

    An epoch is as long as the given loader's, in steps of this copy.
    """

    def __init__(self, driven: Driven, loader: DataLoader[Any]) -> None:
        self._driven, self._length, self._order = driven, len(loader), Order.of(loader)
        self._batches = Batches(loader)
        # Trainers read these.
        self.dataset, self.batch_size = loader.dataset, self._order.batch_size

    def __len__(self) -> int:
        """Return how many batches an epoch has: whole steps."""
        parts = self._driven.parts
        return -(-self._length // parts) * parts

    def __iter__(self) -> Iterator[Any]:
        driven, given = self._driven, 0
        for _ in range(len(self) // driven.parts):
            copy, step = driven.copy, driven.step
            if copy is None or step is None:
                return
            if driven.turn == given:
                raise RuntimeError("the trainer asks for a batch before it has made the last step")
            given = driven.turn
            first, end = step * driven.parts, copy.total_steps * driven.parts
            for number in range(first, first + driven.parts):
                foreseen = partial(self._foreseen, copy, number + 1, end)
                seed = mixed(driven.seed, number)
                yield self._batches.get(self._indices(copy, number), foreseen, seed)

    def _foreseen(self, copy: Copy, first: int, end: int) -> Iterator[list[int]]:
        return (self._indices(copy, number) for number in range(first, end))

    def _indices(self, copy: Copy, number: int) -> list[int]:
        size, batch_size = self._order.size, self._order.batch_size
        if self._order.is_shuffled:
            return copy.samples(number, batch_size=batch_size, size=size)
        return [(number * batch_size + index) % size for index in range(batch_size)]


def refuse(wrongs: Mapping[str, object]) -> None:
    """Raise ValueError with the first of the texts whose value is true."""
    for wrong, is_so in wrongs.items():
        if is_so:
            raise ValueError(wrong)
