"""What averaging takes of the time in which copies of a large model train, on GPUs where there are.

    python benchmarks/hadare/large.py --millions 1000 --copies 2 --interval 60 --seconds 240

All copies train at the same time, first without each other, then with averaging in intervals of
`--interval` seconds; each is a process, and they share the GPUs of this machine. What averaging
takes is the difference of their steps/s, from the end of the second interval to that of the last:
the waiting, and what it takes of the training that goes on meanwhile. The optimiser has no state,
as in intervals to which none is contributed. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
import time
from collections.abc import Callable
from datetime import datetime
from multiprocessing.synchronize import Barrier
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from cost import WIDTH, model_of, side_by_side, tell

from hadar_slurm.runtime.copy import Copy
from hadar_slurm.runtime.membership.surroundings import Surroundings
from hadar_slurm.runtime.settings import Settings

_LIMIT_S = 1200.0
_ENDED = re.compile(r"slot (\d+) ended with")


def trainer(number: int, options: argparse.Namespace) -> tuple[Any, Any, Callable[[], None]]:
    """Return a model, its optimiser, and a function that trains one step."""
    torch.manual_seed(0)
    gpus = torch.cuda.device_count()
    device = torch.device("cuda", number % gpus) if gpus else torch.device("cpu")
    model = model_of(options.millions).to(device)
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-6)
    inputs = torch.randn(options.batch, WIDTH, device=device)

    def step() -> None:
        optimiser.zero_grad()
        model(inputs).square().mean().backward()
        optimiser.step()
        if gpus:
            torch.cuda.synchronize(device)

    return model, optimiser, step


def run_copy(number: int, options: argparse.Namespace, where: Path, all_here: Barrier) -> None:
    """Be one copy; write when each of its steps ended."""
    model, optimiser, step = trainer(number, options)
    step()
    all_here.wait(_LIMIT_S)
    alone, begun_s = 0, time.monotonic()
    while time.monotonic() < begun_s + options.alone:
        step()
        alone += 1
    alone_per_s = alone / (time.monotonic() - begun_s)
    all_here.wait(_LIMIT_S)
    copy = Copy(
        model,
        optimiser,
        total_steps=10**9,
        mode="averaged",
        settings=Settings(slot_s=options.interval, delay=options.delay),
        surroundings=Surroundings(copy=number, directory=where),
    )
    ended_s, begun_s = [], time.monotonic()
    with copy:
        for _ in copy.steps():
            step()
            ended_s.append(time.time())
            if time.monotonic() > begun_s + options.seconds:
                break
    peak = torch.cuda.max_memory_allocated() / 1e9 if torch.cuda.is_available() else 0.0
    costs = {
        name: list(values)
        for name, values in vars(copy.member.costs.without_state).items()
        if not isinstance(values, dict)
    }
    found = {"alone_per_s": alone_per_s, "ended_s": ended_s, "gpu_gb": peak, "costs": costs}
    tell(where, number, found)


def main() -> None:
    """Run all copies, and print what averaging took."""
    words = argparse.ArgumentParser()
    words.add_argument("--millions", type=float, default=1000.0, help="parameters, in millions")
    words.add_argument("--copies", type=int, default=2)
    words.add_argument("--batch", type=int, default=4096, help="samples in a step")
    words.add_argument("--interval", type=float, default=60.0, help="shortest interval, in s")
    words.add_argument("--delay", type=float, help="as in Settings; by itself if left out")
    words.add_argument("--alone", type=float, default=20.0, help="s without averaging")
    words.add_argument("--seconds", type=float, default=240.0, help="s with averaging")
    words.add_argument("--directory", default="/var/tmp", help="where the files lie")
    options = words.parse_args()
    with tempfile.TemporaryDirectory(prefix="hadar-large-", dir=options.directory) as name:
        found = side_by_side(run_copy, options.copies, Path(name), options, limit_s=_LIMIT_S)
        log = (Path(name) / "job.log").read_text(encoding="utf-8")
    summary = _summary(found, log)
    print(json.dumps({**vars(options), **summary, "log": log.splitlines()}, indent=1))


def _summary(found: list[dict[str, Any]], log: str) -> dict[str, Any]:
    """Return steps/s of all copies, alone and averaged, from the second end to the last one."""
    ends_s = [
        datetime.fromisoformat(line.split()[0]).timestamp()
        for line in log.splitlines()
        if _ENDED.search(line)
    ]
    if len(ends_s) < 3:
        raise SystemExit(f"too few intervals have ended: more --seconds\n{log}")
    first_s, last_s = ends_s[1], ends_s[-1]
    rates = [
        sum(first_s <= end_s < last_s for end_s in each["ended_s"]) / (last_s - first_s)
        for each in found
    ]
    alone = [each["alone_per_s"] for each in found]
    return {
        "alone_per_s": alone,
        "averaged_per_s": rates,
        "takes": 1.0 - mean(rates) / mean(alone),
        "interval_s": (last_s - first_s) / (len(ends_s) - 2),
        "ends": len(ends_s),
        "gpu_gb": max(each["gpu_gb"] for each in found),
        "costs": [each["costs"] for each in found],
    }


if __name__ == "__main__":
    main()
