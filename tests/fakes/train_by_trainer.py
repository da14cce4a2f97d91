"""A small training with a trainer library, run as a separate program.

    python train_by_trainer.py DIRECTORY COPY TOTAL_STEPS --by accelerate|lightning|plain|...

As train_copy.py does, it writes DIRECTORY/steps-COPY, a line for each step: its number, its
learning rate, and the job's steps by then; and DIRECTORY/final-COPY.
`--by plain` is the same training in the loop that docs/runtime.md shows.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn
from torch.utils.data import DataLoader, Dataset

from hadar_slurm.runtime.copy import Copy
from hadar_slurm.runtime.membership.surroundings import Surroundings
from hadar_slurm.runtime.settings import Settings

SIZE, BATCH = 96, 16


class Samples(Dataset[dict[str, torch.Tensor]]):
    """Vectors, and whether their sum is positive."""

    def __init__(self) -> None:
        self.inputs = torch.randn(SIZE, 8, generator=torch.Generator().manual_seed(5))
        self.labels = (self.inputs.sum(dim=1) > 0).long()

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"inputs": self.inputs[index], "labels": self.labels[index]}


class Model(nn.Module):
    """Returns its loss, as Hugging Face's models do."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(dropout), nn.Linear(16, 2)
        )

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return loss and outputs."""
        outputs = self.net(inputs)
        return {"loss": nn.functional.cross_entropy(outputs, labels), "logits": outputs}


class Notes:
    """Writes a line for each step; call `take` before the step counts as trained."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.step_s = options.step_s
        self.file = (options.directory / f"steps-{options.copy}").open("a", buffering=1)

    def take(self, copy: Copy | None, step: int | None, rate: float) -> None:
        """Write the line of a step."""
        assert copy is not None
        time.sleep(self.step_s)
        self.file.write(f"{step} {rate} {copy.parent_step}\n")


def falling(total_steps: int) -> Callable[[int], float]:
    """Return the factor of the learning rate by step."""
    return lambda step: 1.0 - step / total_steps


def scheduler_of(options: argparse.Namespace, optimiser: torch.optim.Optimizer) -> Any:
    """Return the learning-rate scheduler in the options."""
    schedulers = torch.optim.lr_scheduler
    if options.schedule == "cycle":
        return schedulers.OneCycleLR(optimiser, max_lr=1e-2, total_steps=options.total_steps + 1)
    return schedulers.LambdaLR(optimiser, falling(options.total_steps))


def by_hand(
    options: argparse.Namespace, model: Model, where: Surroundings, settings: Settings
) -> None:
    """Train in a plain loop."""
    optimiser, notes, data = optimiser_of(model), Notes(options), Samples()
    lr = falling(options.total_steps)
    parts = options.accumulate
    with Copy(
        model,
        optimiser,
        total_steps=options.total_steps,
        lr=lr,
        seed=options.seed,
        settings=settings,
        surroundings=where,
    ) as copy:
        for step in copy.steps():
            rows = copy.samples(step, batch_size=BATCH * parts, size=SIZE)
            optimiser.zero_grad()
            for part in range(parts):
                some = rows[part * BATCH : (part + 1) * BATCH]
                loss = model(data.inputs[some], data.labels[some])["loss"]
                (loss / parts).backward()
            optimiser.step()
            notes.take(copy, step, optimiser.param_groups[0]["lr"])


def optimiser_of(model: Model) -> torch.optim.Optimizer:
    """Return the optimiser of a model."""
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def by_lightning(
    options: argparse.Namespace, model: Model, where: Surroundings, settings: Settings
) -> None:
    """Train with Lightning's Trainer."""
    from hadar_slurm.runtime.with_lightning import InCopies

    pl = importlib.import_module(options.library)
    notes = Notes(options)

    class Module(pl.LightningModule):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def training_step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
            return self.inner(**batch)["loss"]  # type: ignore[no-any-return]

        def validation_step(self, batch: dict[str, torch.Tensor]) -> None:
            assert not self.inner.training
            self.log("loss", self.inner(**batch)["loss"])

        def configure_optimizers(self) -> Any:
            optimiser = optimiser_of(model)
            scheduler = scheduler_of(options, optimiser)
            return [optimiser], [{"scheduler": scheduler, "interval": "step"}]

    class Taker(pl.Callback):  # type: ignore[name-defined, misc]
        def on_train_batch_end(self, trainer: Any, *rest: Any) -> None:
            if trainer.global_step > copies._own_steps:
                rate = self.rate
                notes.take(copies.driven.copy, copies.driven.step, rate)

        def on_train_batch_start(self, trainer: Any, *rest: Any) -> None:
            self.rate = trainer.optimizers[0].param_groups[0]["lr"]

    copies = InCopies(seed=options.seed, settings=settings, surroundings=where)
    per_epoch = -(-SIZE // BATCH // options.accumulate)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=1,
        max_steps=options.total_steps,
        max_epochs=-(-options.total_steps // per_epoch),
        callbacks=[Taker(), copies],
        accumulate_grad_batches=options.accumulate,
        precision="bf16-mixed" if options.bf16 else "32-true",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(
        Module(),
        copies.batches(DataLoader(Samples(), BATCH, shuffle=True, num_workers=options.workers)),
        DataLoader(Samples(), BATCH) if options.validate else None,
    )


def by_transformers(
    options: argparse.Namespace, model: Model, where: Surroundings, settings: Settings
) -> None:
    """Train with Hugging Face's Trainer."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from hadar_slurm.runtime.with_transformers import train_in_copies

    notes = Notes(options)

    class Taker(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, *words: Any, optimizer: Any, **known: Any) -> None:
            self.rate = optimizer.param_groups[0]["lr"]

        def on_step_end(self, *words: Any, **known: Any) -> None:
            notes.take(copies.copy, copies.step, self.rate)

    optimiser = optimiser_of(model)
    own: dict[str, Any] = {"optimizers": (optimiser, scheduler_of(options, optimiser))}
    if options.schedule == "linear":
        own = {}
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=str(options.directory / f"out-{options.copy}"),
            max_steps=options.total_steps,
            per_device_train_batch_size=BATCH,
            gradient_accumulation_steps=options.accumulate,
            dataloader_num_workers=options.workers,
            dataloader_pin_memory=False,
            learning_rate=1e-2,
            max_grad_norm=0.0,
            seed=options.seed,
            use_cpu=True,
            bf16=options.bf16,
            remove_unused_columns=False,
            eval_strategy="epoch" if options.validate else "no",
            report_to=[],
            disable_tqdm=True,
        ),
        train_dataset=Samples(),
        eval_dataset=Samples(),
        callbacks=[Taker()],
        **own,
    )
    copies = train_in_copies(trainer, settings=settings, surroundings=where)
    trainer.train()


def by_accelerate(
    options: argparse.Namespace, model: Model, where: Surroundings, settings: Settings
) -> None:
    """Train in an ordinary loop with Hugging Face's Accelerate."""
    from accelerate import Accelerator

    from hadar_slurm.runtime.with_accelerate import AcceleratedCopy

    class Watched(AcceleratedCopy):
        def next_step(self) -> int | None:
            self.step = super().next_step()
            return self.step

    notes, own = Notes(options), optimiser_of(model)
    accelerator = Accelerator(
        gradient_accumulation_steps=options.accumulate,
        mixed_precision="bf16" if options.bf16 else "no",
        cpu=True,
    )
    prepared, optimiser, loader, scheduler = accelerator.prepare(
        model,
        own,
        DataLoader(Samples(), BATCH, shuffle=True, num_workers=options.workers),
        scheduler_of(options, own),
    )
    copy = Watched(
        accelerator,
        prepared,
        optimiser,
        scheduler,
        total_steps=options.total_steps,
        seed=options.seed,
        mode=options.mode,
        settings=settings,
        surroundings=where,
    )
    for _ in range(-(-options.total_steps * options.accumulate // len(loader))):
        for batch in copy.loader(loader):
            with accelerator.accumulate(prepared):
                accelerator.backward(prepared(**batch)["loss"])
                rate = optimiser.param_groups[0]["lr"]
                optimiser.step()
                scheduler.step()
                optimiser.zero_grad()
            if accelerator.sync_gradients:
                notes.take(copy, copy.step, rate)


def main() -> None:
    """Train."""
    words = argparse.ArgumentParser()
    words.add_argument("directory", type=Path)
    words.add_argument("copy", type=int)
    words.add_argument("total_steps", type=int)
    words.add_argument("--by", choices=list(TRAIN), required=True)
    words.add_argument("--mode", default="averaged", help="of copies by accelerate")
    words.add_argument("--library", default="lightning.pytorch")
    words.add_argument("--schedule", choices=["falling", "cycle", "linear"], default="falling")
    words.add_argument("--step-s", type=float, default=0.0)
    words.add_argument("--slot-s", type=float, default=0.3)
    words.add_argument("--gather-s", type=float, default=0.5)
    words.add_argument("--gone-s", type=float, default=1.5)
    words.add_argument("--restart", type=int, default=0)
    words.add_argument("--seed", type=int, default=0)
    words.add_argument("--dropout", type=float, default=0.1)
    words.add_argument("--workers", type=int, default=0)
    words.add_argument("--accumulate", type=int, default=1)
    words.add_argument("--bf16", action="store_true")
    words.add_argument("--validate", action="store_true")
    words.add_argument("--assignment", type=Path)
    words.add_argument("--go", type=Path, help="wait for this file before joining")
    options = words.parse_args()
    logging.basicConfig(level="INFO")
    warnings.filterwarnings("ignore", module=r"(pytorch_)?lightning|torch|accelerate|transformers")
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    model = Model(options.dropout)
    where = Surroundings(
        copy=options.copy,
        directory=options.directory,
        job=f"7{options.copy}",
        restart=options.restart,
        spool=Path("/nonexistent"),
        assignment=options.assignment,
    )
    settings = Settings(
        slot_s=options.slot_s,
        cost_part=1.0,
        gather_s=options.gather_s,
        gone_after_s=options.gone_s,
        sign_every_s=0.1,
        poll_s=0.02,
        report_every_s=0.05,
        move_s=30.0,
    )
    options.directory.mkdir(exist_ok=True)
    if options.by == "lightning":
        importlib.import_module("lightning.pytorch")  # slow: not while other copies wait
    if options.by in ("accelerate", "transformers"):
        importlib.import_module(options.by)
    (options.directory / f"ready-{options.copy}").touch()
    while options.go and not options.go.exists():
        time.sleep(0.01)
    TRAIN[options.by](options, model, where, settings)
    save_file(model.net.state_dict(), options.directory / f"final-{options.copy}.safetensors")


TRAIN = {
    "plain": by_hand,
    "accelerate": by_accelerate,
    "lightning": by_lightning,
    "transformers": by_transformers,
}


if __name__ == "__main__":
    main()
