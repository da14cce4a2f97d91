"""Whether owners' edits of waiting jobs outlast hadard's rounds, on a real Slurm.

    python benchmarks/owners_edits.py [--edits 500] [--jobs 40] [--mode steer] [--seed 1]
        [--every-s 0.1] [--json]

All GPUs of a local cluster are occupied, and jobs of hadar-sbatch wait while hadard makes rounds
of 2 s. Their owners change nodes, excluded nodes, features, nice value, time limit, QOS and hold,
one edit after another at random moments. After three quiet rounds hadard is stopped and what it has
borrowed is given back (`hadar release`); then each field has to show what its owner wrote last. The
QOS is left out where no accounting is installed, and the hold in mode `hold`, where Slurm shows
no difference between hadard's and the owner's.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.progress import track

from hadar_slurm.devcluster.cluster import LocalCluster
from hadar_slurm.devcluster.config import parse_nodes
from hadar_slurm.devcluster.processes import find_binaries
from hadar_slurm.errors import ClusterError

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from chaos.constancy import lost_edits
from chaos.invariants import Finding, Sample
from chaos.records import sightings
from chaos.workload import HOLD, Edit, Task
from integration.site import SETTINGS, Site

NODES = "v100:4,v100:4,p100:4,p100:4"
ROUND_S, QUIET_ROUNDS = 2.0, 3
# Nodes that owners name, and nodes that they exclude: no job gets contradicting wishes.
NAMED, EXCLUDED = ("n1", "n2"), ("n3", "n4")
FEATURES = ("v100", "p100", "v100|p100")


@dataclass
class Outcome:
    """The edits that Slurm has taken, by field, and those that it no longer shows."""

    made: Counter[str] = field(default_factory=Counter)
    refused: int = 0
    lost: list[Finding] = field(default_factory=list)


def draw_edit(draw: random.Random, *, has_qos: bool) -> tuple[str, str]:
    """Return a field and its new value."""
    name = draw.choice(
        ["ReqNodeList", "ExcNodeList", "Features", "Nice", "TimeLimit", HOLD, *["QOS"] * has_qos]
    )
    values: Mapping[str, Sequence[str]] = {
        "ReqNodeList": NAMED,
        "ExcNodeList": EXCLUDED,
        "Features": FEATURES,
        "Nice": [str(draw.randrange(1, 2000))],
        "TimeLimit": [f"{draw.randrange(10, 24)}:{draw.randrange(10, 60)}:00"],
        "QOS": ("extra", "normal"),
        HOLD: ("hold",),
    }
    return name, draw.choice(values[name])


def shown(site: Site, *jobs: str) -> str:
    """Return what Slurm shows of these jobs, or of all."""
    return site.run(["scontrol", "show", "job", "-o", *jobs]).stdout


def edit_once(site: Site, task: Task, name: str, value: str, outcome: Outcome) -> None:
    """Make one edit as the job's owner; a second hold is a release."""
    before = task.edits.pop(name, None)
    if f" {name}={value} " in shown(site, task.key):
        outcome.refused += 1  # an edit to what Slurm shows already cannot be seen
        return
    words = ["update", f"JobId={task.key}", f"{name}={value}"]
    if name == HOLD:
        words = ["release" if before else "uhold", task.key]
    begun_s = time.time()
    done = site.run(["scontrol", *words])
    # Slurm 22.05.8 may ignore a nice value without an error.
    if done.returncode != 0 or (name == "Nice" and f" Nice={value} " not in shown(site, task.key)):
        outcome.refused += 1
        return
    outcome.made[name] += 1
    if words[0] != "release":
        task.note(name, Edit(value, begun_s, time.time()))


def measure(site: Site, options: argparse.Namespace, *, has_qos: bool) -> Outcome:
    """Let jobs wait under a hadard, edit them, and compare."""
    draw, outcome = random.Random(options.seed), Outcome()
    site.occupy(**{f"n{n}": "gpu:4" for n in range(1, 5)})
    site.start(mode=options.mode, round_seconds=ROUND_S, policy="hadar")
    rates = {"v100": 20.0, "p100": 10.0}
    jobs = [site.train(rates, steps=1000, gpus=draw.choice((1, 2, 4))) for _ in range(options.jobs)]
    tasks = {str(job): Task(str(job), "gang", 1, 1, time.time()) for job in jobs}
    site.until_rounds(2)
    has_hold = options.mode == "steer"
    for _ in track(range(options.edits), "edits", disable=not sys.stderr.isatty()):
        name, value = draw_edit(draw, has_qos=has_qos)
        if name != HOLD or has_hold:
            edit_once(site, tasks[draw.choice(sorted(tasks))], name, value, outcome)
        time.sleep(draw.uniform(0, 2 * options.every_s))
    site.until_rounds(QUIET_ROUNDS)
    site.hadard.stop()
    config = str(site.hadard.directory / "hadar.yaml")
    released = site.run(
        [sys.executable, "-m", "hadar_slurm.cli.main", "release", "--config", config]
    )
    if released.returncode != 0:
        raise ClusterError(f"hadar release: {released.stderr}")
    begun_s = time.time()
    seen = tuple(job for job in sightings(shown(site)) if job.key in tasks)
    outcome.lost = list(lost_edits(Sample(begun_s, time.time(), seen), tasks))
    return outcome


def add_qos(cluster: LocalCluster) -> None:
    """Add a QOS that jobs may ask for."""
    argv = ["sacctmgr", "--immediate", "--quiet"]
    for words in ("add qos extra", "modify account local set qos+=extra"):
        cluster.runner(timeout_s=60).run([*argv, *words.split()])


def accounts() -> bool:
    """Return whether accounting is installed."""
    try:
        find_binaries(accounting=True)
    except ClusterError:
        return False
    return True


def main() -> int:
    """Measure and print; return 1 if an edit was lost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--edits", type=int, default=500)
    parser.add_argument("--jobs", type=int, default=40)
    parser.add_argument("--mode", choices=("steer", "hold"), default="steer")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--every-s", type=float, default=0.1, help="mean time between edits")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    has_qos = accounts()
    with tempfile.TemporaryDirectory(prefix="edits-") as directory:
        place = Path(directory)
        place.chmod(0o755)
        (place / "jobs").mkdir()
        with LocalCluster.up(place / "c", parse_nodes(NODES), accounting=has_qos) as cluster:
            if has_qos:
                add_qos(cluster)
            site = Site(cluster, place / "jobs", dict(SETTINGS))
            begun_s = time.monotonic()
            try:
                outcome = measure(site, options, has_qos=has_qos)
            finally:
                site.close()
            wall_s = time.monotonic() - begun_s
    figures = {
        "mode": options.mode,
        "edits": outcome.made.total(),
        "by_field": dict(sorted(outcome.made.items())),
        "refused": outcome.refused,
        "lost": len(outcome.lost),
        "jobs": options.jobs,
        "wall_s": round(wall_s, 1),
    }
    if options.json:
        print(json.dumps({**figures, "findings": [f"{f.job}: {f.what}" for f in outcome.lost]}))
    else:
        for finding in outcome.lost:
            print(f"lost: job {finding.job}: {finding.what}")
        print(", ".join(f"{name} {value}" for name, value in figures.items()))
    return 1 if outcome.lost else 0


if __name__ == "__main__":
    sys.exit(main())
