"""Training in copies by a loop of one's own with Hugging Face's Accelerate.

    model, optimiser, loader, scheduler = accelerator.prepare(model, optimiser, loader, scheduler)
    copy = AcceleratedCopy(accelerator, model, optimiser, scheduler, total_steps=1000)
    for epoch in range(EPOCHS):
        for batch in copy.loader(loader):
            with accelerator.accumulate(model):
                ...

docs/frameworks.md says what else of Accelerate works, and what does not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from accelerate.utils import send_to_device
from torch.utils.data import DataLoader

from hadar_slurm.runtime.averaging.state import Stateful
from hadar_slurm.runtime.copy import Copy
from hadar_slurm.runtime.loading.epochs import Epochs
from hadar_slurm.runtime.trainers.driven import refuse
from hadar_slurm.runtime.trainers.rates import LearningRates


class AcceleratedCopy(Copy):
    """This process's copy of a job whose loop uses an `accelerator`; see `Copy`.

    Model, optimiser and scheduler may be prepared or not. The rates of `scheduler` are those of the
    whole job's steps: calling it changes nothing else. The scaler of fp16 is part of `extra`.

    Raises ValueError for an accelerator of several processes, and for a scheduler that follows a
    metric, beside what `Copy` raises.
    """

    def __init__(
        self,
        accelerator: Any,
        model: Any,
        optimiser: Any,
        scheduler: Any = None,
        *,
        total_steps: int,
        extra: Sequence[Stateful] = (),
        **known: Any,
    ) -> None:
        _check(accelerator)
        plain = getattr(optimiser, "optimizer", optimiser)
        scalers = () if accelerator.scaler is None else (accelerator.scaler,)
        super().__init__(
            accelerator.unwrap_model(model),
            plain,
            total_steps=total_steps,
            extra=(*extra, *scalers),
            **known,
        )
        self._accelerator = accelerator
        inner = getattr(scheduler, "scheduler", scheduler)
        scheduled = [] if inner is None else [(inner, lambda steps: True)]
        self._rates = LearningRates(plain, scheduled, [optimiser])

    def steps(self) -> Iterator[int]:
        """Yield the number of each step, as `Copy` does, with the job's learning rate."""
        for step in super().steps():
            self._rates.set(self.parent_step)
            yield step

    def loader(self, loader: DataLoader[Any], *, parts: int | None = None) -> Epochs:
        """Return the batches of this copy's steps on the accelerator's device; see `Copy.loader`.

        A step has as many as the accelerator accumulates, unless `parts` says otherwise.
        """
        parts = parts or self._accelerator.gradient_accumulation_steps
        return super().loader(getattr(loader, "base_dataloader", loader), parts=parts)

    def _epochs_of(self, loader: DataLoader[Any], parts: int) -> Epochs:
        return _OnDevice(self, loader, parts, self._accelerator)


class _OnDevice(Epochs):
    """Yields batches on the device of an accelerator, if it is to place them."""

    def __init__(self, copy: Copy, loader: DataLoader[Any], parts: int, accelerator: Any) -> None:
        super().__init__(copy, loader, parts)
        self._accelerator = accelerator

    def __iter__(self) -> Iterator[Any]:
        here = self._accelerator
        for batch in super().__iter__():
            is_placed = here.device_placement
            yield send_to_device(batch, here.device, here.non_blocking) if is_placed else batch


def _check(accelerator: Any) -> None:
    """Raise ValueError for what a copy cannot do."""
    kind, count = accelerator.distributed_type, accelerator.num_processes
    alone = "a copy is one process with one GPU here; set CUDA_VISIBLE_DEVICES"
    refuse(
        {
            f"an accelerator of {count} processes: {alone}": count != 1,
            f"{kind}: {alone}": getattr(kind, "value", kind) != "NO",
        }
    )
