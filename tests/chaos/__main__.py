"""The chaos test: injects seeded faults into a running cluster and checks invariants.

    python -m chaos [--world docker] [--seed 1] [--faults 200] [--json FILE] [--keep DIR]

with tests on PYTHONPATH.

Exit status: 0 if every invariant held, 1 if one broke, 2 for wrong usage, 3 if no cluster can be
started. See docs/chaos.md.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from chaos.docker_world import DockerWorld
from chaos.faults import Kind, draw_faults
from chaos.local_world import OWN_MOUNTS, LocalWorld
from chaos.report import as_tree, fault_table, finding_lines, last_line
from chaos.run import Run
from chaos.world import World, ran
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from hadar_slurm.errors import HadarError

_WIDTH = 150
_LINE_EVERY_S = 30.0


def main(words: Sequence[str] | None = None) -> int:
    """Return the exit status."""
    options = _parser().parse_args(words)
    if options.world == "local" and OWN_MOUNTS not in os.environ:
        _start_again_apart()
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        return _chaos(options)
    except HadarError as error:
        print(f"chaos: {error}", file=sys.stderr)
        return 3
    except KeyboardInterrupt:
        print("chaos: interrupted; everything it started was ended", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=1, help="the same faults for the same seed")
    parser.add_argument("--faults", type=int, default=200, metavar="N")
    parser.add_argument("--world", choices=("local", "docker"), default="local")
    parser.add_argument("--mode", choices=("hold", "steer"), default="hold")
    text = "the local cluster has accounting (slurmdbd), and its QOS change"
    parser.add_argument("--accounting", action="store_true", help=text)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report for programs")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep logs and journals here")
    parser.add_argument(
        "--only",
        action="append",
        type=Kind,
        metavar="KIND",
        help=f"this kind of fault alone, or several: {'; '.join(Kind)}",
    )
    return parser


def _start_again_apart() -> None:
    """Restart this program in its own mount namespace, whose mounts end with the program."""
    apart = ["unshare", "--mount", "--propagation", "private"]
    if shutil.which("unshare") is None or ran([*apart, "true"], 10).status != 0:
        return  # not permitted: then nothing is mounted
    os.environ[OWN_MOUNTS] = "1"
    os.execvp("unshare", [*apart, sys.executable, "-m", "chaos", *sys.argv[1:]])


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _chaos(options: argparse.Namespace) -> int:
    faults = draw_faults(options.seed, options.faults, options.only or tuple(Kind))
    # A short path: paths of unix sockets below it may have 107 characters.
    directory = Path(tempfile.mkdtemp(prefix="chaos-"))
    directory.chmod(0o755)
    world: World = (
        DockerWorld(directory, mode=options.mode)
        if options.world == "docker"
        else LocalWorld(
            directory,
            mode=options.mode,
            has_accounting=options.accounting,
            has_backup=any(fault.kind is Kind.FAIL_OVER for fault in faults),
        )
    )
    run = None
    try:
        world.up()
        with _progress(options.faults) as show:
            run = Run(world, faults, options.seed, show)
            try:
                run.go()
            finally:
                if options.keep:
                    _keep(world, run, options.keep)
        return _tell(run, options)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        try:
            world.down()
        finally:
            shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int, str], None]]:
    """Show the progress of a run: a bar on a terminal, otherwise a line every 30 s."""
    console = Console(stderr=True)
    if console.is_terminal:
        columns = (TextColumn("chaos"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
        with Progress(
            *columns, TextColumn("{task.description}"), TimeElapsedColumn(), console=console
        ) as progress:
            bar = progress.add_task("starting", total=total)
            yield lambda done, words: progress.update(bar, completed=done, description=words)
        return
    begun_s = told_s = time.monotonic()

    def show(done: int, words: str) -> None:
        nonlocal told_s
        if time.monotonic() - told_s >= _LINE_EVERY_S:
            told_s = time.monotonic()
            console.print(f"{done}/{total} faults, {told_s - begun_s:.0f} s: {words}")

    yield show


def _keep(world: World, run: Run, target: Path) -> None:
    """Copy the run's notes, logs, journals and sightings of jobs."""
    target.mkdir(parents=True, exist_ok=True)
    shutil.copytree(world.control.directory, target / "control", dirs_exist_ok=True)
    world.keep(target)
    with (target / "sightings.txt").open("w") as file:
        for past in run.observer.pasts.values():
            file.writelines(f"{time_s:.2f} {job}\n" for time_s, job in past.changes)


def _tell(run: Run, options: argparse.Namespace) -> int:
    console = Console(width=None if sys.stdout.isatty() else _WIDTH)
    figures = run.figures()
    console.print(fault_table(run.cases, run.begun_s))
    for line in finding_lines(run.findings, run.begun_s):
        console.print(line, soft_wrap=True, markup=False, highlight=False)
    if options.json:
        settings = {
            "date": time.strftime("%Y-%m-%d", time.localtime(run.begun_s)),
            "world": options.world,
            "slurm": run.slurm,
            "seed": options.seed,
        }
        tree = as_tree(settings, run.cases, run.findings, figures, run.begun_s)
        options.json.write_text(json.dumps(tree, indent=1) + "\n")
    print(last_line(run.cases, run.findings, figures))
    return 1 if any(not finding.apart for finding in run.findings) else 0


if __name__ == "__main__":
    sys.exit(main())
