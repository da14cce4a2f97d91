"""How much sooner five unequal nodes reach the quality of one, on a real local Slurm under hadard.

    python benchmarks/hadare/time_to_quality.py --json FILE [--systems one,auto,averaged]

Five nodes are paced to speeds 1, 1, 0.5, 0.5 and 0.2 (`shared_task.py`). `one` trains on one node
of speed 1 without hadard; the other systems are modes of the runtime: a job that `hadar-sbatch`
forks into five copies under hadard's policy `hadare`, all settings as shipped. Communication, files
and starts take the time that they take. Runs are lines of FILE; what is there is not run again.

`--page` writes time_to_quality.md from FILE.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import shared_task
from faults import progress
from tasks import TASKS
from time_to_quality_page import page

from hadar_slurm.devcluster.cluster import LocalCluster
from hadar_slurm.devcluster.config import parse_nodes
from hadar_slurm.errors import ClusterError, SlurmError
from hadar_slurm.handoff import user_reports
from hadar_slurm.lab.demo.runs import Daemon, job_environment
from hadar_slurm.slurm.client.state import read_queue

SPEEDS = {"n1": 1.0, "n2": 1.0, "n3": 0.5, "n4": 0.5, "n5": 0.2}
TYPES = {"v100": 1.0, "p100": 0.5, "k80": 0.2}
NODES = "2*v100:{n},2*p100:{n},1*k80:{n}"
STEPS, PERIOD_S = 1024, 1.0
# Steps of the copies beside one node's. A network with BatchNorm normalises each copy's share of a
# batch by itself, which costs a little of what a step brings.
FACTOR = {"images": 1.1, "language": 1.0}
MACHINE = "2026-11-26, two cores with other work, no GPU, Slurm 22.05.8, Debian 12, PyTorch 2.13.0."
SYSTEMS = ("one", "auto", "averaged")
SETTINGS = {"policy": "hadare", "mode": "hold", "poll_seconds": 0.5, "grace_seconds": 10}
_LIMIT_S = 3600.0
_LOOK_EVERY_S = 0.5
_SCRIPT = """\
#!/bin/bash
trap '' USR1
[[ -e $HADAR_JOB_DIR/done ]] && exit
exec "$@"
"""


@dataclass(frozen=True, slots=True)
class Run:
    """One training."""

    system: str
    task: str
    seed: int
    optimiser: str = "sgd"

    @property
    def steps(self) -> int:
        """Return how many steps it trains."""
        return round(STEPS * (1.0 if self.system == "one" else FACTOR[self.task]))


class Site(ExitStack):
    """A local Slurm of five nodes, each with `width` GPUs, and its hadard, if it `has_hadard`."""

    def __init__(self, directory: Path, width: int, *, has_hadard: bool) -> None:
        super().__init__()
        self.directory = directory
        self.script = directory / "job.sh"
        self.script.write_text(_SCRIPT)
        nodes = parse_nodes(NODES.format(n=width))
        self.cluster = LocalCluster.up(directory / "c", nodes)
        self.callback(self.cluster.down)
        try:
            self.environment = {
                **job_environment(self.cluster.environment()),
                "OMP_NUM_THREADS": "1",
                "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
            }
            if has_hadard:
                self._start_hadard()
        except BaseException:
            self.close()
            raise

    def _start_hadard(self) -> None:
        room, spool = self.directory / "hadard", self.directory / "spool"
        room.mkdir()
        spool.mkdir()
        self.environment["HADAR_SPOOL"] = str(user_reports(spool / "reports", 0))
        hadard = Daemon(
            room,
            self.environment,
            {
                **SETTINGS,
                "slurm_conf": self.cluster.slurm_conf,
                "run_dir": self.environment["HADAR_RUN_DIR"],
                "spool_dir": spool,
                "state_dir": self.directory / "state",
                "disable_file": self.directory / "disabled",
            },
        )
        self.callback(hadard.stop)
        hadard.start()

    def submit(self, run: Run) -> Path:
        """Submit a training, and return its directory."""
        room = self.directory / f"{run.system}-{run.task}-{run.seed}"
        (room / "job").mkdir(parents=True)
        speeds = ",".join(f"{node}={speed:g}" for node, speed in SPEEDS.items())
        program = [sys.executable, shared_task.__file__, f"--task={run.task}"]
        program += [f"--optimiser={run.optimiser}", f"--steps={run.steps}", f"--seed={run.seed}"]
        mode = "averaged" if run.system == "one" else run.system
        program += [f"--mode={mode}", f"--period={PERIOD_S}", f"--speeds={speeds}"]
        program += [f"--notes={room}"]
        request = ["--gpus-per-node=1", "--nodes=1", "--time=120", "--requeue", "--mem=500M"]
        request += [f"--output={room}/out-%a", "--cpus-per-task=1"]
        if run.system == "one":
            words = ["sbatch", "--nodelist=n1", *request]
        else:
            rates = ",".join(f"{kind}={speed / PERIOD_S:g}" for kind, speed in TYPES.items())
            words = [sys.executable, "-m", "hadar_slurm.cli.sbatch", f"--hadar-throughput={rates}"]
            words += [f"--hadar-copies={len(SPEEDS)}", f"--hadar-steps={run.steps}", *request]
            words.remove("--gpus-per-node=1")
            words.append("--hadar-gang=1")
        done = subprocess.run(
            [*words, str(self.script), *program],
            cwd=room,
            env={**self.environment, "HADAR_JOB_DIR": str(room / "job")},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if re.fullmatch(r"Submitted batch job \d+\n", done.stdout) is None:
            raise ClusterError(f"{run}: not submitted: {done.stdout} {done.stderr}")
        return room

    def are_over(self) -> bool:
        """Return whether no job waits or runs."""
        try:
            rows = read_queue(self.cluster.runner()).values()
        except SlurmError:
            return False
        return not any(row.is_live for row in rows)


def play(site: Site, runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Submit trainings at once, wait for them, and return their records."""
    submitted_s = time.time()
    rooms = {run: site.submit(run) for run in runs}
    while not site.are_over():
        time.sleep(_LOOK_EVERY_S)
        if time.time() > submitted_s + _LIMIT_S:
            raise ClusterError(f"{runs} did not end within {_LIMIT_S:g} s")
    return [
        {**asdict(run), "steps": run.steps, **record(room, submitted_s)}
        for run, room in rooms.items()
    ]


def record(room: Path, submitted_s: float) -> dict[str, Any]:
    """Return what a training's files say; times in seconds since the first copy's first step."""
    begun = [read(path)["at_s"] for path in room.glob("begun-*")]
    ended = {path.name.removeprefix("ended-"): read(path) for path in room.glob("ended-*")}
    trained = {copy: facts for copy, facts in ended.items() if facts["own_steps"]}
    if not begun or not trained:
        outputs = "".join(path.read_text()[-2000:] for path in room.glob("out-*"))
        raise ClusterError(f"{room.name}: nothing was trained: {outputs}")
    first_s, last_s = min(begun), max(facts["at_s"] for facts in trained.values())
    losses = [facts["loss"] for facts in trained.values()]
    log = room / "job" / "job.log"
    return {
        "seconds": last_s - first_s,
        "start_s": first_s - submitted_s,
        "loss": losses[0],
        "spread": max(losses) - min(losses),  # between copies
        "accuracy": next(iter(trained.values()))["accuracy"],
        "own_steps": {copy: facts["own_steps"] for copy, facts in sorted(ended.items())},
        "late_s": max(facts["late_s"] for facts in trained.values()),
        "intervals": log.read_text().count(" ended ") if log.exists() else 0,
    }


def read(path: Path) -> Mapping[str, Any]:
    """Return a file of the program's."""
    found: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def main() -> None:
    """Run what is not there yet."""
    words = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    words.add_argument("--json", type=Path, required=True)
    words.add_argument("--systems", default=",".join(SYSTEMS), help="comma-separated")
    words.add_argument("--tasks", default=",".join(TASKS), help="comma-separated")
    words.add_argument("--seeds", type=int, default=5, metavar="N")
    words.add_argument("--at-once", type=int, default=1, metavar="N", help="copied trainings")
    words.add_argument("--page", action="store_true", help="write the page of what is there")
    options = words.parse_args()
    path: Path = options.json
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    there = {(each["system"], each["task"], each["seed"]) for each in map(json.loads, lines)}
    todo = [
        run
        for seed in range(options.seeds)
        for task in options.tasks.split(",")
        for system in options.systems.split(",")
        if ((run := Run(system, task, seed)).system, run.task, run.seed) not in there
    ]
    with progress(len(todo)) as advance:
        # Nodes sleep most of the time, so single ones train beside each other.
        alone, copied = (
            [run for run in todo if (run.system == "one") is is_one] for is_one in (True, False)
        )
        groups = [alone] if alone else []
        groups += [copied[i : i + options.at_once] for i in range(0, len(copied), options.at_once)]
        for group in groups:
            with tempfile.TemporaryDirectory(prefix="hadar-quality-") as name:
                has_hadard = group[0].system != "one"
                with Site(Path(name), len(group), has_hadard=has_hadard) as site:
                    for found in play(site, group):
                        with path.open("a", encoding="utf-8") as file:
                            file.write(json.dumps(found) + "\n")
                        print(json.dumps(found), flush=True)
                        advance()
    if options.page:
        page(path, machine=MACHINE, period_s=PERIOD_S, factor=FACTOR["images"])


if __name__ == "__main__":
    main()
