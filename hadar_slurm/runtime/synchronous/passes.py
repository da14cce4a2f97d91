"""Notices the backward passes and the optimiser's steps of a training script."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer


@dataclass
class Passes:
    """Calls back while it is open.

    `begun` is called with a parameter whose gradient is the first to be there in a backward pass,
    and may raise; `ended` when the pass is over; `stepped` after each step of the optimiser.
    """

    model: nn.Module
    optimiser: Optimizer
    begun: Callable[[nn.Parameter], None]
    ended: Callable[[], None]
    stepped: Callable[[], None]
    parameters: list[nn.Parameter] = field(default_factory=list)
    _hooks: list[Any] = field(default_factory=list)
    _is_within: bool = False

    def open(self) -> None:
        """Watch all parameters that are trained."""
        if self._hooks:
            return
        self.parameters = [each for each in self.model.parameters() if each.requires_grad]
        watched: Any = self.parameters
        self._hooks = [
            each.register_post_accumulate_grad_hook(self._accumulated) for each in watched
        ]
        self._hooks.append(self.optimiser.register_step_post_hook(self._stepped))

    def close(self) -> None:
        """Leave the model as it was."""
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._is_within = [], False

    def reset(self) -> None:
        """Forget a pass that was interrupted by an error."""
        self._is_within = False

    def _accumulated(self, parameter: nn.Parameter) -> None:
        if self._is_within:
            return
        self.begun(parameter)
        self._is_within = True
        engine: Any = torch.autograd.Variable._execution_engine
        engine.queue_callback(self._ended)

    def _ended(self) -> None:
        self._is_within = False
        self.ended()

    def _stepped(self, *_: object) -> None:
        self.stepped()
