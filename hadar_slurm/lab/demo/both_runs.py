"""The two runs of the demo's jobs, without and with hadard, and their progress."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from hadar_slurm.devcluster.cluster import LocalCluster
from hadar_slurm.lab.demo.runs import (
    Daemon,
    DemoTally,
    JobRun,
    Submitter,
    fresh_directory,
    job_environment,
    run_jobs,
)
from hadar_slurm.lab.demo.workload import DemoWorkload

# A run that takes longer has failed; both runs together stay far below it.
_LIMIT_S = 240.0
# Rounds and costs scaled to jobs that last seconds instead of hours.
CONFIG = {
    "round_seconds": 5,
    "poll_seconds": 0.25,
    "restart_cost_seconds": 2.5,
    "grace_seconds": 10,
    "pin_timeout_seconds": 15,
}
# The modes in which hadard places jobs. Slurm keeps the queue, and hadard limits the nodes of
# waiting jobs; or they are held, and each is released when GPUs are free for it.
WAYS = ("steer", "hold")
# Without a terminal, progress is one line in this many seconds.
_LINE_EVERY_S = 10.0


class DemoSettings(NamedTuple):
    """What differs between demos: hadard's policy, one of WAYS, and whether jobs tell steps."""

    policy: str
    way: str
    tells_steps: bool


def both_runs(
    workload: DemoWorkload,
    cluster: LocalCluster,
    scratch: Path,
    output: Path,
    console: Console,
    settings: DemoSettings,
) -> tuple[list[JobRun], list[JobRun]]:
    """Run the workload without and with hadard; hadard's journal and log go to `output`."""
    environment = job_environment(cluster.environment())
    config = {
        **CONFIG,
        "mode": settings.way,
        "policy": settings.policy,
        "slurm_conf": cluster.slurm_conf,
        "run_dir": environment["HADAR_RUN_DIR"],
        "spool_dir": cluster.directory / "spool",
        "state_dir": scratch / "state",
        "disable_file": scratch / "disabled",
    }
    daemon = Daemon(fresh_directory(scratch / "hadard"), environment, config)

    def run(name: str, *, with_hadar: bool) -> list[JobRun]:
        jobs = fresh_directory(scratch / ("hadar" if with_hadar else "plain"))
        submitter = Submitter(environment, jobs, with_hadar, settings.tells_steps)
        runner = cluster.runner()
        with _progress(console, name, len(workload.jobs)) as show:
            return run_jobs(workload.jobs, submitter, runner, limit_s=_LIMIT_S, on_progress=show)

    plain = run("plain Slurm", with_hadar=False)
    try:
        with daemon.running():
            hadar = run("hadar", with_hadar=True)
    finally:
        for file in (daemon.journal, daemon.log):
            if file.exists():
                shutil.copy(file, output / file.name)
    return plain, hadar


@contextmanager
def _progress(console: Console, name: str, total: int) -> Iterator[Callable[[DemoTally], None]]:
    """Show a run's progress: a bar on a terminal, periodic lines elsewhere."""
    if console.is_terminal:
        with Progress(
            TextColumn("{task.description:12}"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total} done, {task.fields[running]} running"),
            TimeElapsedColumn(),
            console=console,
        ) as progress:
            task = progress.add_task(name, total=total, running=0)
            yield lambda by: progress.update(task, completed=by.finished, running=by.running)
        return
    begun_s, printed_s = time.monotonic(), -_LINE_EVERY_S

    def show(tally: DemoTally) -> None:
        nonlocal printed_s
        now_s = time.monotonic() - begun_s
        if now_s - printed_s >= _LINE_EVERY_S or tally.finished == total:
            printed_s = now_s
            done = f"{tally.finished}/{total} done, {tally.running} running"
            console.print(f"{name}: {done}, {now_s:.0f} s")

    yield show
