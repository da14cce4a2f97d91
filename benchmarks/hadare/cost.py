"""What an averaging costs: CPU time, bytes and memory of every copy, each a process.

    nice -n 12 python benchmarks/hadare/cost.py --millions 64,256 --directories /dev/shm,/var/tmp

Copies change their parameters, contribute, one of them averages, and all load the mean, by the
runtime's own code. One works at a time, as each has a node of its own, but not here. Optimisers
have no state, as in intervals to which none is contributed. A line of `transport.jsonl` is a size
on a file system; `--write-only` makes `transport.md` from these.

Memory is `cached` while it is full of cached files, as that of a node that has run for a while.
With `free` memory, a virtual machine that returns it to its host pays for getting it again.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from itertools import product
from multiprocessing import get_context
from multiprocessing.synchronize import Barrier
from pathlib import Path
from statistics import median
from typing import Any

import cost_page
import torch
from torch import nn

from hadar_slurm.runtime.copy import Copy
from hadar_slurm.runtime.files.ranges import Ranges
from hadar_slurm.runtime.files.records import Contribution, SlotEnd
from hadar_slurm.runtime.membership.surroundings import Surroundings
from hadar_slurm.runtime.settings import Settings

HERE = Path(__file__).resolve().parent
WIDTH = 4096
TOTAL_STEPS = 10**9  # none of the intervals is the last, which is exact
SLOT_S = 60.0
# The first do not count: their files take new memory, and the kernel gives freed memory again late.
INTERVALS, FIRST = 10, 6
_LIMIT_S = 900.0


def model_of(millions: float) -> nn.Module:
    """Return a model of about this number of parameters in square matrices."""
    layers = max(1, round(millions * 1e6 / WIDTH**2))
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers)))


class Meter:
    """Adds up what parts of an averaging take of this process."""

    def __init__(self) -> None:
        self.found: dict[str, dict[str, float]] = {}

    @contextmanager
    def measure(self, part: str) -> Iterator[None]:
        """Measure the body: seconds, CPU seconds, bytes read and written."""
        before = _io(), os.times(), time.monotonic()
        yield
        after = _io(), os.times(), time.monotonic()
        user_s, kernel_s = after[1].user - before[1].user, after[1].system - before[1].system
        self.found[part] = {
            "read": after[0][0] - before[0][0],
            "written": after[0][1] - before[0][1],
            "cpu_s": user_s + kernel_s,
            "kernel_s": kernel_s,
            "s": after[2] - before[2],
        }


def _io() -> tuple[int, int]:
    """Return the bytes that this process has read and written so far, by its calls."""
    lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    facts = dict(line.split(": ") for line in lines)
    return int(facts["rchar"]), int(facts["wchar"])


def run_copy(
    number: int, copies: int, millions: float, delays: bool, where: Path, all_here: Barrier
) -> None:
    """Be one copy: change parameters, contribute, average if it is the first, and load.

    If it `delays`, as where training goes on: `keep` and `take` stop it, the rest does not.
    """
    torch.manual_seed(0)
    model = model_of(millions)
    copy = Copy(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        total_steps=TOTAL_STEPS,
        settings=Settings(slot_s=SLOT_S, optimiser_every=10_000, keep_every=0),
        surroundings=Surroundings(copy=number, directory=where),
    )
    member = copy.member
    if number == 0:
        dealt = {each: Ranges.of([(each, each + 1)]) for each in range(copies)}
        first = SlotEnd(slot=0, total_steps=TOTAL_STEPS, dealt=dealt, length_s=SLOT_S)
        member.slots.end(first, *member.named())
    lines, here, ahead = [], set(range(copies)), None
    for _ in range(INTERVALS):
        all_here.wait(_LIMIT_S)
        if ahead is None:
            copy.learner.load(*member.newest())
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.rand(WIDTH).sub_(0.5), alpha=1e-4)
        meter, (end, _) = Meter(), member.newest()
        mine = end.dealt[number]
        part = Contribution(number, end.slot + 1, end.id, mine, SLOT_S, is_checked=True)
        with in_turn(number, copies, all_here):
            if delays:
                with meter.measure("keep"):
                    ahead = copy.learner.go_ahead(part.slot)
                    copy.leading.contributing.finish(part, ahead)
            with meter.measure("save"):
                if not delays:
                    copy.leading.contributing.finish(part)
                copy.leading.contributing.save()
        if number == 0:
            with meter.measure("merge"):
                member.ending.end(end, here, here)
        with in_turn(number, copies, all_here):
            end, file = member.newest()
            with meter.measure("load"):
                if ahead is None:
                    copy.learner.load(end, file)
                else:
                    copy.learner.fetch(end, file, ahead)
            if ahead is not None:
                with meter.measure("take"):
                    copy.learner.load(end, file, ahead)
        lines.append(meter.found)
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    tell(where, number, {"parts": lines, "rss": rss})


@contextmanager
def in_turn(number: int, copies: int, all_here: Barrier) -> Iterator[None]:
    """Run the body while no other copy works: each has a node of its own, but not here."""
    for _ in range(number + 1):
        all_here.wait(_LIMIT_S)
    yield
    for _ in range(number, copies):
        all_here.wait(_LIMIT_S)


def tell(where: Path, number: int, found: Mapping[str, Any]) -> None:
    """Write what a copy has measured, for `side_by_side`."""
    (where / f"found-{number}.json").write_text(json.dumps(found), encoding="utf-8")


def side_by_side(
    run: Callable[..., None], copies: int, where: Path, *words: object, limit_s: float = _LIMIT_S
) -> list[dict[str, Any]]:
    """Run `run(number, *words, where, barrier)` for each copy in a process; return what they found.

    Raises SystemExit where one fails, or has not ended `limit_s` after those before it.
    """
    context = get_context("spawn")
    all_here = context.Barrier(copies)
    processes = [
        context.Process(target=run, args=(number, *words, where, all_here))
        for number in range(copies)
    ]
    for process in processes:
        process.start()
    try:
        for process in processes:
            process.join(limit_s)
            if process.exitcode != 0:
                raise SystemExit(f"a copy ended with {process.exitcode}")
    finally:
        for process in processes:
            process.kill()
    paths = [where / f"found-{number}.json" for number in range(copies)]
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths]


@contextmanager
def cached_memory() -> Iterator[Callable[[], None]]:
    """Give a function that fills free memory with a cached file, of which others may take all."""
    size = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    into = bytearray(1 << 20)
    with tempfile.TemporaryFile(dir="/var/tmp", buffering=0) as file:
        file.truncate(size)  # without blocks on the disk

        def fill() -> None:
            file.seek(0)
            while file.readinto(into):
                pass

        yield fill


def measured(millions: float, copies: int, directory: Path, *, delays: bool) -> dict[str, Any]:
    """Return what an averaging of one size costs on one file system: medians of intervals."""
    with tempfile.TemporaryDirectory(prefix="hadar-cost-", dir=directory) as name:
        found = side_by_side(run_copy, copies, Path(name), copies, millions, delays)
    parameters = sum(each.numel() for each in model_of(millions).parameters())
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "directory": str(directory),
        "delays": delays,
        "cpus": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "torch": torch.__version__,
        "copies": copies,
        "averagings": INTERVALS - FIRST,
        "first": FIRST,
        "parameters": parameters,
        "rss": max(each["rss"] for each in found),
        "parts": {part: _medians(found, part, FIRST, INTERVALS) for part in found[0]["parts"][0]},
        "parts_at_first": {part: _medians(found, part, 1, FIRST) for part in found[0]["parts"][0]},
    }


def _medians(found: list[Mapping[str, Any]], part: str, first: int, end: int) -> dict[str, float]:
    """Return the medians of a part, over all copies that did it, in intervals `first` to `end`."""
    rows = [row[part] for each in found for row in each["parts"][first:end] if part in row]
    return {key: round(median(row[key] for row in rows), 4) for key in rows[0]}


def main() -> None:
    """Measure what is asked for, and write the page."""
    words = argparse.ArgumentParser()
    words.add_argument("--millions", default="64,256", help="parameters, in millions")
    words.add_argument("--directories", default="/dev/shm,/var/tmp")
    words.add_argument("--memory", default="free", help="free, cached, or both, by a comma")
    words.add_argument("--copies", type=int, default=3)
    words.add_argument("--runs", type=Path, default=HERE / "transport.jsonl")
    words.add_argument("--write-only", action="store_true")
    options = words.parse_args()
    if not options.write_only:
        lines = []
        asked = (options.memory, options.directories, options.millions)
        with ExitStack() as stack:
            fill = stack.enter_context(cached_memory()) if "cached" in options.memory else None
            cells = product(*(each.split(",") for each in asked), (False, True))
            for memory, directory, millions, delays in cells:
                if fill and memory == "cached":
                    fill()
                found = measured(float(millions), options.copies, Path(directory), delays=delays)
                lines.append({"memory": memory, **found})
                print(json.dumps(lines[-1]), flush=True)
        options.runs.write_text("".join(json.dumps(line) + "\n" for line in lines))
    records = [json.loads(line) for line in options.runs.read_text().splitlines()]
    options.runs.with_suffix(".md").write_text(cost_page.text(records), encoding="utf-8")


if __name__ == "__main__":
    main()
