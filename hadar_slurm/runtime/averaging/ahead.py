"""Delayed averaging: what a copy trains while its slot is averaged.

It continues from its own parameters, and adds how the average differs from its contribution: x_now
+ (x_consolidated - x_contributed), the average and the copy's progress since (local SGD with
delayed averaging: DaSGD, arXiv 2006.00441).
"""

from __future__ import annotations

import torch
from torch import nn

from hadar_slurm.runtime.averaging.consolidation import corrected
from hadar_slurm.runtime.averaging.ranges import Ranges
from hadar_slurm.runtime.averaging.slots import SlotEnd
from hadar_slurm.runtime.averaging.state import MODEL
from hadar_slurm.runtime.averaging.tensors import TensorFile


class Ahead:
    """What a copy has trained since it contributed to `slot`: `done`, in `seconds`.

    Parameters are kept twice until the average is there, on the model's device. All other state
    stays the copy's own, as that of DiLoCo's inner optimisers does (arXiv 2311.08105).
    """

    def __init__(self, model: nn.Module, slot: int) -> None:
        self.slot, self.done, self.seconds = slot, Ranges(), 0.0
        self._then = _parameters(model)
        self._now: dict[str, torch.Tensor] = {}

    def belongs_to(self, end: SlotEnd, mine: Ranges) -> bool:
        """Return whether all steps are in `mine` after `end`; others would count twice."""
        return end.slot == self.slot and len(self.done) > 0 and not len(self.done - mine)

    def stop(self, model: nn.Module) -> None:
        """Keep the parameters as they are at the first call."""
        self._now = self._now or _parameters(model)

    def take_over(self, model: nn.Module, file: TensorFile) -> None:
        """Give a model the parameters of all copies at the end of `slot`, and the progress."""
        self.stop(model)
        for name, parameter in model.named_parameters():
            one = file.tensor(MODEL + name).to(parameter.device)
            with torch.no_grad():
                parameter.copy_(corrected(self._now[name], self._then[name], one))


def _parameters(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
