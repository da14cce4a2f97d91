"""A training by Hugging Face's Trainer that hadard may move, and that may run in copies (HadarE).

Start your own from here: what hadard needs is marked with "hadar:", the rest is an ordinary
Trainer, with a small network and made-up data. Alone it trains as any other. Needs `pip install
hadar_slurm[torch] transformers accelerate`; docs/frameworks.md says what of a Trainer works.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments

from hadar_slurm.runtime.with_transformers import train_in_copies  # hadar:


class Samples(Dataset):
    """Sixteen numbers each, and whether the first four have a positive sum."""

    def __init__(self) -> None:
        self.inputs = torch.randn(4096, 16)
        self.labels = (self.inputs[:, :4].sum(dim=1) > 0).long()

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"inputs": self.inputs[index], "labels": self.labels[index]}


class Classifier(nn.Module):
    """As models of transformers do, it returns its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 2))

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return loss and outputs."""
        outputs = self.layers(inputs)
        return {"loss": nn.functional.cross_entropy(outputs, labels), "logits": outputs}


class Steps(TrainerCallback):
    """Prints the steps of the whole job; the Trainer's own count restarts with every run."""

    def __init__(self, copy: Any, options: argparse.Namespace) -> None:
        self.copy, self.options = copy, options

    def on_step_begin(self, *words: Any, **known: Any) -> None:
        """Print the step that begins."""
        if self.copy.step is not None and self.copy.step % self.options.print_every == 0:
            print(f"step {self.copy.step}", flush=True)
        time.sleep(self.options.step_seconds)


def main() -> None:
    """Train to --total-steps."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--total-steps", type=int, default=2000)
    parser.add_argument("--print-every", type=int, default=100, help="steps")
    parser.add_argument("--step-seconds", type=float, default=0.0, help="make steps last longer")
    options = parser.parse_args()
    torch.manual_seed(1)
    samples, model = Samples(), Classifier()
    args = TrainingArguments(
        output_dir="hf-trainer",
        max_steps=options.total_steps,
        per_device_train_batch_size=32,
        learning_rate=1e-3,
        report_to=[],
        disable_tqdm=True,
    )
    trainer = Trainer(model=model, args=args, train_dataset=samples)
    copy = train_in_copies(trainer)  # hadar: saves when asked to, resumes, and reports
    trainer.add_callback(Steps(copy, options))
    trainer.train()

    model.cpu()
    accuracy = (model.layers(samples.inputs).argmax(dim=1) == samples.labels).float().mean()
    print(f"done: {options.total_steps} steps, accuracy {float(accuracy):.3f}")


if __name__ == "__main__":
    main()
