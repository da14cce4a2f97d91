"""One copy of a paced training: what a node of the study runs.

    python paced_task.py --task images --steps 2400 --period 0.25 --speeds n1=1,n3=0.5 [...]

A step is real, and then the node sleeps until `period` / speed seconds have passed since the last:
so nodes of one machine differ in speed as GPU types do. Every stretch of steps that was trained
without a pause goes into `paced-COPY-RESTART.jsonl` in the job's directory: the first step, how
many, the seconds they took and those of them spent computing.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from tasks import OPTIMISERS, TASKS, cosine, task

from hadar_slurm.runtime.copy import Copy
from hadar_slurm.runtime.ending import Settings


@dataclass
class Stretch:
    """Steps trained one right after the other; times in seconds since the epoch."""

    first: int
    begun_s: float
    steps: int = 0
    ended_s: float = 0.0
    computed_s: float = 0.0


def settings_of(slot_s: float) -> Settings:
    """Return how copies work together at the scale of the study; replaying it needs the same."""
    return Settings(slot_s=slot_s, gone_after_s=10.0, sign_every_s=1.0, report_every_s=1.0)


def main() -> None:
    """Train."""
    words = argparse.ArgumentParser()
    words.add_argument("--task", choices=tuple(TASKS), required=True)
    words.add_argument("--optimiser", choices=OPTIMISERS, required=True)
    words.add_argument("--steps", type=int, required=True)
    words.add_argument("--seed", type=int, required=True)
    words.add_argument("--period", type=float, required=True, help="seconds a step at speed 1")
    words.add_argument("--speeds", required=True, help="speed by node, n1=1,n2=0.5")
    words.add_argument("--slot", type=float, required=True, help="seconds, without hadard")
    options = words.parse_args()
    torch.set_num_threads(1)
    speeds = dict(pair.split("=") for pair in options.speeds.split(","))
    step_s = options.period / float(speeds[os.environ["SLURMD_NODENAME"]])
    learnt = task(options.task)
    model, optimiser = learnt.make(options.optimiser, options.seed)
    with Copy(
        model,
        optimiser,
        total_steps=options.steps,
        lr=cosine(options.steps),
        seed=options.seed,
        settings=settings_of(options.slot),
    ) as copy:
        stretches: list[Stretch] = []
        next_s = 0.0
        for step in copy.steps():
            now_s = time.time()
            if not stretches or now_s > next_s + step_s:
                stretches.append(Stretch(step, now_s))
                next_s = now_s
            learnt.step(copy, step)
            here = stretches[-1]
            computed_s = time.time()
            next_s += step_s
            time.sleep(max(0.0, next_s - computed_s))
            here.steps += 1
            here.computed_s += computed_s - now_s
            here.ended_s = time.time()
            where = copy.member.where
            write(where.directory, where.copy, where.restart, stretches)


def write(directory: Path, number: int, restart: int, stretches: list[Stretch]) -> None:
    """Keep a record that outlives the process."""
    lines: list[dict[str, Any]] = [asdict(stretch) for stretch in stretches]
    path = directory / f"paced-{number}-{restart}.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
