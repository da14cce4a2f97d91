"""HadarE beside Hadar, the best single node and plain Slurm, on the dockerized cluster.

    python benchmarks/hadare/cluster.py --json FILE [--seeds 0] [SYSTEM...]

Five nodes are paced to speeds 1, 1, 0.5, 0.5 and 0.2 (`paced_task.py`); the sixth is drained. Each
system runs the same steps: `one-node`, `one-hadare` train one job on the best node and in five
copies; `four-slurm`, `four-hadar`, `four-hadare` train four jobs at once. The time of a job is from
when all jobs are there, and may be started, until its last checkpoint can be read. Runs are lines
of FILE, with the pace that was achieved and the slots as they came about; what is there is not run
again.

The nodes use this machine's Python and PyTorch, copied to the cluster's shared file system.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import partial
from itertools import chain, product
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
PROJECT = "hadar-study"
SPEEDS = {"n1": 1.0, "n2": 1.0, "n3": 0.5, "n4": 0.5, "n5": 0.2}
KINDS = {"v100": 1.0, "p100": 0.5, "k80": 0.2}
PERIOD_S = 0.26
GPUS = 4  # a whole node
ONE_STEPS, FOUR_STEPS = 2400, 900
ONE_SLOT_S, FOUR_SLOT_S = 30.0, 45.0
# Time that Python and PyTorch take to start on several nodes at once, which share two cores.
RESTART_S = 15
SOFTWARE = "/home/study"
LIMIT_S = 1800.0
# A run is void whose copies were off their pace by more, or computed for a larger part of it.
OFF_PACE, COMPUTING = 0.03, 0.4
SYSTEMS = ("one-node", "one-hadare", "four-slurm", "four-hadar", "four-hadare")


@dataclass(frozen=True)
class Cluster:
    """The containers of one project of docker/compose.yaml."""

    project: str = PROJECT

    def docker(self, script: str, *words: str) -> None:
        """Run a script of docker/ on this cluster."""
        environment = {**os.environ, "COMPOSE_PROJECT_NAME": self.project}
        subprocess.run([REPOSITORY / "docker" / script, *words], env=environment, check=True)

    def name(self, service: str) -> str:
        """Return a container's name."""
        label = "label=com.docker.compose"
        words = ["docker", "ps", "-q", "--filter", f"{label}.project={self.project}"]
        words += ["--filter", f"{label}.service={service}"]
        return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()

    def argv(self, *words: str, user: str = "root", where: str = "/") -> list[str]:
        """Return the command that runs `words` on the controller."""
        options = ["--user", user, "--workdir", where]
        return ["docker", "exec", "-i", *options, self.name("ctl"), *words]

    def run(self, *words: str, user: str = "root", where: str = "/", stdin: str = "") -> str:
        """Return what a command prints on the controller; it must succeed."""
        done = subprocess.run(
            self.argv(*words, user=user, where=where),
            input=stdin, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise SystemExit(f"{' '.join(words)}: {done.stderr.strip()}")
        return done.stdout

    def prepare(self) -> None:
        """Start the cluster and give its nodes Python, PyTorch and our code."""
        self.docker("up")
        self.run("scontrol", "update", "NodeName=n6", "State=DRAIN", "Reason=study")
        site = next(path for path in sys.path if path.endswith("site-packages"))
        not_needed = ("torch/include", "torch/test", "scipy*", "pulp*", "matplotlib", "mypy*")
        excluded = [f"--exclude={name}" for name in ("test", *not_needed)]
        for source, what, target in (
            (sys.base_prefix, ["bin", "lib"], "python"),
            (site, ["."], "site"),
            (str(REPOSITORY), ["hadar_slurm", "benchmarks"], "project"),
        ):
            more = ["--exclude=site-packages"] if target == "python" else excluded
            self.run("mkdir", "-p", f"{SOFTWARE}/{target}")
            tar = ["tar", "-C", source, *more, "-c", *what]
            packing = subprocess.Popen(tar, stdout=subprocess.PIPE)
            words = self.argv("tar", "-C", f"{SOFTWARE}/{target}", "--no-same-owner", "-x")
            subprocess.run(words, stdin=packing.stdout, check=True)
            packing.wait()
        self.run("mkdir", "-p", f"{SOFTWARE}/jobs")
        self.run("chmod", "1777", f"{SOFTWARE}/jobs")

    def have_hadard(self, policy: str, slot_s: float) -> None:
        """Set hadard's policy and slot length, and reload it."""
        container = self.name("hadard")
        before = self.run("cat", "/etc/hadar/hadar.yaml")
        ours = re.compile("policy|round_seconds|restart_cost")
        kept = [line for line in before.splitlines() if not ours.match(line)]
        lines = [f"policy: {policy}", f"round_seconds: {slot_s:g}", *kept]
        lines += [f"restart_cost_seconds: {RESTART_S}", ""]
        words = ["docker", "exec", "-i", container, "sh", "-c", "cat > /etc/hadar/hadar.yaml"]
        subprocess.run(words, input="\n".join(lines), text=True, check=True)
        words = ["docker", "kill", "--signal=HUP", container]
        subprocess.run(words, check=True, capture_output=True)
        time.sleep(3.0)

    def hadard(self, what: str) -> None:
        """Have hadard's container `pause` or `unpause`."""
        subprocess.run(["docker", what, self.name("hadard")], check=True, capture_output=True)


def script(steps: int, slot_s: float, seed: int, task: str) -> str:
    """Return the batch script of a job; the same for every system."""
    speeds = ",".join(f"{node}={speed}" for node, speed in SPEEDS.items())
    program = f"{SOFTWARE}/project/benchmarks/hadare/paced_task.py"
    return f"""\
#!/bin/bash
trap '' USR1
[[ -e hadar-$SLURM_ARRAY_JOB_ID/done ]] && exit
export LD_LIBRARY_PATH={SOFTWARE}/python/lib
export PYTHONPATH={SOFTWARE}/site:{SOFTWARE}/project PYTHONDONTWRITEBYTECODE=1
exec {SOFTWARE}/python/bin/python3.11 {program} --task {task} --optimiser sgd --steps {steps} \
--seed {seed} --period {PERIOD_S} --speeds {speeds} --slot {slot_s}
"""


def submit(cluster: Cluster, system: str, steps: int, where: str, text: str) -> str:
    """Submit one job as alice, held, and return its number."""
    policy = system.split("-", 1)[1]
    request = ["--nodes=1", f"--gpus-per-node={GPUS}", "--time=60", "--requeue"]
    if policy == "node":
        command = ["sbatch", "--hold", "--nodelist=n1"]
    elif policy == "slurm":
        command = ["sbatch", "--hold"]
    else:
        rates = ",".join(f"{kind}={speed / PERIOD_S:.4f}" for kind, speed in KINDS.items())
        command = ["hadar-sbatch", f"--hadar-throughput={rates}", f"--hadar-steps={steps}"]
        command += [f"--hadar-gang={GPUS}x1", "--hadar-checkpoint=yes"]
        if policy == "hadare":
            command.append(f"--hadar-copies={len(SPEEDS)}")
    said = cluster.run(*command, *request, user="alice", where=where, stdin=text)
    found = re.search(r"Submitted batch job (\d+)", said)
    if found is None:
        raise SystemExit(f"{system}: not submitted: {said}")
    return found[1]


def run(cluster: Cluster, system: str, seed: int, task: str) -> dict[str, Any]:
    """Run one system once and return its record."""
    number, policy = system.split("-", 1)
    is_one, is_ours = number == "one", policy in ("hadar", "hadare")
    steps, slot_s = (ONE_STEPS, ONE_SLOT_S) if is_one else (FOUR_STEPS, FOUR_SLOT_S)
    cluster.have_hadard(policy if is_ours else "hadar", slot_s)
    where = f"{SOFTWARE}/jobs/{system}-{seed}-{int(time.time())}"
    cluster.run("mkdir", where, user="alice")
    # All jobs are queued under a hold before the clock starts.
    cluster.hadard("pause")
    try:
        jobs = [
            submit(cluster, system, steps, where, script(steps, slot_s, seed + n, task))
            for n in range(1 if is_one else 4)
        ]
    finally:
        begun_s = time.time()
        cluster.hadard("unpause")
    if not is_ours:
        cluster.run("scontrol", "release", ",".join(jobs))
    slots = recorded(cluster, where, jobs)
    digests = [lines.pop()["digest"] for lines in slots]
    ended_s = max(lines[-1]["ended_s"] for lines in slots)
    wait_for_end(cluster, jobs)
    collect = partial(cluster.run, "python3", "-c", _COLLECT, user="alice")
    stretches = {job: json.loads(collect(f"{where}/hadar-{job}")) for job in jobs}
    tasks = held(cluster, jobs)
    return {
        "system": system,
        "seed": seed,
        "task": task,
        "steps": steps,
        "seconds": ended_s - begun_s,
        "jobs": [lines[-1]["ended_s"] - begun_s for lines in slots],
        "cru": cru(tasks, begun_s, ended_s),
        "begun_s": begun_s,
        "slots": slots,
        "digests": digests,
        "pace": pace(stretches),
        "tasks": tasks,
    }


def recorded(cluster: Cluster, where: str, jobs: list[str]) -> list[list[dict[str, Any]]]:
    """Return what `watch_slots.py` prints of each job until it ends."""
    watch = [
        *("env", f"LD_LIBRARY_PATH={SOFTWARE}/python/lib"),
        f"PYTHONPATH={SOFTWARE}/site:{SOFTWARE}/project",
        f"{SOFTWARE}/python/bin/python3.11",
        f"{SOFTWARE}/project/benchmarks/hadare/watch_slots.py",
    ]
    watchers = [
        subprocess.Popen(
            cluster.argv(*watch, f"{where}/hadar-{job}", user="alice"),
            stdout=subprocess.PIPE, text=True,
        )
        for job in jobs
    ]  # fmt: skip
    try:
        return [
            [json.loads(line) for line in watcher.communicate(timeout=LIMIT_S)[0].splitlines()]
            for watcher in watchers
        ]
    finally:
        for watcher in watchers:
            watcher.kill()


_COLLECT = """
import json, pathlib, sys
found = {}
for path in sorted(pathlib.Path(sys.argv[1]).glob("paced-*.jsonl")):
    found[path.stem] = [json.loads(line) for line in path.read_text().splitlines()]
print(json.dumps(found))
"""


def wait_for_end(cluster: Cluster, jobs: list[str]) -> None:
    """Wait until Slurm has no task of these jobs any more."""
    while cluster.run("squeue", "-h", "-j", ",".join(jobs), "-o", "%i").strip():
        time.sleep(0.5)
    time.sleep(2.0)


def held(cluster: Cluster, jobs: list[str]) -> list[dict[str, Any]]:
    """Return from Slurm's accounting when which node was held, requeued runs included."""
    words = ["sacct", "-n", "-P", "-X", "-D", "-j", ",".join(jobs)]
    words += ["-o", "JobID,NodeList,Start,End,State"]
    text = cluster.run("env", "SLURM_TIME_FORMAT=%s", *words)
    rows = [line.split("|") for line in text.splitlines()]
    return [
        {"job": job, "node": node, "start_s": float(start), "end_s": float(end), "state": state}
        for job, node, start, end, state in rows
        if node in SPEEDS and start.isdecimal() and end.isdecimal()
    ]


def cru(tasks: list[dict[str, Any]], begun_s: float, ended_s: float) -> float:
    """Return the part of the nodes' time that jobs held them, until the last job's end."""
    busy_s = sum(
        max(0.0, min(task["end_s"], ended_s) - max(task["start_s"], begun_s)) for task in tasks
    )
    return busy_s / (len(SPEEDS) * (ended_s - begun_s))


def pace(stretches: dict[str, Any]) -> dict[str, float]:
    """Return the largest error of a copy's pace, and the largest part of it spent computing.

    A stretch's first step has no step before it to be late after; short ones say little.
    """
    worst = computing = 0.0
    of_copies = chain.from_iterable(copies.values() for copies in stretches.values())
    for one in chain.from_iterable(of_copies):
        if one["steps"] >= 10:
            step_s = (one["ended_s"] - one["begun_s"]) / one["steps"]
            speed = min(KINDS.values(), key=lambda s: abs(PERIOD_S / s - step_s))
            worst = max(worst, abs(step_s * speed / PERIOD_S - 1.0))
            computing = max(computing, one["computed_s"] / one["steps"] / PERIOD_S)
    return {"off": worst, "computing": computing}


def main() -> None:
    """Run what is not there yet."""
    words = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    words.add_argument("systems", nargs="*", metavar="SYSTEM", help=", ".join(SYSTEMS))
    words.add_argument("--json", type=Path, required=True)
    words.add_argument("--seeds", default="0", help="comma-separated")
    words.add_argument("--task", default="images")
    words.add_argument("--keep", action="store_true", help="leave the cluster running")
    options = words.parse_args()
    wrong = set(options.systems) - set(SYSTEMS)
    if wrong:
        words.error(f"unknown system {min(wrong)}: expected {', '.join(SYSTEMS)}")
    lines = options.json.read_text().splitlines() if options.json.exists() else []
    there = {(line["system"], line["seed"], line["task"]) for line in map(json.loads, lines)}
    seeds = map(int, options.seeds.split(","))
    runs = product(seeds, options.systems or SYSTEMS)
    cluster = Cluster()
    cluster.prepare()
    try:
        for seed, system in runs:
            if (system, seed, options.task) in there:
                continue
            print(f"{time.strftime('%H:%M:%S')} {system}, seed {seed} ...", flush=True)
            line = run(cluster, system, seed, options.task)
            off, computing = line["pace"]["off"], line["pace"]["computing"]
            is_void = off > OFF_PACE or computing > COMPUTING
            with options.json.open("a", encoding="utf-8") as file:
                file.write(json.dumps({**line, "is_void": is_void}) + "\n")
            print(
                f"  {line['seconds']:.1f} s, CRU {line['cru']:.3f}, pace off by at most {off:.2%}, "
                f"computing {computing:.0%}" + ", VOID" * is_void,
                flush=True,
            )
    finally:
        if not options.keep:
            cluster.docker("down")


if __name__ == "__main__":
    main()
