"""Training in copies by Lightning's Trainer.

    copies = InCopies()
    trainer = Trainer(max_epochs=10, callbacks=[copies])
    trainer.fit(model, copies.batches(DataLoader(dataset, batch_size=64, shuffle=True)))

docs/frameworks.md says what else of a Trainer works, and what does not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils.data import DataLoader

from hadar_slurm.runtime.membership.surroundings import Surroundings
from hadar_slurm.runtime.settings import Settings
from hadar_slurm.runtime.trainers.driven import Driven, StepLoader, refuse

try:
    from lightning.pytorch.callbacks import Callback
except ImportError:
    from pytorch_lightning.callbacks import Callback


class InCopies(Callback):
    """Trains the steps of this process's copy, and takes over the copies' averages.

    The job has the steps that the Trainer would make alone. `seed` decides the order of samples.
    """

    def __init__(
        self,
        *,
        seed: int = 0,
        settings: Settings | None = None,
        surroundings: Surroundings | None = None,
    ) -> None:
        super().__init__()
        self.driven = Driven(seed=seed, settings=settings, surroundings=surroundings)
        self._own_steps = 0

    def batches(self, loader: DataLoader[Any]) -> StepLoader:
        """Return the loader to train with instead of the one given."""
        return self.driven.loader(loader)

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Note how many batches a step has, before Lightning asks for the length of an epoch."""
        self.driven.parts = trainer.accumulate_grad_batches

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Join the job. Raises ValueError for what a copy cannot do."""
        _check(trainer, pl_module)
        per_epoch = trainer.num_training_batches // trainer.accumulate_grad_batches
        scheduled = [
            (config.scheduler, _is_due(config.interval, config.frequency, per_epoch))
            for config in trainer.lr_scheduler_configs
        ]
        total_steps = trainer.estimated_stepping_batches
        self._own_steps = 0
        optimiser, scaler = trainer.optimizers[0], getattr(trainer.precision_plugin, "scaler", None)
        if not self.driven.begin(pl_module, optimiser, total_steps, scheduled, scaler=scaler):
            trainer.should_stop = True

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count the step as trained, if this was the last of its batches."""
        if trainer.global_step > self._own_steps:
            self._own_steps = trainer.global_step
            if not self.driven.advance():
                trainer.should_stop = True

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Leave the job."""
        self.driven.stopped(trainer.global_step)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Leave the job, so that no other copy waits for this one."""
        self.driven.end(exception)


def _is_due(interval: str, frequency: int, steps_per_epoch: int) -> Callable[[int], bool]:
    """Return whether Lightning, alone, calls a scheduler after a number of steps."""
    every = frequency * (steps_per_epoch if interval == "epoch" else 1)
    return lambda steps: steps % every == 0


def _check(trainer: Any, module: Any) -> None:
    """Raise ValueError for what a copy cannot do."""
    strategy, parts = type(trainer.strategy), trainer.accumulate_grad_batches
    callbacks = [name for callback in trainer.callbacks for name in _names(type(callback))]
    is_plain = not isinstance(trainer.train_dataloader, StepLoader)
    is_spread = "SingleDeviceStrategy" not in _names(strategy)
    is_endless = trainer.estimated_stepping_batches in (-1, float("inf"))
    has_least, steps = trainer.min_epochs or trainer.min_steps, trainer.global_step
    is_uneven = "GradientAccumulationScheduler" in callbacks
    rest, is_manual = trainer.num_training_batches % parts, not module.automatic_optimization
    wrongs = {
        "Trainer.fit(train_dataloaders=...): give it InCopies.batches(loader)": is_plain,
        "Trainer(devices=..., num_nodes=...): a copy is one process": trainer.world_size > 1,
        f"Trainer(strategy=...): a copy is on one device, not by {strategy.__name__}": is_spread,
        "Trainer(min_epochs=..., min_steps=...): a copy trains until the job is done": has_least,
        "Trainer(max_epochs=..., max_steps=...): give one, a job in copies ends": is_endless,
        "Trainer(overfit_batches=...): it decides which samples are used": trainer.overfit_batches,
        "GradientAccumulationScheduler: all steps have as many batches": is_uneven,
        f"Trainer(limit_train_batches=...): no multiple of accumulate_grad_batches={parts}": rest,
        "automatic_optimization=False: a step is one of Lightning's own": is_manual,
        "configure_optimizers: a copy has one optimiser": len(trainer.optimizers) != 1,
        "Trainer.fit(ckpt_path=...): a job resumes from its own checkpoint": steps > 0,
    }
    refuse(wrongs)


def _names(kind: type) -> list[str]:
    """Return the names of a class and its bases: there are two packages of Lightning."""
    return [each.__name__ for each in kind.__mro__]
