"""A copy of a small training, for faults.py: it notes outside of the job's directory what it does.

    python fault_copy.py --notes DIR --steps N --step-seconds n1=0.02,n2=0.04    # a task of Slurm's

In the directory of notes, which no fault touches, `steps-C` has a line for each step that copy C
trained, `parts-C` one for each contribution that it was about to leave, `pid-C` its process and
that which started it, and `ending-C` is there while it makes the copies one. A file `die` there,
with seconds in it, ends the first copy that does so that much later.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.optim import AdamW, Optimizer

from hadar_slurm.runtime.averaging.slots import Contribution, Slots
from hadar_slurm.runtime.copy import Copy
from hadar_slurm.runtime.ending import Ending, Settings
from hadar_slurm.runtime.membership.surroundings import Surroundings

SETTINGS = Settings(
    slot_s=1.0, gone_after_s=2.0, sign_every_s=0.1, poll_s=0.02, report_every_s=0.05
)
# Under Slurm a copy may be on another node after seconds of Python's own start.
SLURM_SETTINGS = Settings(
    slot_s=3.0, gone_after_s=3.0, sign_every_s=0.2, poll_s=0.05, report_every_s=0.2, move_s=10.0
)


@dataclass(frozen=True, slots=True)
class Job:
    """A training of `total_steps`, and the seconds that a step of each copy takes at the least."""

    directory: Path
    notes: Path
    total_steps: int
    step_s: tuple[float, ...]
    settings: Settings = SETTINGS


def make() -> tuple[nn.Module, Optimizer]:
    """Return the model, with batch statistics and dropout, and its optimiser."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.Dropout(0.1), nn.Linear(32, 2))
    return model, AdamW(model.parameters(), lr=1e-2)


def train(job: Job, number: int) -> None:
    """Train as copy `number` until the job is done."""
    _logged(job, Surroundings(copy=number, directory=job.directory), job.step_s[number])


def _logged(job: Job, where: Surroundings, step_s: float) -> None:
    torch.set_num_threads(1)
    log = job.notes / f"log-{where.copy}"
    logging.basicConfig(level="INFO", filename=log, format="%(created).3f %(message)s")
    try:
        _train(job, where, step_s)
    except Exception:
        logging.exception("this copy failed")
        raise


def _train(job: Job, where: Surroundings, step_s: float) -> None:
    number = where.copy
    _note(job.notes, number)
    model, optimiser = make()
    inputs = torch.randn(96, 8, generator=torch.Generator().manual_seed(5))
    labels = (inputs.sum(dim=1) > 0).long()
    with (
        Copy(
            model, optimiser, total_steps=job.total_steps, settings=job.settings, surroundings=where
        ) as copy,
        (job.notes / f"steps-{number}").open("a", buffering=1) as told,
    ):
        for step in copy.steps():
            rows = copy.samples(step, batch_size=16, size=len(inputs))
            loss = nn.functional.cross_entropy(model(inputs[rows]), labels[rows])
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            time.sleep(step_s)
            told.write(f"{step}\n")


def _note(notes: Path, number: int) -> None:
    """Have the runtime's own steps noted in this process."""
    contribute, end = Slots.contribute, Ending.end
    marker = notes / f"ending-{number}"
    (notes / f"pid-{number}").write_text(f"{os.getpid()} {os.getppid()}")

    def noted_contribute(slots: Slots, part: Contribution, *rest: Any) -> None:
        line = json.dumps([part.slot, part.base, part.done.pairs])
        with (notes / f"parts-{number}").open("a") as file:
            file.write(line + "\n")
        contribute(slots, part, *rest)

    def noted_end(ending: Ending, *rest: Any) -> None:
        try:
            # One copy alone gets to rename it.
            death = (notes / "die").rename(notes / f"died-{number}")
            after_s = float(death.read_text())
            threading.Timer(after_s, os.kill, (os.getpid(), signal.SIGKILL)).start()
        except FileNotFoundError:
            pass
        marker.touch()
        end(ending, *rest)
        marker.unlink()

    Slots.contribute = noted_contribute  # type: ignore[method-assign, assignment]
    Ending.end = noted_end  # type: ignore[method-assign, assignment]


def _do_without_compiler() -> None:
    """Spare each start the seconds that PyTorch's compiler takes to load; nothing is compiled."""
    absent = ModuleType("torch._dynamo")
    absent.disable = lambda function, *rest, **more: function  # type: ignore[attr-defined]
    absent.graph_break = lambda: None  # type: ignore[attr-defined]
    sys.modules[absent.__name__] = torch._dynamo = absent


def main() -> None:
    """Train as the task of Slurm's that this is."""
    words = argparse.ArgumentParser()
    words.add_argument("--notes", type=Path, required=True)
    words.add_argument("--steps", type=int, required=True)
    words.add_argument("--step-seconds", required=True, help="by node, n1=0.02,n2=0.04")
    options = words.parse_args()
    _do_without_compiler()
    step_s = dict(pair.split("=") for pair in options.step_seconds.split(","))
    where = Surroundings.of()
    job = Job(where.directory, options.notes, options.steps, (), SLURM_SETTINGS)
    _logged(job, where, float(step_s[os.environ["SLURMD_NODENAME"]]))


if __name__ == "__main__":
    main()
