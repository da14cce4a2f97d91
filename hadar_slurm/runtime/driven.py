"""A copy whose loop belongs to a trainer, which says when it has trained a step.

A trainer's loader hands out batches, and a copy counts a step as trained when the next is asked
for. So the two are apart here: `StepLoader` hands out the batches of the step at hand and has no
other, and `Driven.advance`, which a trainer's hook calls, counts it as trained and takes the next.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from hadar_slurm.runtime.batches import Batches
from hadar_slurm.runtime.copy import Copy
from hadar_slurm.runtime.membership.surroundings import Surroundings
from hadar_slurm.runtime.rates import LearningRates, Scheduled
from hadar_slurm.runtime.settings import Settings

log = logging.getLogger(__name__)


class Driven:
    """One copy of a job, step by step; `parts` is how many batches are accumulated to a step.

    `step` is the number of the step at hand, None before the first and once the job is done.
    """

    def __init__(
        self,
        *,
        seed: int = 0,
        settings: Settings | None = None,
        surroundings: Surroundings | None = None,
    ) -> None:
        self.seed, self.settings, self.surroundings = seed, settings, surroundings
        self.parts = 1
        self.copy: Copy | None = None
        self.step: int | None = None
        # How many steps were asked for; a number alone may come twice, where a slot was lost.
        self.turn = 0
        self._steps: Iterator[int] = iter(())
        self._rates: LearningRates | None = None

    def begin(
        self,
        model: nn.Module,
        optimiser: Optimizer,
        total_steps: int,
        scheduled: Sequence[Scheduled] = (),
        known_as: Sequence[Any] = (),
        scaler: Any = None,
    ) -> bool:
        """Join the job and take the first step; return whether there is one.

        `known_as` is what schedulers take for the optimiser; `scaler` that of half precision.
        """
        self._rates = LearningRates(optimiser, scheduled, known_as)
        copy = Copy(
            model,
            optimiser,
            total_steps=total_steps,
            extra=() if scaler is None else (scaler,),
            seed=self.seed,
            settings=self.settings,
            surroundings=self.surroundings,
        )
        self.copy = copy.__enter__()
        self._steps = copy.steps()
        return self.advance()

    def advance(self) -> bool:
        """Count the step at hand as trained and take the next; return whether there is one.

        Between the two a slot may end, and the parameters become those of all copies.
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

        Raises RuntimeError if it could not go on although the job is not done.
        """
        copy, step = self.copy, self.step
        if copy is not None and step is not None and own_steps >= copy.total_steps:
            error = RuntimeError(
                "the trainer has made all of its steps, some of which were lost: start it again, "
                "and it makes those that are missing"
            )
            self.end(error)
            raise error
        self.end()
        if copy is not None and step is not None:
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
        self._driven = driven
        self._batches = Batches(loader)
        self._length = len(loader)
        # Trainers ask for these.
        self.dataset = self._batches.dataset
        self.batch_size = self._batches.batch_size

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
                yield self._batches.get(number, end, self._samples, driven.seed)

    def _samples(self, number: int, batch_size: int, size: int) -> list[int]:
        copy = self._driven.copy
        if copy is None:
            return []
        return copy.samples(number, batch_size=batch_size, size=size)
