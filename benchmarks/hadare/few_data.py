"""Whether copies generalise better where data are few and epochs many, beside the usual remedies.

    python benchmarks/hadare/few_data.py                   # all runs that are not in the file yet
    python benchmarks/hadare/few_data.py --optimisers sgd --only one

One node and five copies train 64 epochs of 2,048 images, which the network learns by heart, each
with and without weight decay. Each is also judged as stopped early: with the parameters of the
lowest loss on validation data. The weight decay is chosen for one node, by its validation loss at
the last step, with seeds that do not judge. Time is reckoned, as in `quality.py`. A line of the
file is the training of one seed; those of one run share their CPU time. Then the page is written.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import quality
import torch
from few_page import CHOICE, DECAY, INTERVALS_S, ONE, SAME_TIME, copies_named
from few_task import FewImages, Member, held_out, keep_members, validation
from few_task import quality as quality_of
from figures import Record
from quality import SINGLE, SPEEDS, records, same_time
from replay import replay
from tasks import OPTIMISERS, SCHEDULES

from hadar_slurm.handoff import shares

HERE = Path(__file__).resolve().parent
STEPS = 4_096  # 64 epochs of 2,048 images in batches of 32
JUDGING_SEEDS, CHOOSING_SEEDS = range(5), (5, 6)
# The values of weight decay to choose from.
DECAYS = {"sgd": (1e-3, 3e-3, 1e-2, 3e-2), "adam": (0.1, 0.3, 1.0, 3.0)}
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    ONE: SINGLE,
    **{copies_named(each): {"slot_s": each} for each in INTERVALS_S},
    SAME_TIME: SINGLE | {"total_steps": same_time(STEPS)},
}
# In the order in which they add most.
GROUPS = {
    "one": [ONE],
    "copies": [copies_named(each) for each in INTERVALS_S],
    "same-time": [SAME_TIME],
}


@dataclass(frozen=True, slots=True)
class Run:
    """One training of all members at once, by copies with intervals of `slot_s` seconds."""

    optimiser: str
    members: tuple[Member, ...]
    copies: int = quality.COPIES
    slot_s: float = 20.0
    total_steps: int = STEPS

    def line(self, member: Member) -> dict[str, Any]:
        """Return what a line of the file says of the training of a member."""
        return {
            "task": "few images",
            **asdict(self),
            "members": len(self.members),
            **asdict(member),
        }


def choosing_run(optimiser: str) -> Run:
    """Return the run that chooses an optimiser's weight decay."""
    members = tuple(Member(seed, decay) for decay in DECAYS[optimiser] for seed in CHOOSING_SEEDS)
    return Run(optimiser, members, **SINGLE)


def chosen_decay(lines: Iterable[Record], optimiser: str) -> float | None:
    """Return the weight decay with the lowest mean validation loss, None before all have run."""
    losses: dict[float, list[float]] = {decay: [] for decay in DECAYS[optimiser]}
    for line in lines:
        run = line["run"]
        if line["name"] == CHOICE and run["optimiser"] == optimiser and run["decay"] in losses:
            losses[run["decay"]].append(line["validation"][-1][1])
    if any(len(each) < len(CHOOSING_SEEDS) for each in losses.values()):
        return None
    return min(losses, key=lambda decay: mean(losses[decay]))


def judged_runs(
    optimiser: str, decay: float, groups: Sequence[str] = tuple(GROUPS)
) -> dict[str, Run]:
    """Return the runs that are compared; in each, seeds train without and with weight decay."""
    members = tuple(Member(seed, each) for each in (0.0, decay) for seed in JUDGING_SEEDS)
    names = [name for group in groups for name in GROUPS[group]]
    return {name: Run(optimiser, members, **VARIANTS[name]) for name in names}


def train(run: Run) -> list[dict[str, Any]]:
    """Return what each member came to: losses in nats and shares of right answers on held-out data.

    `validation` has steps and validation loss at the end of each interval, `stopped` the steps,
    held-out loss and accuracy at the end with the lowest of them.
    """
    begun_s = time.process_time()
    speeds = dict(enumerate(SPEEDS[: run.copies]))
    size, task = len(run.members), FewImages(run.members, run.optimiser)
    intervals = replay(
        task.network,
        task.optimiser,
        task.step,
        total_steps=run.total_steps,
        quotas=[shares(round(run.slot_s * sum(speeds.values())), speeds)],
        speeds=speeds,
        lr=SCHEDULES["cosine"](run.total_steps),
    )
    took_s, steps, at_interval = 0.0, list[int](), list[torch.Tensor]()
    lowest = torch.full((size,), torch.inf)
    kept: dict[str, torch.Tensor] = {}
    for interval in intervals:
        took_s += interval.seconds
        losses, _ = quality_of(task.network, size, validation())
        kept = kept or {name: value.clone() for name, value in task.network.state_dict().items()}
        keep_members(kept, task.network, losses < lowest)
        lowest = torch.minimum(lowest, losses)
        steps.append(interval.steps_done)
        at_interval.append(losses)
    at_end = quality_of(task.network, size, held_out())
    task.network.load_state_dict(kept)
    early = quality_of(task.network, size, held_out())
    cpu_s = (time.process_time() - begun_s) / size
    by_member = torch.stack(at_interval, dim=1)
    return [
        {
            "loss": _rounded(at_end[0][i]),
            "accuracy": _rounded(at_end[1][i]),
            "time_s": took_s,
            "stopped": [steps[int(by_member[i].argmin())], *(_rounded(each[i]) for each in early)],
            "validation": [[n, _rounded(x)] for n, x in zip(steps, by_member[i], strict=True)],
            "cpu_s": round(cpu_s, 3),
        }
        for i in range(size)
    ]


def _rounded(figure: torch.Tensor) -> float:
    return round(float(figure), 5)


def make(name: str, run: Run, path: Path) -> None:
    """Train a run and add a line for each member, unless all of these are in the file."""
    done = [line["run"] for line in records(path) if line["name"].removesuffix(DECAY) == name]
    lines = [run.line(member) for member in run.members]
    if all(line in done for line in lines):
        return
    begun_s = time.monotonic()
    found = train(run)
    with path.open("a", encoding="utf-8") as file:
        for member, line, each in zip(run.members, lines, found, strict=True):
            words = name + DECAY if member.decay and name != CHOICE else name
            file.write(json.dumps({"name": words, "run": line, **each}) + "\n")
    print(f"{run.optimiser}, {name}: {time.monotonic() - begun_s:.0f} s", file=sys.stderr)


def main(words: Sequence[str] | None = None) -> None:
    """Train what is missing, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", metavar="LIST", help=f"some of {','.join(GROUPS)}")
    parser.add_argument("--optimisers", metavar="LIST", default=",".join(OPTIMISERS))
    parser.add_argument("--runs", type=Path, default=HERE / "few_data.jsonl")
    options = parser.parse_args(words)
    groups = options.only.split(",") if options.only else list(GROUPS)
    if unknown := sorted(set(groups) - set(GROUPS)):
        parser.error(f"{', '.join(unknown)}: expected some of {', '.join(GROUPS)}")
    torch.set_num_threads(1)
    for optimiser in options.optimisers.split(","):
        make(CHOICE, choosing_run(optimiser), options.runs)
        decay = chosen_decay(records(options.runs), optimiser)
        assert decay is not None  # all its lines are in the file now
        for name, run in judged_runs(optimiser, decay, groups).items():
            make(name, run, options.runs)
    quality.main(["--write-only"])


if __name__ == "__main__":
    main()
