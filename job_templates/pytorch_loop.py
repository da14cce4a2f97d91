"""A PyTorch training loop that hadard may move: save when asked, resume where it stopped.

Start your own from here. What hadard needs of a program is marked with "hadar:"; everything else
is an ordinary loop, a small network on made-up data, on a GPU where there is one. Works with
Python 3.9 and later; of hadar_slurm only `handoff` is used.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn

from hadar_slurm import handoff

asked: set[int] = set()  # hadar: the handlers only take note; the loop acts between steps


def main() -> int:
    """Train to --total-steps and return the exit status."""
    for number in (signal.SIGUSR1, signal.SIGTERM):
        signal.signal(number, lambda number, _frame: asked.add(number))
    options = parse_options()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 4))
    model.to(device)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    checkpoint = options.checkpoint_dir / "checkpoint.pt"
    first_step = step = load(checkpoint, model, optimiser)
    print(f"from step {step}", flush=True)
    started_s = reported_s = saved_s = time.monotonic()
    handoff.tell("running", step)

    while step < options.total_steps:
        inputs, labels = make_batch(step, device)
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        step += 1
        time.sleep(options.step_seconds)

        now_s = time.monotonic()
        speed = (step - first_step) / (now_s - started_s)
        if now_s - reported_s >= 1:  # hadar: this is how it learns how fast the job is
            handoff.tell("running", step, speed)
            reported_s = now_s
        if now_s - saved_s >= options.checkpoint_every_s:
            save(checkpoint, step, model, optimiser)
            saved_s = now_s
        if signal.SIGUSR1 in asked:  # hadar: save, say so, wait to be requeued
            asked.discard(signal.SIGUSR1)
            save(checkpoint, step, model, optimiser)
            handoff.tell("saved", step, speed)
            print(f"saved at step {step}", flush=True)
            if not is_moved(options.move_timeout_s):  # the signal was not hadard's
                handoff.tell("running", step)
            first_step, started_s = step, time.monotonic()
        if signal.SIGTERM in asked:  # a requeue, with or without notice, or scancel
            save(checkpoint, step, model, optimiser)
            handoff.tell("saved", step, speed)
            return 128 + signal.SIGTERM

    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # hadar: a late request must not kill it now
    save(checkpoint, step, model, optimiser)
    handoff.tell("done", step)
    print(f"done: {step} steps, accuracy {accuracy(model, device):.3f}", flush=True)
    return 0


def make_batch(step: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the batch of a step, which depends on the step alone, so that a move repeats none."""
    generator = torch.Generator().manual_seed(step)
    inputs = torch.randn(32, 16, generator=generator)
    labels = inputs.reshape(32, 4, 4).sum(dim=2).argmax(dim=1)
    return inputs.to(device), labels.to(device)


def accuracy(model: nn.Module, device: torch.device) -> float:
    """Return the share of unseen samples that the model gets right."""
    inputs, labels = make_batch(2**40, device)
    model.eval()
    with torch.no_grad():
        return float((model(inputs).argmax(dim=1) == labels).float().mean())


def save(path: Path, step: int, model: nn.Module, optimiser: torch.optim.Optimizer) -> None:
    """Replace the checkpoint in one step: a run killed meanwhile leaves the old one whole."""
    draft = path.with_suffix(".draft")
    state = {
        "step": step,
        "model": model.state_dict(),
        "optimiser": optimiser.state_dict(),
        "rng": torch.get_rng_state(),
        "cuda_rng": torch.cuda.get_rng_state_all(),
    }
    with draft.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def load(path: Path, model: nn.Module, optimiser: torch.optim.Optimizer) -> int:
    """Restore a checkpoint where there is one, and return its step."""
    if not path.exists():
        return 0
    # weights_only: a checkpoint is data, and must not be able to run code.
    state = torch.load(path, map_location="cpu", weights_only=True)
    model.load_state_dict(state["model"])
    optimiser.load_state_dict(state["optimiser"])
    torch.set_rng_state(state["rng"])
    # After a move there may be fewer GPUs, or more, than there were.
    for index, rng in enumerate(state["cuda_rng"][: torch.cuda.device_count()]):
        torch.cuda.set_rng_state(rng, index)
    return int(state["step"])


def is_moved(timeout_s: float) -> bool:
    """Wait for the TERM that comes with a requeue; return whether it came in time."""
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s and signal.SIGTERM not in asked:
        time.sleep(0.1)
    return signal.SIGTERM in asked


def parse_options() -> argparse.Namespace:
    """Return the command line's options."""
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--total-steps", type=int, required=True)
    words.add_argument("--checkpoint-dir", type=Path, required=True)
    words.add_argument("--checkpoint-every-s", type=float, default=600.0)
    words.add_argument("--step-seconds", type=float, default=0.0, help="make steps last longer")
    words.add_argument("--move-timeout-s", type=float, default=60.0)
    options = words.parse_args()
    options.checkpoint_dir.mkdir(parents=True, exist_ok=True)
    return options


if __name__ == "__main__":
    sys.exit(main())
