"""A small training with the runtime, run as a separate program, so that it can be killed.

    python train_copy.py DIRECTORY COPY TOTAL_STEPS [--step-s S] [--seed N] [--assignment FILE] ...

Each completed step is a line of DIRECTORY/steps-COPY: its number and its learning rate.
DIRECTORY/final-COPY.safetensors has the final parameters. The processes that torchrun starts are
one copy; those of rank 1 and above write to steps-COPY.RANK.
"""

from __future__ import annotations

import argparse
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from hadar_slurm import handoff
from hadar_slurm.runtime.averaging.consolidation import OptimiserRule, Outer
from hadar_slurm.runtime.copy import Copy
from hadar_slurm.runtime.membership.surroundings import Surroundings
from hadar_slurm.runtime.settings import Settings


def make(
    seed: int,
    dropout: float = 0.1,
    *,
    batch_norm: bool = True,
    width: int = 16,
    sample_s: float = 0.0,
    device: str = "cpu",
) -> tuple[nn.Module, torch.optim.Optimizer, Callable[[Copy, int], None]]:
    """Return a model, its optimiser, and a function that trains one step of a copy."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    norm = nn.BatchNorm1d(width) if batch_norm else nn.Identity()
    first, last = nn.Linear(8, width), nn.Linear(width, 2)
    model: nn.Module = nn.Sequential(first, norm, nn.Dropout(dropout), last).to(device)
    if distributed.is_initialized():
        model = DistributedDataParallel(model)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    inputs = torch.randn(96, 8, generator=torch.Generator().manual_seed(5))
    labels = (inputs.sum(dim=1) > 0).long().to(device)
    inputs = inputs.to(device)

    def train(copy: Copy, step: int) -> None:
        batch = copy.samples(step, batch_size=16, size=len(inputs))
        time.sleep(sample_s * len(batch))
        loss = nn.functional.cross_entropy(model(inputs[batch]), labels[batch])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()

    return model, optimiser, train


def falling(total_steps: int) -> Callable[[int], float]:
    """Return the factor of the learning rate by step."""
    return lambda step: 1.0 - step / total_steps


def main() -> None:
    """Train."""
    words = argparse.ArgumentParser()
    words.add_argument("directory", type=Path)
    words.add_argument("copy", type=int)
    words.add_argument("total_steps", type=int)
    words.add_argument("--step-s", type=float, default=0.0)
    words.add_argument("--slot-s", type=float, default=0.3)
    words.add_argument("--cost-part", type=float, default=1.0)
    words.add_argument("--gather-s", type=float, default=0.5)
    words.add_argument("--gone-s", type=float, default=1.5)
    words.add_argument("--restart", type=int, default=0)
    words.add_argument("--seed", type=int, default=0)
    words.add_argument("--width", type=int, default=16)
    words.add_argument("--dropout", type=float, default=0.1)
    words.add_argument("--no-batch-norm", action="store_true")
    words.add_argument("--assignment", type=Path)
    words.add_argument("--spool", type=Path, default=Path("/nonexistent"))
    words.add_argument("--rule", type=OptimiserRule, default=OptimiserRule.AVERAGE)
    words.add_argument("--outer", action="store_true")
    words.add_argument("--delay", type=float, default=0.0)
    words.add_argument("--spoil-at", type=int, help="the first step from here on gives NaN, once")
    words.add_argument("--stop-after", type=int, help="leave the loop after N own steps")
    words.add_argument("--ask-to-stop-after", type=int, help="stop the job after N own steps")
    words.add_argument("--stopping-rank", type=int, default=0, help="the process that does so")
    words.add_argument("--mode", default="averaged")
    words.add_argument("--sample-s", type=float, default=0.0, help="seconds for each sample")
    words.add_argument("--device", default="cpu")
    words.add_argument("--go", type=Path, help="wait for this file before joining")
    options = words.parse_args()
    logging.basicConfig(level="INFO")
    rank, ranks = (int(os.environ.get(name, "0")) for name in ("RANK", "WORLD_SIZE"))
    if ranks:
        distributed.init_process_group("gloo")
    model, optimiser, train = make(
        options.seed,
        options.dropout,
        batch_norm=not options.no_batch_norm,
        width=options.width,
        sample_s=options.sample_s,
        device=options.device,
    )
    where = Surroundings(
        copy=options.copy,
        directory=options.directory,
        job=f"7{options.copy}",
        restart=options.restart,
        spool=handoff.user_reports(options.spool, os.geteuid()),
        assignment=options.assignment,
        rank=rank,
        ranks=max(ranks, 1),
    )
    settings = Settings(
        slot_s=options.slot_s,
        cost_part=options.cost_part,
        optimiser=options.rule,
        outer=Outer() if options.outer else None,
        delay=options.delay,
        gather_s=options.gather_s,
        gone_after_s=options.gone_s,
        sign_every_s=0.1,
        poll_s=0.02,
        report_every_s=0.05,
        move_s=30.0,
    )
    options.directory.mkdir(exist_ok=True)
    name = f"{options.copy}.{rank}" if rank else f"{options.copy}"
    (options.directory / f"ready-{name}").touch()
    while options.go and not options.go.exists():
        time.sleep(0.01)
    with (
        Copy(
            model,
            optimiser,
            total_steps=options.total_steps,
            lr=falling(options.total_steps),
            seed=options.seed,
            mode=options.mode,
            settings=settings,
            surroundings=where,
        ) as copy,
        (options.directory / f"steps-{name}").open("a", buffering=1) as told,
    ):
        for own, step in enumerate(copy.steps()):
            if own == options.stop_after:
                break
            train(copy, step)
            if own == options.ask_to_stop_after and rank == options.stopping_rank:
                copy.stop("the loss rises")
            if options.spoil_at is not None and step >= options.spoil_at:
                next(model.parameters()).data[0, 0] = float("nan")
                options.spoil_at = None
            time.sleep(options.step_s)
            told.write(f"{step} {optimiser.param_groups[0]['lr']}\n")
    logging.info("stopped: %r", copy.stopped)
    save_file(copy.model.state_dict(), options.directory / f"final-{name}.safetensors")
    if ranks:
        distributed.destroy_process_group()


if __name__ == "__main__":
    if "RANK" not in os.environ:  # several processes need the compiler's module
        import no_compiler  # noqa: F401
    main()
