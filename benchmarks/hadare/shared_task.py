"""One copy of a training whose node is paced by samples: what a node of time_to_quality.py runs.

    python shared_task.py --task images --optimiser sgd --steps 1024 --seed 0 --mode auto \
        --period 0.5 --speeds n1=1,n3=0.5 --notes DIR

A step is real. Before its gradients are computed the node sleeps, so that a batch of the task takes
`period` / speed seconds, and a part of a batch that part of them. Files in DIR, which the job does
not use: `begun-COPY` is written before the first step, `ended-COPY` after the last, with the
held-out loss and accuracy.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import torch
from tasks import OPTIMISERS, TASKS, cosine, task

from hadar_slurm.runtime.copy import Copy
from hadar_slurm.runtime.membership.surroundings import Surroundings

_RECENT = 0.2  # the weight of the last step in the expected time of backward


class Pace:
    """Makes the samples of a step take as long as on a node of a given speed."""

    def __init__(self, sample_s: float) -> None:
        self.sample_s, self.backward_s, self.late_s = sample_s, 0.0, 0.0
        self._begun_s = self._backward_begun_s = 0.0

    def begin(self) -> None:
        """A step begins."""
        self._begun_s = time.monotonic()

    def before_backward(self, samples: int) -> None:
        """Wait until only the usual time of backward is left of the time of the samples."""
        until_s = self._begun_s + samples * self.sample_s - self.backward_s
        now_s = time.monotonic()
        self.late_s += max(0.0, now_s - until_s)
        time.sleep(max(0.0, until_s - now_s))
        self._backward_begun_s = time.monotonic()

    def computed(self) -> None:
        """The gradients of this copy's samples are computed."""
        took_s = time.monotonic() - self._backward_begun_s
        self.backward_s += _RECENT * (took_s - self.backward_s)


def main() -> None:
    """Train."""
    words = argparse.ArgumentParser()
    words.add_argument("--task", choices=tuple(TASKS), required=True)
    words.add_argument("--optimiser", choices=OPTIMISERS, required=True)
    words.add_argument("--steps", type=int, required=True)
    words.add_argument("--seed", type=int, required=True)
    words.add_argument("--mode", required=True)
    words.add_argument("--period", type=float, required=True, help="seconds of a batch at speed 1")
    words.add_argument("--speeds", required=True, help="speed by node, n1=1,n2=0.5")
    words.add_argument("--notes", type=Path, required=True)
    options = words.parse_args()
    torch.set_num_threads(1)
    speeds = dict(pair.split("=") for pair in options.speeds.split(","))
    learnt = task(options.task)
    sample_s = options.period / learnt.batch_size / float(speeds[os.environ["SLURMD_NODENAME"]])
    model, optimiser = learnt.make(options.optimiser, options.seed)
    pace, own_steps, number = Pace(sample_s), 0, Surroundings.of().copy
    # The gradients of the first parameters are the last to be computed.
    next(model.parameters()).register_hook(lambda _: pace.computed())
    with Copy(
        model,
        optimiser,
        total_steps=options.steps,
        lr=cosine(options.steps),
        seed=options.seed,
        mode=options.mode,
    ) as copy:
        for step in copy.steps():
            pace.begin()
            if not own_steps:
                write(options.notes / f"begun-{number}", {})
            learnt.step(copy, step, pace.before_backward)
            own_steps += 1
    loss_held_out, accuracy = learnt.held_out_quality(model)
    facts = {"loss": loss_held_out, "accuracy": accuracy, "own_steps": own_steps}
    write(options.notes / f"ended-{number}", {**facts, "late_s": pace.late_s})


def write(path: Path, facts: dict[str, float]) -> None:
    """Write the time, in seconds since the epoch, and facts; once, whatever is started again."""
    if not path.exists():
        draft = path.with_name(f".{path.name}")
        draft.write_text(json.dumps({"at_s": time.time(), **facts}), encoding="utf-8")
        draft.replace(path)


if __name__ == "__main__":
    main()
