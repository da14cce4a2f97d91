"""Delayed averaging: what a copy trains while its interval is averaged.

It continues from its own parameters, and adds how the average differs from its contribution: x_now
+ (x_consolidated - x_contributed), the average and the copy's progress since (local SGD with
delayed averaging: DaSGD, arXiv 2006.00441).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from hadar_slurm.runtime.averaging import state
from hadar_slurm.runtime.averaging.consolidation import wide_type
from hadar_slurm.runtime.averaging.finite import is_finite
from hadar_slurm.runtime.files.ranges import Ranges
from hadar_slurm.runtime.files.records import SlotEnd
from hadar_slurm.runtime.files.tensors import BLOCK, TensorFile
from hadar_slurm.runtime.files.threads import on_one_thread

# PyTorch gives these no types.
_Stream: Any = torch.cuda.Stream
_Event: Any = torch.cuda.Event


class Ahead:
    """What a copy has trained since it contributed to `slot`: `done`, in `seconds`.

    Parameters are kept once more until the average is there, on the model's device if it has room.
    All other state stays the copy's own, as that of DiLoCo's inner optimisers does (arXiv
    2311.08105).
    """

    def __init__(
        self, model: nn.Module, slot: int, memory: dict[str, torch.Tensor] | None = None
    ) -> None:
        """Keep the parameters of `model`, in the `memory` of an earlier one where it is given."""
        self.slot, self.done, self.seconds = slot, Ranges(), 0.0
        # As contributed; once an average is fetched, how that differs.
        self._kept = {} if memory is None else memory
        _keep(model, self._kept)
        self._fetched = ""  # the id of its end
        self._now: dict[str, torch.Tensor] = {}
        devices = {tensor.device for tensor in self._kept.values() if tensor.is_cuda}
        self._are_kept = {device: _recorded(device) for device in devices}

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Have GPU work of the body wait for what is kept, but not for the training that goes on.

        It is done at the end of the body.
        """
        with ExitStack() as streams:
            for device, is_kept in self._are_kept.items():
                stream = _Stream(device)
                stream.wait_event(is_kept)
                streams.callback(stream.synchronize)
                streams.enter_context(torch.cuda.stream(stream))
            yield

    def belongs_to(self, end: SlotEnd, mine: Ranges) -> bool:
        """Return whether all steps are in `mine` after `end`; others would count twice."""
        is_next = end.slot == self.slot and self._fetched in ("", end.id)
        return is_next and len(self.done) > 0 and not len(self.done - mine)

    def contributed(self, named: state.Named, *, with_state: bool) -> state.Named:
        """Return a state of now that later training does not change."""
        tensors, facts = named
        own = {state.MODEL + name: tensor for name, tensor in self._kept.items()}
        rest = {
            name: tensor
            for name, tensor in tensors.items()
            if name not in own and (with_state or not name.startswith(state.OPTIMISER))
        }
        kept, _ = state.kept((rest, facts))
        return {name: own[name] if name in own else kept[name] for name in [*own, *rest]}, facts

    def stop(self, model: nn.Module) -> None:
        """Keep the parameters as they are at the first call."""
        if not self._now:
            _keep(model, self._now)

    @on_one_thread
    def fetch(self, end: SlotEnd, file: TensorFile) -> None:
        """Read the average of all copies, and keep how it differs from what was contributed.

        May run beside training. Raises TensorFileError and OSError; then this is of no use.
        """
        if self._fetched == end.id:
            return
        self._fetched = end.id
        for name, then in self._kept.items():
            wide = wide_type(then)
            differs = then if then.dtype == wide else torch.empty_like(then, dtype=wide)
            old, into = then.reshape(-1), differs.reshape(-1)
            for number, block in enumerate(file.blocks(state.MODEL + name)):
                here = slice(number * BLOCK, number * BLOCK + len(block))
                one = block.to(old.device, wide)
                by = torch.sub(one, old[here].to(wide), out=into[here])
                if not is_finite(by):
                    by[one.isinf() & by.isnan()] = 0.0  # both are infinite, and alike
            self._kept[name] = differs

    def take_over(self, model: nn.Module, end: SlotEnd, file: TensorFile) -> None:
        """Give a model the parameters of all copies at the end of `slot`, and the progress.

        To be called once. Raises TensorFileError and OSError, unless the end was fetched.
        """
        self.fetch(end, file)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                by = self._kept[name].to(parameter.device)
                if name in self._now:
                    parameter.copy_(self._now[name])
                if parameter.dtype == by.dtype:
                    parameter.add_(by)
                else:
                    parameter.copy_(parameter.to(by.dtype) + by)


def _recorded(device: torch.device) -> Any:
    """Return an event that occurs when a GPU has done what it was given by this thread so far."""
    with torch.cuda.device(device):
        event = _Event()
        event.record()
    return event


def _keep(model: nn.Module, kept: dict[str, torch.Tensor]) -> None:
    """Copy the parameters to `kept`, into tensors that are there."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            like = kept.get(name)
            if like is None or like.dtype != parameter.dtype:
                like = kept[name] = _room_for(parameter)
            like.copy_(parameter)


def _room_for(parameter: torch.Tensor) -> torch.Tensor:
    """Return memory for a parameter, that of the node where its GPU has none left."""
    try:
        return torch.empty_like(parameter, memory_format=torch.contiguous_format)
    except torch.cuda.OutOfMemoryError:
        return torch.empty(parameter.shape, dtype=parameter.dtype)
