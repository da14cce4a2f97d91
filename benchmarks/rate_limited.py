"""What hadard does for many waiting jobs where slurmctld limits the rate of RPCs (`rl_enable`).

    python benchmarks/rate_limited.py [--mode steer] [--jobs 300] [--gpus 1] [--exempt] [--json]

A dockerized cluster is started (docs/docker.md; HADAR_DOCKER_PROJECT=NAME takes one that runs, and
changes its configuration). All of its GPUs are occupied, and described jobs of an ordinary user
wait. hadard starts as the operator `hadar`, to whom the limit applies as to every user but root.
Jobs of 8 GPUs need two nodes, whose number is set. With `--exempt` there is no limit, as for root
and SlurmUser. Printed are the time of the first round's changes, which should be below the length
of a round, and that of `hadar release`, which should be below 45 s, with the jobs that then still
have a trace of hadard in their requests.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.progress import Progress

from hadar_slurm.jobspec.comment import encode
from hadar_slurm.jobspec.description import Description

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from docker.world import DockerCluster, wait_until

ROOT = Path(__file__).parents[1]
RELEASE_LIMIT_S = 45.0
CONF = "/etc/slurm/slurm.conf"
NODES = tuple(f"n{number}" for number in range(1, 7))
# What a waiting job shows of hadard; no job here asks for any of it.
TRACES = re.compile(r" (?:(?:ReqNodeList|ExcNodeList)=(?!\(null\))\S+|Nice=(?!0 )\S+|Priority=0 )")


@contextmanager
def a_cluster(version: str) -> Iterator[DockerCluster]:
    """Start a cluster and remove it, or take the one that HADAR_DOCKER_PROJECT names."""
    if project := os.environ.get("HADAR_DOCKER_PROJECT"):
        yield DockerCluster(ROOT, project)
        return
    project = f"hadar-rate-{os.getpid()}"
    environment = {**os.environ, "COMPOSE_PROJECT_NAME": project}
    up = [str(ROOT / "docker" / "up"), "--slurm", version]
    try:
        subprocess.run(up, env=environment, check=True)
        yield DockerCluster(ROOT, project)
    finally:
        subprocess.run([str(ROOT / "docker" / "down")], env=environment, check=False)


def docker(*words: str) -> None:
    """Run the engine's client."""
    subprocess.run(["docker", *words], check=True, capture_output=True)


def limit_rate(cluster: DockerCluster, *, is_exempt: bool) -> None:
    """Stop hadard, and restart slurmctld without jobs, with the limit or without."""
    cluster.run("scancel", "--partition=main")
    docker("stop", "--time", "5", cluster.containers["hadard"])
    limit = "" if is_exempt else f"; echo SlurmctldParameters=rl_enable >>{CONF}"
    cluster.run("sh", "-c", f"sed -i /rl_enable/d {CONF}{limit}")
    docker("restart", "--time", "15", cluster.containers["ctl"])
    # Each with its GPUs: a job that starts on a node which has not reported may get none.
    names = ",".join(NODES)
    wait_until(
        lambda: cluster.attempt("sinfo", "-h", "-N", "-p", "main", "-t", "idle", "-n", names).stdout
        .count("\n") == len(NODES),
        "the nodes are idle again",
    )  # fmt: skip


def fill(cluster: DockerCluster, jobs: int, gpus: int) -> None:
    """Occupy all GPUs, and submit described jobs that wait; as root, whom no limit slows."""
    told = encode(
        Description(
            steps=10**6, gpus=gpus, throughputs={"v100": 20.0, "p100": 10.0}, checkpoint=True
        )
    )
    script = "for node in n1 n2 n3 n4 n5 n6; do sbatch -Q --uid=alice -w $node --gpus-per-node=4 "
    script += "--chdir=/tmp --output=/dev/null --wrap 'sleep 3000'; done; sleep 2; "
    script += f"for i in $(seq {jobs}); do sbatch -Q --uid=bob --gpus={gpus} --chdir=/tmp "
    script += f"--output=/dev/null --comment={shlex.quote(told)} --wrap 'sleep 3000'; done"
    done = cluster.attempt("sh", "-c", script, limit_s=600)
    if done.returncode != 0:
        raise SystemExit(f"the jobs cannot be submitted: {done.stderr.strip()[-300:]}")


def first_rounds(cluster: DockerCluster, round_s: float, mode: str) -> list[dict[str, Any]]:
    """Start hadard with rounds of this length, and return the journal's lines of two rounds."""
    config = (ROOT / "docker" / "hadar.yaml").read_text()
    config = re.sub(r"round_seconds: .*", f"round_seconds: {round_s:g}", config)
    config = config.replace("main: steer", f"main: {mode}")
    config = re.sub(r"poll_seconds: .*", "poll_seconds: 5", config)  # as at a site
    target = f"{cluster.containers['hadard']}:/etc/hadar/hadar.yaml"
    draft = Path(f"/tmp/hadar-rate-{os.getpid()}.yaml")
    try:
        draft.write_text(config)
        docker("cp", str(draft), target)
    finally:
        draft.unlink()
    cluster.run("sh", "-c", ": >/var/log/hadar/journal.jsonl; chown hadar: /var/log/hadar/*")
    docker("start", cluster.containers["hadard"])
    lines: list[dict[str, Any]] = []

    def are_two() -> bool:
        text = cluster.run("cat", "/var/log/hadar/journal.jsonl")
        lines[:] = [json.loads(line) for line in text.splitlines() if line.endswith("}")]
        return sum("durations_s" in line for line in lines) >= 2

    wait_until(are_two, "two rounds of hadard", limit_s=8 * round_s + 120)
    return [line for line in lines if "durations_s" in line]


def traces(cluster: DockerCluster) -> int:
    """Return how many waiting jobs show something of hadard."""
    shown = cluster.run("scontrol", "show", "job", "-o")
    waiting = [line for line in shown.splitlines() if " JobState=PENDING " in line]
    return sum(TRACES.search(line) is not None for line in waiting)


def measure(cluster: DockerCluster, options: argparse.Namespace) -> dict[str, float]:
    """Return the figures."""
    with Progress(disable=not sys.stderr.isatty()) as progress:
        bar = progress.add_task("the limit", total=4)

        def next_is(words: str) -> None:
            progress.update(bar, advance=1, description=words)

        limit_rate(cluster, is_exempt=options.exempt)
        next_is("jobs")
        fill(cluster, options.jobs, options.gpus)
        next_is("rounds")
        rounds = first_rounds(cluster, options.round_s, options.mode)
        touched = traces(cluster)
        docker("kill", cluster.containers["hadard"])
        before_release = traces(cluster)
        next_is("release")
        begun_s = time.monotonic()
        done = cluster.attempt("hadar", "release", "--force", user="hadar", limit_s=600)
        release_s = time.monotonic() - begun_s
        if done.returncode != 0:
            print(f"hadar release: {done.stderr.strip()[-600:]}", file=sys.stderr)
    first = rounds[0]
    return {
        "jobs": options.jobs,
        "round_s": options.round_s,
        "first_round_s": round(sum(first["durations_s"].values()), 1),
        "first_changes_s": round(first["durations_s"].get("apply", 0.0), 1),
        "touched": touched,
        "touched_before_release": before_release,
        "release_s": round(release_s, 1),
        "release_status": done.returncode,
        "traces_left": traces(cluster),
    }


def main() -> int:
    """Measure and print; return 1 if a limit is passed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=300)
    parser.add_argument("--mode", choices=("steer", "hold"), default="steer")
    parser.add_argument("--gpus", type=int, default=1, help="of each job")
    parser.add_argument("--round-s", type=float, default=60.0, help="the length of hadard's rounds")
    parser.add_argument("--slurm", choices=("24.11", "26.05"), default="24.11")
    parser.add_argument("--exempt", action="store_true", help="without the limit")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with a_cluster(options.slurm) as cluster:
        hadard = cluster.containers["hadard"]
        try:
            figures = measure(cluster, options)
        finally:
            docker("start", hadard)
    if options.json:
        print(json.dumps(figures))
    else:
        print(", ".join(f"{name} {value}" for name, value in figures.items()))
    is_slow = figures["first_changes_s"] > options.round_s or figures["release_s"] > RELEASE_LIMIT_S
    return 1 if is_slow or figures["release_status"] or figures["traces_left"] else 0


if __name__ == "__main__":
    sys.exit(main())
