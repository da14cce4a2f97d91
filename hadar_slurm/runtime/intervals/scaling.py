"""A factor of an optimiser's learning rates that its script does not see.

The rates of its groups have the factor only while the optimiser makes a step: a scheduler reads and
writes them in between.
"""

from __future__ import annotations

from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from torch.optim import Optimizer


class Scaling:
    """The factor of one optimiser's rates; `Scaling.of` has the same for all that ask."""

    _known: ClassVar[WeakKeyDictionary[Optimizer, Scaling]] = WeakKeyDictionary()

    def __init__(self, optimiser: Optimizer) -> None:
        self.factor = 1.0
        self._rates: list[Any] | None = None  # those of the script, during a step
        optimiser.register_step_pre_hook(self._before)
        optimiser.register_step_post_hook(self._after)

    @classmethod
    def of(cls, optimiser: Optimizer) -> Scaling:
        """Return the factor of an optimiser, which is 1 at first."""
        if optimiser not in cls._known:
            cls._known[optimiser] = cls(optimiser)
        return cls._known[optimiser]

    def _before(self, optimiser: Optimizer, *_: object) -> None:
        if self._rates is not None:  # the last step has failed
            self._after(optimiser)
        if self.factor != 1.0:
            self._rates = [group["lr"] for group in optimiser.param_groups]
            for group in optimiser.param_groups:
                group["lr"] = group["lr"] * self.factor

    def _after(self, optimiser: Optimizer, *_: object) -> None:
        if self._rates is not None:
            for index, rate in enumerate(self._rates):
                optimiser.param_groups[index]["lr"] = rate
            self._rates = None
