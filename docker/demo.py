"""The part of docker/demo that runs in the controller's container: submit, wait, report.

Called with `plain` it submits through sbatch and notes what came of it; with `hadar` it submits the
same jobs through hadar-sbatch, once hadard shows signs of life, and prints both side by side.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from hadar_slurm.core.cluster import Cluster, JobId
from hadar_slurm.lab.demo.report import summarize_run, total_table
from hadar_slurm.lab.demo.runs import job_environment, run_jobs, submission
from hadar_slurm.lab.demo.workload import load_workload
from hadar_slurm.metrics import Summary
from hadar_slurm.slurm.client.runner import Runner
from hadar_slurm.slurm.client.state import read_nodes
from hadar_slurm.state.heartbeat import read_heartbeat, run_dir

USERS = ("alice", "bob", "carol", "dave")
# On the volume of all homes, which the nodes see as well.
ROOT = Path("/home/demo")
LIMIT_S = 300.0
HEARTBEAT_S = 60.0


class Submitter:
    """Submits the workload's jobs, each user's in turn, all into one directory."""

    def __init__(self, directory, *, with_hadar):
        """Empty `directory`, so that every user can write to it."""
        shutil.rmtree(directory, ignore_errors=True)
        (directory / "checkpoints").mkdir(parents=True)
        for path in (directory, directory / "checkpoints"):
            path.chmod(0o1777)
        self.directory = directory
        self.with_hadar = with_hadar
        self.turn = 0

    def submit(self, job):
        """Submit `job` as the next user."""
        user = USERS[self.turn % len(USERS)]
        self.turn += 1
        command = submission(job, ["hadar-sbatch"] if self.with_hadar else None)
        done = subprocess.run(
            ["runuser", "-u", user, "--", *command],
            cwd=self.directory,
            env=job_environment({}),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        match = re.search(r"Submitted batch job (\d+)", done.stdout)
        if done.returncode != 0 or match is None:
            sys.exit(f"demo: {user} could not submit {job.name}: {done.stderr.strip()}")
        return JobId(match[1])


def tell_progress(name):
    """Return the progress callback of `run_jobs`: it prints a line every ten seconds."""
    told_s = 0.0

    def tell(tally):
        nonlocal told_s
        if time.monotonic() - told_s >= 10 or tally.finished == tally.total:
            told_s = time.monotonic()
            print(f"{name}: {tally.finished}/{tally.total} done, {tally.running} running")

    return tell


def wait_for_hadard():
    """Wait for the daemon's first heartbeat: before it, jobs would go to plain Slurm."""
    deadline_s = time.monotonic() + HEARTBEAT_S
    while (beat := read_heartbeat(run_dir(os.environ))) is None or beat.good_until_s < time.time():
        if time.monotonic() > deadline_s:
            sys.exit("demo: hadard shows no sign of life; look at: docker compose logs hadard")
        time.sleep(0.2)


def main():
    """Run the workload in one way; after the second, compare."""
    way = sys.argv[1]
    runner = Runner()
    workload = load_workload()
    if way == "hadar":
        wait_for_hadard()
    runs = run_jobs(
        workload.jobs,
        Submitter(ROOT / way, with_hadar=way == "hadar"),
        runner,
        limit_s=LIMIT_S,
        on_progress=tell_progress(way),
    )
    capacity = Cluster.of(row.node for row in read_nodes(runner) if row.node.gpus).gpus_by_type
    summary = summarize_run(runs, {str(gpu_type): count for gpu_type, count in capacity.items()})
    (ROOT / f"{way}.json").write_text(json.dumps(asdict(summary)), encoding="utf-8")
    if way == "hadar":
        plain = Summary(**json.loads((ROOT / "plain.json").read_text(encoding="utf-8")))
        Console(width=80).print(total_table(plain, summary))
    unfinished = [f"{run.job.name} ({run.state})" for run in runs if not run.has_finished]
    if unfinished:
        sys.exit(f"demo: not finished as they should under {way}: {', '.join(unfinished)}")


if __name__ == "__main__":
    main()
