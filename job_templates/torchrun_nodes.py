"""A PyTorch training of several processes, on one node or many, that hadard may move.

Start your own from here; torchrun_nodes.sbatch starts its processes. What hadard needs is marked
with "hadar:", the rest is ordinary distributed data parallel training. From one run to the next the
job may have other nodes and more or fewer GPUs on each: a batch is that of all processes together,
and the checkpoint is the same for any of them. Needs Python 3.9 and torch; of hadar_slurm only
`runtime.asked` is used.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from hadar_slurm.runtime.asked import Asked  # hadar: 1

BATCH = 32  # samples of a step, of all processes together


def main() -> int:
    """Train to --total-steps and return the exit status."""
    options = parse_options()
    has_gpus = torch.cuda.is_available()
    distributed.init_process_group("nccl" if has_gpus else "gloo")
    rank, count = distributed.get_rank(), distributed.get_world_size()
    if BATCH % count:
        sys.exit(f"a batch of {BATCH} samples cannot be shared evenly by {count} processes")
    device = (
        torch.device("cuda", int(os.environ["LOCAL_RANK"])) if has_gpus else torch.device("cpu")
    )
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4)).to(device)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    checkpoint = options.checkpoint_dir / "checkpoint.pt"
    step = load(checkpoint, model, optimiser)
    parallel = DistributedDataParallel(model)
    nodes = count // int(os.environ["LOCAL_WORLD_SIZE"])
    say(f"from step {step}: {count} processes on {nodes} nodes")
    saved_s = time.monotonic()
    asked = Asked(wait_s=options.move_timeout_s)  # hadar: 2, once the processes have met

    while step < options.total_steps:
        inputs, labels = make_batch(step, device)
        part = slice(rank, None, count)  # every process gets as many, so their mean is the batch's
        loss = nn.functional.cross_entropy(parallel(inputs[part]), labels[part])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        step += 1
        time.sleep(options.step_seconds)

        if asked.to_save(step):  # hadar: 3; with very short steps Asked(every=10)
            save(checkpoint, step, model, optimiser)  # hadar: 4
            say(f"saved at step {step}")
            asked.has_saved()  # hadar: 5; ends the process if the job is requeued
            saved_s = time.monotonic()
        elif time.monotonic() - saved_s >= options.checkpoint_every_s:
            save(checkpoint, step, model, optimiser)
            saved_s = time.monotonic()

    save(checkpoint, step, model, optimiser)
    asked.done()  # hadar: 6
    say(f"done: {step} steps, loss {float(loss.detach()):.3f}")
    distributed.barrier()  # a process that leaves while another still trains or saves may abort
    distributed.destroy_process_group()
    return 0


def make_batch(step: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the batch of a step, which depends on the step alone, so that a move repeats none."""
    inputs = torch.randn(BATCH, 16, generator=torch.Generator().manual_seed(step))
    labels = inputs.reshape(BATCH, 4, 4).sum(dim=2).argmax(dim=1)
    return inputs.to(device), labels.to(device)


def save(path: Path, step: int, model: nn.Module, optimiser: torch.optim.Optimizer) -> None:
    """Replace the checkpoint in one step, by the first process: all have the same parameters."""
    if distributed.get_rank() > 0:
        return
    draft = path.with_suffix(".draft")
    state = {"step": step, "model": model.state_dict(), "optimiser": optimiser.state_dict()}
    with draft.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def load(path: Path, model: nn.Module, optimiser: torch.optim.Optimizer) -> int:
    """Restore a checkpoint where there is one, in every process, and return its step."""
    if not path.exists():
        return 0
    # weights_only: a checkpoint is data, and must not be able to run code.
    state = torch.load(path, map_location="cpu", weights_only=True)
    model.load_state_dict(state["model"])
    optimiser.load_state_dict(state["optimiser"])
    return int(state["step"])


def say(text: str) -> None:
    """Print something once for all processes."""
    if distributed.get_rank() == 0:
        print(text, flush=True)


def parse_options() -> argparse.Namespace:
    """Return the command line's options."""
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--total-steps", type=int, required=True)
    words.add_argument("--checkpoint-dir", type=Path, required=True, help="seen by all nodes")
    words.add_argument("--checkpoint-every-s", type=float, default=600.0)
    words.add_argument("--step-seconds", type=float, default=0.0, help="make steps last longer")
    words.add_argument("--move-timeout-s", type=float, default=60.0)
    options = words.parse_args()
    options.checkpoint_dir.mkdir(parents=True, exist_ok=True)
    return options


if __name__ == "__main__":
    sys.exit(main())
