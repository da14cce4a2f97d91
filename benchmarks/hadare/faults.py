"""Seeded faults on trainings in copies, each a real process, and what must hold nevertheless.

    python benchmarks/hadare/faults.py --runs 100 --seed 0
    python benchmarks/hadare/faults.py --seed 0 --run 17    # that run alone, once more

Copies that were killed are started again, as Slurm's requeue would. After each run: the job is
done, every step is consolidated exactly once, no more than one slot of one copy's work was repeated
for each time that a copy was killed or kept from its files, and every checkpoint loads. Exit
status: 0 when all of that held, 1 when something did not.
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
import page
import torch
from fault_figures import as_record, hits, summary
from fault_job import SCALE, Kind, Running
from fault_record import Case, Outcome, draw
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from hadar_slurm.runtime.ending import Settings

_OWN_MOUNTS = "HADAR_FAULTS_APART"
_DISK_BYTES = 2 * 1024 * 1024


def forks() -> Any:
    """Return a context that starts processes with all that PyTorch imports at the first step."""
    torch.set_num_threads(1)
    model, optimiser = fault_copy.make()
    model(torch.ones(2, 8)).sum().backward()
    optimiser.step()
    return multiprocessing.get_context("fork")


def run(case: Case, context: Any, keep: Path | None, settings: Settings) -> Outcome:
    """Return what a run came to; files of a run that broke something go to `keep`."""
    with tempfile.TemporaryDirectory(prefix="hadar-faults-") as name:
        notes, directory = Path(name) / "notes", Path(name) / "job"
        for path in (notes, directory):
            path.mkdir()
        job = fault_copy.Job(directory, notes, case.total_steps, case.step_s, settings)
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


def as_tree(outcomes: Sequence[Outcome], seed: int, command: str) -> dict[str, Any]:
    """Return all runs for programs."""
    records = [as_record(each) for each in outcomes]
    return {
        "date": page.DATE,
        "machine": page.MACHINE,
        "command": command,
        "seed": seed,
        "runs": len(records),
        "faults": hits(records),
        "summary": summary(records),
        "outcomes": records,
    }


def main(words: Sequence[str] | None = None) -> int:
    """Return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=100, metavar="N")
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
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report for programs")
    parser.add_argument(
        "--gone-after",
        type=float,
        default=fault_copy.SETTINGS.gone_after_s,
        metavar="SECONDS",
        help="a copy without a sign for this time counts as gone; more on a machine that does much "
        "else, where no process is sure to run within it (default: %(default)g)",
    )
    parser.add_argument("--keep", type=Path, metavar="DIR", help="files of runs that broke a rule")
    options = parser.parse_args(words)
    kinds = options.only or list(Kind)
    if Kind.FULL in kinds and (why := start_again_apart()):
        print(f"left out: {Kind.FULL}: {why}")
        kinds.remove(Kind.FULL)
    context = forks()
    numbers = range(options.runs) if options.run is None else [options.run]
    cases = [draw(options.seed, number, kinds, SCALE) for number in numbers]
    settings = replace(fault_copy.SETTINGS, gone_after_s=options.gone_after)
    one = partial(run, context=context, keep=options.keep, settings=settings)
    outcomes = []
    with (
        progress(len(cases)) as advance,
        ProcessPoolExecutor(options.at_once, mp_context=context) as pool,
    ):
        for outcome in pool.map(one, cases):
            outcomes.append(outcome)
            print(outcome.line(), flush=True)
            advance()
    if options.json:
        command = f"nice -n 15 python benchmarks/hadare/faults.py --runs {len(cases)}"
        command += f" --seed {options.seed} --at-once {options.at_once}"
        tree = as_tree(outcomes, options.seed, command)
        options.json.write_text(json.dumps(tree, indent=1) + "\n", encoding="utf-8")
    print(summary([as_record(each) for each in outcomes]))
    return 1 if any(each.broken for each in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
