"""What the runs of `cluster.py` had learnt when: their schedules, trained again off the cluster.

    python benchmarks/hadare/recorded.py RUNS [--json FILE]

Each recorded run is trained again by `replay.py`, slot by slot with the steps that its copies did.
On a CPU of the same kind the model at the end is that of the cluster to the bit, which is checked;
so what is measured between is what the cluster's job had learnt at that second.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from paced_task import settings_of
from replay import replay
from tasks import cosine, task
from watch_slots import digest

from hadar_slurm.runtime.averaging.state import MODEL
from hadar_slurm.runtime.files.ranges import Ranges


def schedule(
    slots: list[dict[str, Any]],
) -> tuple[list[Mapping[int, int]], list[Mapping[int, int]]]:
    """Return the steps that copies were dealt, and those that they did, by slot."""
    dealt = [
        {int(copy): Ranges.of(pairs) for copy, pairs in slot["dealt"].items()}
        for slot in slots[:-1]
    ]
    done = [Ranges.of(slot["done"]) for slot in slots]
    quotas = [{copy: len(steps) for copy, steps in one.items()} for one in dealt]
    kept = [
        {copy: len(steps) - len(steps - after) for copy, steps in one.items()}
        for one, after in zip(dealt, done[1:], strict=True)
    ]
    return quotas, kept


def curve(run: Mapping[str, Any], job: int) -> dict[str, Any] | None:
    """Return what a job of a run had learnt after each slot, and whether the end is the same.

    None for one of which a short slot went by unrecorded.
    """
    slots = run["slots"][job]
    if [slot["slot"] for slot in slots] != list(range(len(slots))):
        print(f"{run['system']}, seed {run['seed'] + job}: a slot was not recorded")
        return None
    quotas, kept = schedule(slots)
    learnt = task(run["task"])
    seed = run["seed"] + job
    model, optimiser = learnt.make("sgd", seed)
    copies = sorted({copy for one in quotas for copy in one})
    points = []
    for slot in replay(
        model,
        optimiser,
        learnt.step,
        total_steps=run["steps"],
        quotas=quotas,
        kept=kept,
        speeds=dict.fromkeys(copies, 1.0),
        seed=seed,
        lr=cosine(run["steps"]),
        settings=settings_of(0.0),
    ):
        loss, accuracy = learnt.held_out_quality(model)
        seconds = slots[slot.number]["ended_s"] - run["begun_s"]
        points.append([round(seconds, 2), slot.steps_done, loss, accuracy])
    found = digest({MODEL + name: tensor for name, tensor in model.state_dict().items()})
    return {
        "system": run["system"],
        "seed": seed,
        "points": points,
        "is_same": found == run["digests"][job],
    }


def main() -> None:
    """Print a line for every job."""
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("runs", type=Path)
    words.add_argument("--json", type=Path)
    options = words.parse_args()
    torch.set_num_threads(1)
    runs = [json.loads(line) for line in options.runs.read_text(encoding="utf-8").splitlines()]
    tried = [curve(run, job) for run in runs for job in range(len(run["slots"]))]
    found = [one for one in tried if one is not None]
    for one in found:
        seconds, steps, loss, accuracy = one["points"][-1]
        told = f"{steps} steps in {seconds:.0f} s, loss {loss:.4f}, accuracy {accuracy:.3f}"
        same = "the same bits" if one["is_same"] else "OTHER BITS"
        print(f"{one['system']}, seed {one['seed']}: {told}; {same}")
    if options.json:
        lines = "".join(json.dumps(one) + "\n" for one in found)
        options.json.write_text(lines, encoding="utf-8")
    if not all(one["is_same"] for one in found):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
