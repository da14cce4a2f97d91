"""Whether steering changes jobs that Slurm has just started, on a real and slow Slurm.

    python benchmarks/raced_starts.py [--starts 300] [--round-s 1] [--seed 1] [--json]

Short jobs of hadar-sbatch, of one to eight GPUs, arrive faster than a local cluster runs them, so
that Slurm starts some in every round while hadard in mode `steer` changes which nodes they may get.
slurmctld is stopped for a third of the time, as if it were busy: what hadard sends then waits, and
takes effect after starts that hadard has not seen. Counted are resizes in slurmctld's log and in
its records of ended runs, runs with fewer GPUs than asked for, and jobs with several records.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rich.progress import Progress

from hadar_slurm.devcluster.cluster import LocalCluster
from hadar_slurm.devcluster.config import parse_nodes
from hadar_slurm.jobspec.constraint import fold_out

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from chaos.constancy import resizes
from integration.site import SETTINGS, Site

NODES = "v100:4,v100:4,p100:4,p100:4"
STOPPED_S, GOING_S = 0.25, 0.5
# Each start says what it got on each of its nodes, which may be unequal.
SCRIPT = """parts=$(scontrol -d show job "$SLURM_JOB_ID" | grep -o 'Nodes=[^ ]* .*GRES=[^ ]*')
echo "$SLURM_JOB_ID" $parts >> starts
exec sleep 3"""
_HELD = re.compile(r"Nodes=(\S+) \S+ \S+ GRES=gpu(?::\w+)?:([0-9]+)")
_FIELD = re.compile(r"(?:^| )(\w+)=(\S*)")


def _send(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


@contextmanager
def slowed(cluster: LocalCluster) -> Iterator[None]:
    """Stop and continue the cluster's slurmctld, again and again."""
    pids = [each.pid for each in cluster.processes() if each.program == "slurmctld"]
    is_over = threading.Event()

    def alternate() -> None:
        while not is_over.wait(GOING_S):
            _send(pids, signal.SIGSTOP)
            time.sleep(STOPPED_S)
            _send(pids, signal.SIGCONT)

    thread = threading.Thread(target=alternate)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def measure(site: Site, options: argparse.Namespace) -> dict[str, int]:
    """Submit jobs, wait until all have ended, and return their GPUs by job."""
    draw = random.Random(options.seed)
    script = site.script("short", SCRIPT)
    site.start(mode="steer", round_seconds=options.round_s, policy="hadar")
    wanted: dict[str, int] = {}
    with Progress(disable=not sys.stderr.isatty()) as bars, slowed(site.cluster):
        bar = bars.add_task("starts", total=options.starts)
        while len(wanted) < options.starts:
            gpus = draw.choice((1, 2, 2, 4, 4, 8))
            rates = {"v100": 20.0, "p100": 20.0 / draw.choice((1, 2, 4))}
            job = site.train(rates, steps=60, gpus=gpus, script=script)
            wanted[str(job)] = gpus
            bars.update(bar, completed=len(wanted))
        while any(row.is_live for row in site.queue().values()):
            time.sleep(1)
    site.hadard.stop()
    return wanted


def figures(site: Site, wanted: dict[str, int], ended: str, log: str) -> dict[str, object]:
    """Return what is counted."""
    records = Counter(dict(_FIELD.findall(line)).get("JobId", "") for line in ended.splitlines())
    starts = (site.directory / "starts").read_text().splitlines()
    got: Counter[str] = Counter()
    for line in starts:
        job, _, held = line.partition(" ")
        got[job] += sum(len(fold_out(names)) * int(gpus) for names, gpus in _HELD.findall(held))
    fewer = [job for job, count in wanted.items() if job in got and got[job] < count]
    steered = sum(len(line["actions"]) for line in site.lines())
    return {
        "jobs": len(wanted),
        "starts": len(starts),
        "changes": steered,
        "resizes": len(list(resizes(log, ended, {}))),
        "jobs_with_fewer_gpus": len(fewer),
        "jobs_with_several_records": sum(records[job] > 1 for job in wanted),
        "jobs_that_never_ran": sum(job not in got for job in wanted),
    }


def main() -> int:
    """Measure and print; return 1 if a job was changed as it started."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=300)
    parser.add_argument("--round-s", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="starts-") as directory:
        place = Path(directory)
        place.chmod(0o755)
        (place / "jobs").mkdir()
        ended = place / "ended-runs"
        settings = f"JobCompType=jobcomp/filetxt\nJobCompLoc={ended}\n"
        with LocalCluster.up(place / "c", parse_nodes(NODES), settings=settings) as cluster:
            site = Site(cluster, place / "jobs", dict(SETTINGS))
            begun_s = time.monotonic()
            try:
                wanted = measure(site, options)
                log = (cluster.directory / "log" / "slurmctld" / "log").read_text()
                found = figures(site, wanted, ended.read_text(), log)
            finally:
                site.close()
            found["wall_s"] = round(time.monotonic() - begun_s, 1)
    print(json.dumps(found) if options.json else ", ".join(f"{k} {v}" for k, v in found.items()))
    wrong = ("resizes", "jobs_with_fewer_gpus", "jobs_with_several_records", "jobs_that_never_ran")
    return 1 if any(found[name] for name in wrong) else 0


if __name__ == "__main__":
    sys.exit(main())
