"""Learning rates that follow the whole job, with any scheduler.

A trainer calls its scheduler after each of its steps, and a copy makes only some of the job's. So
copies of the schedulers run on groups without parameters, one step for each step of the job, and
their rates apply.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

# A scheduler, and whether it is called after a number of steps of the job.
Scheduled = tuple[Any, Callable[[int], bool]]
# The settings of a group that schedulers change.
_CHANGED = ("lr", "momentum", "betas")


class LearningRates:
    """The rates of an optimiser's groups by the job's steps.

    `optimiser` is the one that trains, `known_as` its wrappers in the schedulers. Raises ValueError
    for a scheduler that follows a metric of this copy.
    """

    def __init__(
        self, optimiser: Optimizer, scheduled: Sequence[Scheduled], known_as: Sequence[Any] = ()
    ) -> None:
        for scheduler, _ in scheduled:
            name = type(scheduler).__name__
            if not isinstance(scheduler, LRScheduler):
                raise ValueError(f"{name} is no scheduler of PyTorch, and rates follow the job")
            if "metrics" in inspect.signature(type(scheduler).step).parameters:
                raise ValueError(f"{name} follows a metric, and each copy has its own")
        self._optimiser = optimiser
        self._real = [scheduler for scheduler, _ in scheduled]
        self._is_due = [is_due for _, is_due in scheduled]
        groups = [
            deepcopy({**group, "params": [torch.zeros(())]}) for group in optimiser.param_groups
        ]
        stand_in: Any = Optimizer(groups, dict(optimiser.defaults))
        memo = {id(known): stand_in for known in (optimiser, *known_as)}
        self._first: tuple[Any, list[Any]] = (stand_in, deepcopy(self._real, memo))
        self._begin()

    def _begin(self) -> None:
        self._steps = 0
        self._stand_in, self._beside = deepcopy(self._first)

    def set(self, steps: int) -> None:
        """Give the optimiser the rates after this number of steps of the job."""
        if not self._real:
            return
        if steps < self._steps:  # an interval's steps are lost with a copy
            self._begin()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # nothing is optimised here
            while self._steps < steps:
                self._steps += 1
                for scheduler, is_due in zip(self._beside, self._is_due, strict=True):
                    if is_due(self._steps):
                        scheduler.step()
        groups = self._optimiser.param_groups
        for group, says in zip(groups, self._stand_in.param_groups, strict=True):
            group.update({key: deepcopy(says[key]) for key in _CHANGED if key in says})
        for scheduler in self._real:  # for what is logged
            scheduler._last_lr = [group["lr"] for group in groups]
