"""Whether the steps of a training script can be shared: watched while it trains on its own.

A step that is shared by copies takes its samples from `copy.samples` or `copy.positions`, and calls
backward once for each of the parts that it asked for. A script that does otherwise is not wrong; it
averages.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import nn
from torch.optim import Optimizer

from hadar_slurm.runtime.synchronous.passes import Passes


@dataclass
class Fitness:
    """Watches steps until one has shown whether they can be shared."""

    model: nn.Module
    optimiser: Optimizer
    # None until it is known; "" if steps can be shared, else why not.
    fault: str | None = None
    _passes: Passes = field(init=False)
    _parts: set[int] = field(default_factory=set)
    _backwards: int = 0
    _stepped: int = 0
    _sparse: bool = False

    def __post_init__(self) -> None:
        self._passes = Passes(
            self.model,
            optimiser=self.optimiser,
            begun=self._begun,
            ended=self._ended,
            stepped=self._step,
        )

    def begin(self) -> None:
        """A step begins."""
        if self.fault is None:
            self._parts, self._backwards, self._stepped = set(), 0, 0
            self._passes.reset()
            self._passes.open()

    def expect(self, parts: int) -> None:
        """The script has asked for samples, in one of `parts` parts."""
        self._parts.add(parts)

    def finish(self) -> None:
        """A step is over: judge it."""
        if self.fault is None:
            self._passes.close()
            self.fault = self._judged()

    def close(self) -> None:
        """Leave the model as it was."""
        self._passes.close()

    def _judged(self) -> str:
        if not self._parts:
            return "a step takes no samples from copy.samples(), copy.positions() or copy.loader()"
        if len(self._parts) > 1:
            return f"a step takes its samples in {' and in '.join(map(str, self._parts))} parts"
        (parts,) = self._parts
        if self._backwards != parts:
            asked = f"with samples in {parts} part{'s' * (parts > 1)}"
            return f"backward() was called {self._backwards} times in a step, {asked}"
        if self._stepped > 1:
            return f"the optimiser has made {self._stepped} steps in one"
        return "gradients are sparse" if self._sparse else ""

    def _begun(self, parameter: nn.Parameter) -> None:
        self._sparse |= parameter.grad is not None and parameter.grad.is_sparse

    def _ended(self) -> None:
        self._backwards += 1

    def _step(self) -> None:
        self._stepped += 1
