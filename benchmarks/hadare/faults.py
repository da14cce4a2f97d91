"""Seeded faults on trainings in copies, each a real process, and what must hold nevertheless.

    python benchmarks/hadare/faults.py --runs 100 --seed 0
    python benchmarks/hadare/faults.py --mode synchronous
    python benchmarks/hadare/faults.py --seed 0 --run 17    # that run alone, once more

Copies that were killed are started again, as Slurm's requeue would. After each run: the job is
done; every step is consolidated exactly once; each sample has entered the parameters with the
weight that it should have, which a parameter records; in synchronous mode the samples of all copies
were exactly the batch, in each step that was applied; copies with the same state have the same
bits, and so have all at the end; every end of a slot ever seen loads and is finite; and no more
work was repeated than the faults may cost: a slot of a copy's for each time that it was killed or
kept from its files, in synchronous mode a few steps, or those since the last end of a slot where
all copies were lost. Exit status: 0 when all of that held, 1 when something did not.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import fault_copy
import torch
from fault_figures import as_record, summary
from fault_job import SCALE, Kind, Running, kinds_of
from fault_record import Case, Outcome, draw
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from hadar_slurm.runtime.averaging.modes import TrainingMode
from hadar_slurm.runtime.ending import Settings

_OWN_MOUNTS = "HADAR_FAULTS_APART"
_DISK_BYTES = 8 * 1024 * 1024


def forks() -> Any:
    """Return a context that starts processes with all that PyTorch imports at the first step."""
    torch.set_num_threads(1)
    model, optimiser = fault_copy.make()
    model.loss(torch.ones(2, 8), torch.zeros(2).long(), range(2)).backward()
    optimiser.step()
    return multiprocessing.get_context("fork")


def run(case: Case, context: Any, keep: Path | None, settings: Settings, mode: str) -> Outcome:
    """Return what a run came to; files of a run that broke something go to `keep`."""
    with tempfile.TemporaryDirectory(prefix="hadar-faults-") as name:
        notes, directory = Path(name) / "notes", Path(name) / "job"
        for path in (notes, directory):
            path.mkdir()
        job = fault_copy.Job(directory, notes, case.total_steps, case.step_s, settings, mode)
        running = Running(case, job, context=context)
        has_disk = any(fault.kind is Kind.FULL for fault in case.faults)
        if has_disk:
            size = f"size={_DISK_BYTES}"
            subprocess.run(["mount", "-t", "tmpfs", "-o", size, "hadar", directory], check=True)
        try:
            running.go()
            outcome = running.outcome()
            if outcome.broken and keep:
                shutil.copytree(name, keep / f"run-{case.number}", dirs_exist_ok=True)
            return outcome
        finally:
            for process in running.copies.values():
                process.kill()
                process.join()
            if has_disk:
                subprocess.run(["umount", directory], check=True)


def start_again_apart() -> str:
    """Become the same program with mounts of its own, or return why that cannot be."""
    if os.environ.get(_OWN_MOUNTS):
        return ""
    apart = ["unshare", "--mount", "--propagation", "private"]
    if os.geteuid() != 0:
        return "needs root"
    if shutil.which("unshare") is None or subprocess.run([*apart, "true"], check=False).returncode:
        return "no right to mount"
    os.environ[_OWN_MOUNTS] = "1"
    os.execvp("unshare", [*apart, sys.executable, *sys.argv])


@contextmanager
def progress(total: int) -> Iterator[Callable[[], None]]:
    """Show how many runs are over, on a terminal; elsewhere their lines do."""
    console = Console(stderr=True)
    columns = (BarColumn(), TextColumn("{task.completed}/{task.total} runs"), TimeElapsedColumn())
    # Without a thread of its own, which a fork would leave behind.
    with Progress(
        *columns, console=console, auto_refresh=False, disable=not console.is_terminal
    ) as shown:
        bar = shown.add_task("", total=total)
        yield lambda: shown.update(bar, advance=1, refresh=True)


def main(words: Sequence[str] | None = None) -> int:
    """Return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=100, metavar="N")
    parser.add_argument(
        "--mode",
        type=TrainingMode,
        default=TrainingMode.AVERAGED,
        help="averaged, synchronous, auto",
    )
    parser.add_argument("--run", type=int, metavar="N", help="this run alone")
    parser.add_argument("--at-once", type=int, default=1, metavar="N", help="runs at a time")
    parser.add_argument("--seed", type=int, default=0, help="the same faults for the same seed")
    parser.add_argument(
        "--only",
        action="append",
        type=Kind,
        metavar="KIND",
        help=f"this kind of fault alone, or several: {'; '.join(Kind)}",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="append a line for each run")
    parser.add_argument(
        "--gone-after",
        type=float,
        default=fault_copy.SETTINGS.gone_after_s,
        metavar="SECONDS",
        help="a copy without a sign for this time counts as gone; more on a machine that does much "
        "else, where no process is sure to run within it (default: %(default)g)",
    )
    parser.add_argument(
        "--delay", type=float, metavar="PART", help="of Settings, where copies average"
    )
    parser.add_argument("--keep", type=Path, metavar="DIR", help="files of runs that broke a rule")
    options = parser.parse_args(words)
    kinds = options.only or kinds_of(options.mode)
    if Kind.FULL in kinds and (why := start_again_apart()):
        print(f"left out: {Kind.FULL}: {why}")
        kinds.remove(Kind.FULL)
    context = forks()
    numbers = range(options.runs) if options.run is None else [options.run]
    cases = [draw(options.seed, number, kinds, SCALE) for number in numbers]
    settings = replace(fault_copy.SETTINGS, gone_after_s=options.gone_after, delay=options.delay)
    one = partial(run, context=context, keep=options.keep, settings=settings, mode=options.mode)
    outcomes = []
    with (
        progress(len(cases)) as advance,
        ProcessPoolExecutor(options.at_once, mp_context=context) as pool,
    ):
        for outcome in pool.map(one, cases):
            outcomes.append(outcome)
            print(outcome.line(), flush=True)
            advance()
    shared = {"mode": options.mode, "seed": options.seed, "delay": options.delay}
    found = [{**shared, **as_record(each)} for each in outcomes]
    if options.json:
        with options.json.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(each) + "\n" for each in found)
    print(summary(found))
    return 1 if any(each.broken for each in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
