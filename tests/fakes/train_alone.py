"""A small training that reads its surroundings from the environment, run as a separate program.

    python train_alone.py NAME TOTAL_STEPS [--lr R ...] [--seed N] [--step-s S] [--width N] ...

With several learning rates it trains once with each, in one process. `steps-NAME` has a line
`RATE STEP` for each step of each training; `final-NAME-RATE.safetensors` has the final parameters.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

from hadar_slurm.runtime.copy import Copy
from hadar_slurm.runtime.settings import Settings


def main() -> None:
    """Train once with each learning rate."""
    words = argparse.ArgumentParser()
    words.add_argument("name")
    words.add_argument("total_steps", type=int)
    words.add_argument("--lr", type=float, nargs="+", default=[0.1])
    words.add_argument("--seed", type=int, default=0)
    words.add_argument("--width", type=int, default=16)
    words.add_argument("--step-s", type=float, default=0.0)
    words.add_argument("--slot-s", type=float, default=0.2)
    words.add_argument("--gone-s", type=float, default=1.0)
    words.add_argument("--lost-s", type=float, default=0.5)
    words.add_argument("--stop-at", type=int, help="leave the loop before this step")
    words.add_argument("--fail-at", type=int, help="raise an error before this step, and go on")
    options = words.parse_args()
    torch.set_num_threads(1)
    settings = Settings(
        slot_s=options.slot_s,
        cost_part=1.0,
        gather_s=0.2,
        gone_after_s=options.gone_s,
        sign_every_s=0.1,
        poll_s=0.02,
        report_every_s=0.05,
        lost_after_s=options.lost_s,
    )
    for rate in options.lr:
        try:
            train(options, rate, settings)
        except ArithmeticError:
            continue


def train(options: argparse.Namespace, rate: float, settings: Settings) -> None:
    """Train once."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(8, options.width), nn.Tanh(), nn.Linear(options.width, 2))
    optimiser = torch.optim.SGD(model.parameters(), lr=rate)
    inputs = torch.randn(96, 8)
    labels = (inputs.sum(dim=1) > 0).long()
    with (
        Copy(
            model,
            optimiser,
            total_steps=options.total_steps,
            seed=options.seed,
            settings=settings,
        ) as copy,
        Path(f"steps-{options.name}").open("a", buffering=1) as told,
    ):
        for step in copy.steps():
            if step == options.stop_at:
                break
            if step == options.fail_at:
                raise ArithmeticError
            batch = copy.samples(step, batch_size=16, size=len(inputs))
            loss = nn.functional.cross_entropy(model(inputs[batch]), labels[batch])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            time.sleep(options.step_s)
            told.write(f"{rate} {step}\n")
    save_file(model.state_dict(), f"final-{options.name}-{rate}.safetensors")


if __name__ == "__main__":
    import no_compiler  # noqa: F401

    main()
