"""Training in copies by the Trainer of Hugging Face's transformers.

    trainer = Trainer(model=model, args=args, train_dataset=dataset)
    train_in_copies(trainer)
    trainer.train()

docs/frameworks.md says what else of a Trainer works, and what does not.
"""

from __future__ import annotations

import logging
from typing import Any

from transformers import TrainerCallback

from hadar_slurm.runtime.membership.surroundings import Surroundings
from hadar_slurm.runtime.settings import Settings
from hadar_slurm.runtime.trainers.driven import Driven, refuse

log = logging.getLogger(__name__)


def train_in_copies(
    trainer: Any, *, settings: Settings | None = None, surroundings: Surroundings | None = None
) -> Driven:
    """Let `trainer.train()` train the steps of this process's copy, and return that copy.

    The job has the steps that the Trainer would make alone. Raises ValueError for a setting of the
    Trainer that a copy cannot have.
    """
    args = trainer.args
    _check(trainer)
    if args.save_strategy != "no":
        log.info("save_strategy=no: a job in copies has a checkpoint of its own")
        args.save_strategy = type(args.save_strategy)("no")
    seed = args.seed if args.data_seed is None else args.data_seed
    driven = Driven(seed=seed, settings=settings, surroundings=surroundings)
    driven.parts = args.gradient_accumulation_steps
    whole_loader, train = trainer.get_train_dataloader, trainer.train

    def get_train_dataloader() -> Any:
        loader = whole_loader()
        # Not accelerate's, which loads each batch before it yields the one before.
        return driven.loader(getattr(loader, "base_dataloader", loader))

    def train_and_leave(*words: Any, **options: Any) -> Any:
        try:
            result = train(*words, **options)
        except BaseException as error:
            driven.end(error)
            raise
        driven.end()
        return result

    trainer.get_train_dataloader = get_train_dataloader
    trainer.train = train_and_leave
    trainer.add_callback(_InCopies(trainer, driven))
    return driven


class _InCopies(TrainerCallback):
    """Passes a trainer's events to a copy."""

    def __init__(self, trainer: Any, driven: Driven) -> None:
        self._trainer, self._driven = trainer, driven

    def on_train_begin(self, args: Any, state: Any, control: Any, **known: Any) -> None:
        wrong = "train(resume_from_checkpoint=...): a job resumes from its own checkpoint"
        refuse({wrong: state.global_step > 0})
        optimiser = self._trainer.optimizer
        self._driven.begin(
            self._trainer.model,
            getattr(optimiser, "optimizer", optimiser),  # within accelerate's
            state.max_steps,
            [(self._trainer.lr_scheduler, lambda steps: True)],
            [optimiser],
            self._trainer.accelerator.scaler,
        )

    def on_step_end(self, args: Any, state: Any, control: Any, **known: Any) -> Any:
        if not self._driven.advance():
            control.should_training_stop = True
        return control

    def on_train_end(self, args: Any, state: Any, control: Any, **known: Any) -> None:
        self._driven.stopped(state.global_step)


def _check(trainer: Any) -> None:
    """Raise ValueError for what a copy cannot do."""
    args, mode = trainer.args, trainer.args.parallel_mode
    is_parallel = mode.value != "not_parallel"
    wrongs = {
        f"{mode}: a copy is one process with one GPU; set CUDA_VISIBLE_DEVICES": is_parallel,
        "fsdp: a copy has its model on one device": trainer.is_fsdp_enabled,
        "deepspeed: a copy has its model on one device": trainer.is_deepspeed_enabled,
        "auto_find_batch_size: all copies have batches of the same size": args.auto_find_batch_size,
        "load_best_model_at_end: copies end with their average": args.load_best_model_at_end,
    }
    refuse(wrongs)
