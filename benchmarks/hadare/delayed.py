"""What delayed averaging costs in quality, and what it saves of the time that copies wait.

    python benchmarks/hadare/delayed.py            # HadarE's runs of quality.py, and with a delay
    python benchmarks/hadare/delayed.py --dear     # where an averaging takes COST_S
    python benchmarks/hadare/delayed.py --waiting  # a copy whose consolidations take a while

Copies train a part of a slot ahead, each slot, before they take over what was made one; steps and
samples are those of the runs without. The tables are for docs/hadare.md.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from statistics import mean, stdev

import torch
from quality import BASE_SLOT_S, COPIES, SPEEDS, TOTAL_STEPS
from replay import replay
from tasks import SCHEDULES, TASKS, task

from hadar_slurm.handoff import shares
from hadar_slurm.runtime.copy import Copy
from hadar_slurm.runtime.membership.surroundings import Surroundings
from hadar_slurm.runtime.settings import Settings

PARTS = (0.1, 0.25, 1.0)
# How long an averaging takes with --dear, as a multiple of a step of the fastest copies; and the
# intervals to compare: with 5 % of the time for it and no delay, and with copies that train on.
COST_S = 6.0
INTERVALS = (120.0, 60.0, 30.0, 15.0, 12.0, 9.0)


def loss(
    name: str, optimiser: str, seed: int, part: float, slot_s: float, *, by_copies: bool = False
) -> float:
    """Return the loss in nats on held-out data of a run that trains `part` of a slot ahead."""
    speeds = dict(enumerate(SPEEDS[:COPIES]))
    quotas = shares(round(slot_s * sum(speeds.values())), speeds)
    learnt = task(name)
    model, state = learnt.make(optimiser, seed)
    for _ in replay(
        model,
        state,
        learnt.step,
        total_steps=TOTAL_STEPS,
        quotas=[quotas],
        speeds=speeds,
        seed=seed,
        lr=SCHEDULES["cosine"](TOTAL_STEPS),
        settings=Settings(delay=part, rate_by_copies=by_copies),
        ahead=[quotas] * TOTAL_STEPS,
    ):
        pass
    return learnt.held_out_quality(model)[0]


def waiting(delay: float, steps: int = 600, step_s: float = 0.05) -> tuple[float, float]:
    """Return which part of its time a copy trains no step, and how long a consolidation takes.

    A copy alone with 64 MB of parameters, in slots of which a consolidation takes a fifth. Its
    steps leave the CPU alone, as those of a GPU do.
    """
    torch.manual_seed(0)
    model = torch.nn.Linear(4000, 4000)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    with tempfile.TemporaryDirectory(prefix="hadar-waiting-") as name:
        copy = Copy(
            model,
            optimiser,
            total_steps=steps,
            settings=Settings(delay=delay, slot_s=1.0, cost_part=0.2),
            surroundings=Surroundings(copy=0, directory=Path(name)),
        )
        trained_s, begun_s = 0.0, time.monotonic()
        with copy:
            for _ in copy.steps():
                step_begun_s = time.monotonic()
                time.sleep(step_s)
                trained_s += time.monotonic() - step_begun_s
        return 1.0 - trained_s / (time.monotonic() - begun_s), copy.member.costs.total_s


def show_waiting(times: int) -> None:
    """Measure in turns, and print what each came to."""
    for _ in range(times):
        for delay in (0.0, 0.25, 0.5):
            part, cost_s = waiting(delay)
            print(f"delay {delay}: {part:.1%} waiting, {cost_s:.2f} s each", flush=True)


def main() -> None:
    """Train all runs, and print the table."""
    words = argparse.ArgumentParser()
    words.add_argument("--seeds", type=int, default=3)
    words.add_argument("--optimiser", default="adam")
    words.add_argument("--waiting", action="store_true")
    words.add_argument("--dear", action="store_true")
    options = words.parse_args()
    if options.waiting:
        show_waiting(options.seeds)
        return
    if options.dear:
        first, *others = INTERVALS
        cases = [(0.0, first), *((COST_S / each, each) for each in others)]
    else:
        cases = [(part, 2 * BASE_SLOT_S) for part in (0.0, *PARTS)]
    rows = []
    for name in TASKS:
        found = []
        for part, slot_s in cases:
            found.append(
                [
                    loss(name, options.optimiser, seed, part, slot_s, by_copies=options.dear)
                    for seed in range(options.seeds)
                ]
            )
            print(name, slot_s, part, *(f"{each:.4f}" for each in found[-1]), flush=True)
        cells = [f"{mean(found[0]):.3f} ± {stdev(found[0]):.3f}"]
        for row in found[1:]:
            less = [one - other for one, other in zip(row, found[0], strict=True)]
            cells.append(f"{mean(less):+.3f} ± {stdev(less):.3f}")
        rows.append(f"| {name}, {options.optimiser} | " + " | ".join(cells) + " |")
    print(*rows, sep="\n")


if __name__ == "__main__":
    main()
