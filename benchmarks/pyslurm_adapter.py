"""Measures both adapters: seconds to observe a long queue, changes a second, and memory.

    python benchmarks/pyslurm_adapter.py [--jobs 10000] [--changes 500] [--looks 5] [--json]
    python benchmarks/pyslurm_adapter.py --move [--json]

Runs where pyslurm fits the Slurm that runs, such as in the controller of docker/, as a user who may
submit jobs. It submits that many described jobs, each with a record of its own, that may not begin
until tomorrow, and cancels them at the end. Times are seconds of the wall clock, memory is this
process's alone, by adapter in a process of its own.

With --move it fills every pair of GPUs of the partition `other`, which hadard only watches there,
and moves each job to the next job's GPUs, all in one round.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from moving import measure_move, submit, wait

from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.gang import Gang
from hadar_slurm.core.throughput import ThroughputTable
from hadar_slurm.daemon.adapter import make_adapter
from hadar_slurm.daemon.main import COLLECT_AFTER
from hadar_slurm.handoff import user_reports
from hadar_slurm.jobspec.comment import encode
from hadar_slurm.jobspec.description import Description
from hadar_slurm.slurm.backend import SlurmBackend
from hadar_slurm.slurm.client.runner import Runner
from hadar_slurm.slurm.client.updates import Hold, Release, Update
from hadar_slurm.slurm.enforce.ledger import FILE_NAME, Ledger
from hadar_slurm.slurm.settings import BackendSettings

COMMENT = '{"hadar":1,"workload":"ResNet-50 (batch size 64)","steps":100000,"gpus":1,"held":true}'
GPUS = 2
REPORTS = Path("/var/spool/hadar/reports")
WAYS = ("command-line", "pyslurm")
RUNNER = Runner(timeout_s=600.0)


def fill(count: int) -> str:
    """Submit jobs and return the number of the array that they are the tasks of."""
    said = RUNNER.run(
        ["sbatch", "--parsable", "--hold", "--begin=now+1day", "--gpus=1", "--time=60",
         "--output=/dev/null", f"--comment={COMMENT}", f"--array=0-{count - 1}",
         "--wrap=sleep 60"],
    )  # fmt: skip
    array = said.split(";")[0].strip()
    # An update of a task makes it a record of its own.
    lines = [f"update JobId={array}_{task} Nice=1\n" for task in range(count)]
    RUNNER.complaints(["scontrol"], stdin="".join(lines) + "quit\n")
    return array


def resident_mib() -> float:
    """Return the memory that this process holds now."""
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
    return round(pages * 4096 / 2**20, 1)


def seconds(call: Callable[[], object], times: int) -> tuple[float, float]:
    """Return the median and the worst time of a call."""
    took: list[float] = []
    for _ in range(times):
        began_s = time.perf_counter()
        call()
        took.append(time.perf_counter() - began_s)
    return round(statistics.median(took), 3), round(max(took), 3)


def measure(way: str, array: str, looks: int, changes: int) -> dict[str, float | int | str]:
    """Return the figures of one adapter; jobs are held again as they were."""
    gc.set_threshold(COLLECT_AFTER)  # as hadard does
    slurm = make_adapter(way, RUNNER)
    before_mib = resident_mib()
    queue = slurm.queue()
    # By their own numbers: the library knows no tasks.
    jobs = [JobId(row.raw_id) for row in queue.values() if row.key.startswith(f"{array}_")]
    per_s = {}
    for change in (Release, Hold):
        batch: list[Update] = [change(job) for job in jobs[:changes]]
        began_s = time.perf_counter()
        faults = [fault for fault in slurm.change(batch) if fault is not None]
        per_s[change] = round(len(batch) / (time.perf_counter() - began_s))
        if faults:
            raise SystemExit(f"{way}: {faults[0]}")
    found: dict[str, float | int | str] = {"way": slurm.name, "jobs": len(queue)}
    for name, call in (("queue", slurm.queue), ("read", slurm.read)):
        found[f"{name}_s"], found[f"{name}_s_max"] = seconds(call, looks)
    after_mib = resident_mib()
    seconds(slurm.read, 2 * looks)
    found |= {"releases_per_s": per_s[Release], "holds_per_s": per_s[Hold]}
    memory = {"before_mib": before_mib, "after_mib": after_mib, "later_mib": resident_mib()}
    return found | memory


def move(way: str, directory: Path) -> dict[str, float | int | str]:
    """Return the figures of a round in which every job of a full cluster moves."""
    slurm = make_adapter(way, RUNNER)
    settings = BackendSettings(spool=REPORTS, restart_cost_s=1.0, grace_s=30.0, poll_s=5.0)
    table = ThroughputTable("none", {})
    backend = SlurmBackend(slurm, table, settings, Ledger(directory / FILE_NAME))
    places = [
        Gang.of({(row.node.name, gpu_type): GPUS})
        for row in slurm.nodes()
        for gpu_type, count in row.node.gpus
        for _ in range(count // GPUS)
    ]
    rates = dict.fromkeys(("v100", "p100", "k80"), 10.0)
    job = Description(steps=10**6, gpus=GPUS, throughputs=rates, checkpoint=True, is_held=True)
    words = ["--partition=other", f"--gpus={GPUS}", f"--comment={encode(job)}"]
    os.environ["HADAR_SPOOL"] = str(user_reports(REPORTS, os.geteuid()))
    jobs = [submit(RUNNER, directory, *words) for _ in places]
    try:
        before = dict(zip(jobs, places, strict=True))
        after = dict(zip(jobs, [*places[1:], places[0]], strict=True))
        return measure_move(backend, before, after)
    finally:
        RUNNER.run(["scancel", *jobs])
        wait(lambda: not RUNNER.run(["squeue", "-h", "--me"]))


def figures_of(options: argparse.Namespace) -> list[dict[str, float | int | str]]:
    """Return the figures by each adapter, those of looks and changes in a process of its own."""
    if options.move:
        with tempfile.TemporaryDirectory() as name:
            Path(name).chmod(0o755)
            return [move(way, Path(name)) for way in WAYS]
    array = fill(options.jobs)
    try:
        found = []
        for way in WAYS:
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                words = (way, array, options.looks, options.changes)
                found.append(pool.apply(measure, words))
        return found
    finally:
        RUNNER.run(["scancel", array])


def main() -> None:
    """Measure both adapters on one queue, or a round that moves every job."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("jobs", 10_000), ("changes", 500), ("looks", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--move", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = figures_of(options)
    slurm = RUNNER.run(["scontrol", "--version"]).strip()
    machine = {
        "command": " ".join(["python", *sys.argv]),
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{platform.machine()}, {multiprocessing.cpu_count()} cores",
        "software": f"Python {platform.python_version()}, {slurm}",
    }
    if options.json:
        json.dump(machine | {"found": found}, sys.stdout, indent=2)
        return
    print("  ".join(machine.values()))
    for figures in found:
        print("  ".join(f"{key} {value}" for key, value in figures.items()))


if __name__ == "__main__":
    main()
