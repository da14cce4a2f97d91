"""Seeded faults on forked jobs of a real Slurm with a real hadard, and what must hold nevertheless.

    python benchmarks/hadare/slurm_faults.py --seeds 0-99 --json FILE
    python benchmarks/hadare/slurm_faults.py --mode synchronous --seeds 0-99 --json FILE

Needs root, for a disk of its own. hadard, a copy, a copy with its batch script, the copy that ends
a slot, and a node with all that runs there are killed, and come back; the disk that nodes and
hadard share is full or stands still; in synchronous mode gradients and parameters of a copy are not
finite, its connections are cut, or it is killed as gradients are exchanged. Runs are lines of FILE,
and what is there is not run again; several such programs may write to one file, each with its own
seeds and a cluster of its own. After each run every task has completed but those whose batch script
was killed, and all holds that faults.py checks. Killing hadard may cost nothing. Exit status: 0
when all of that held, 1 when something did not.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import fault_copy
from fault_figures import as_record, summary
from fault_record import Case, draw
from faults import progress, start_again_apart
from slurm_job import SCALE, SlurmRun, World, kinds_of

from hadar_slurm.errors import HadarError
from hadar_slurm.runtime.averaging.modes import TrainingMode
from hadar_slurm.runtime.settings import Settings


def run(
    world: World, case: Case, keep: Path | None, mode: str, settings: Settings
) -> dict[str, Any]:
    """Return what a run came to; files of one that broke something go to `keep`."""
    name = f"{case.number:03}"
    notes, directory = world.directory / f"notes-{name}", world.disk / name
    notes.mkdir()
    directory.mkdir()
    job = fault_copy.Job(directory, notes, case.total_steps, (), settings, mode)
    running = SlurmRun(case, job, world=world)
    try:
        running.go()
    except HadarError as error:
        running.broken.append(str(error))
    finally:
        running.finish()
    outcome = running.outcome()
    if outcome.broken and keep:
        world.keep(keep / name, notes, directory)
    print(outcome.line(), flush=True)
    restarts = sum(row.restarts for row in running.tasks.values())
    return {"mode": mode, **as_record(outcome), "restarts": restarts}


def seeds_of(text: str) -> range:
    """Return the seeds from A to B of `A-B`, both among them, or the only one."""
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def main() -> int:
    """Return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=seeds_of, default=range(100), metavar="A-B")
    parser.add_argument(
        "--mode",
        type=TrainingMode,
        default=TrainingMode.AVERAGED,
        help=f"one of: {', '.join(TrainingMode)}",
    )
    parser.add_argument(
        "--gone-after",
        type=float,
        default=fault_copy.SLURM_SETTINGS.gone_after_s,
        metavar="SECONDS",
        help="a copy without a sign for this time counts as gone (default: %(default)g)",
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="append runs, and skip those there"
    )
    parser.add_argument("--keep", type=Path, metavar="DIR", help="files of runs that broke a rule")
    options = parser.parse_args()
    kinds, mode = kinds_of(options.mode), options.mode
    settings = replace(fault_copy.SLURM_SETTINGS, gone_after_s=options.gone_after)
    if why := start_again_apart():
        parser.error(f"no disk of its own to fill and to freeze: {why}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    found = [each for each in records(options.json) if each["mode"] == mode]
    todo = [seed for seed in options.seeds if seed not in {each["run"] for each in found}]
    ours = []
    with (
        tempfile.TemporaryDirectory(prefix="hadar-faults-") as name,
        World(Path(name)) as world,
        progress(len(todo)) as advance,
    ):
        for seed in todo:
            record = run(world, draw(0, seed, kinds, SCALE), options.keep, mode, settings)
            ours.append(record)
            if options.json:
                with options.json.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(record) + "\n")
            advance()
    seen = [each for each in [*found, *ours] if each["run"] in options.seeds]
    print(summary(seen))
    return 1 if any(each["broken"] for each in seen) else 0


def records(path: Path | None) -> list[dict[str, Any]]:
    """Return the runs in a file, in order."""
    if path is None or not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines()
    found = [{"mode": TrainingMode.AVERAGED.value, **json.loads(line)} for line in lines]
    return sorted(found, key=lambda each: int(each["run"]))


if __name__ == "__main__":
    sys.exit(main())
