"""A PyTorch Lightning training that hadard may move, and that may run in copies (HadarE).

Start your own from here: what hadard needs is marked with "hadar:", the rest is an ordinary module
and Trainer, a small network on made-up data. Alone it trains as any other. Needs
`pip install hadar_slurm[torch] lightning`; docs/frameworks.md says what of a Trainer works.
"""

from __future__ import annotations

import argparse
import time

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hadar_slurm.runtime.with_lightning import InCopies  # hadar:

copies = InCopies()  # hadar: saves when asked to, resumes, and reports


class Classifier(pl.LightningModule):
    """Classifies whether the first four of sixteen numbers have a positive sum."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__()
        self.options = options
        self.layers = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 2))

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        """Return the loss of a batch."""
        inputs, labels = batch
        loss = nn.functional.cross_entropy(self.layers(inputs), labels)
        step = copies.driven.step  # of the whole job; `global_step` restarts with every run
        if step is not None and step % self.options.print_every == 0:
            print(f"step {step}: loss {float(loss.detach()):.3f}", flush=True)
        time.sleep(self.options.step_seconds)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimiser."""
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main() -> None:
    """Train to --total-steps."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--total-steps", type=int, default=2000)
    parser.add_argument("--print-every", type=int, default=100, help="steps")
    parser.add_argument("--step-seconds", type=float, default=0.0, help="make steps last longer")
    options = parser.parse_args()
    pl.seed_everything(1)
    inputs = torch.randn(4096, 16)
    labels = (inputs[:, :4].sum(dim=1) > 0).long()
    loader = DataLoader(TensorDataset(inputs, labels), batch_size=32, shuffle=True)
    model = Classifier(options)
    trainer = pl.Trainer(
        max_steps=options.total_steps,
        devices=1,
        callbacks=[copies],  # hadar:
        enable_checkpointing=False,  # hadar: the job's checkpoint is in hadar-<job id>
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, copies.batches(loader))  # hadar: instead of loader

    accuracy = (model.layers(inputs).argmax(dim=1) == labels).float().mean()
    print(f"done: {options.total_steps} steps, accuracy {float(accuracy):.3f}")


if __name__ == "__main__":
    main()
