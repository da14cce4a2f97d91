"""Plays a list under hadard in mode `steer`, on a real Slurm and in the simulator.

hadard knows of a job on its first day what the simulated policy knows: its throughputs and its time
limit, and that it cannot be moved. Its users name no GPU types. Time is compressed for hadard too:
its rounds last seconds, and the simulator plays the same seconds.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import hadar_slurm.cli.sbatch
import hadar_slurm.submit
from hadar_slurm.devcluster.cluster import LocalCluster
from hadar_slurm.lab.demo.runs import Daemon
from hadar_slurm.lab.policies.slurm.policy import PlainSlurm
from hadar_slurm.lab.study.experiment import LIMIT, ExperimentSettings, run_experiment
from hadar_slurm.policies.registry import make_policy
from slurm_fidelity.jobs import JobList, ListedJob, Play
from slurm_fidelity.real import PlayError, Say, Submit, Way, play
from slurm_fidelity.settings import policy_name
from slurm_fidelity.simulated import LAGS_S, as_play, cluster_of, spec_of
from slurm_fidelity.under_steer import UnderSteer

ROUND_S, POLL_S = 2.0, 0.5
_SETTINGS = {
    "mode": "steer",
    "sizes": "limit",
    "round_seconds": ROUND_S,
    "poll_seconds": POLL_S,
    "grace_seconds": 5,
    "pin_timeout_seconds": 10,
}
# How often Slurm looks at its queue (settings.py).
PASS_S = 1.0
# Of the jobs that Slurm could start at once, those that it started before hadard saw them: 65 of
# 223 in six of the plays, by their journals.
LATE = 0.29
# Any number of steps does: only their pace on one type beside another is known to matter.
_STEPS = 1e6
_LEFT = "plain Slurm places this job"


def as_asked(jobs: JobList) -> JobList:
    """Return a list as its users write its jobs where hadard chooses the GPU types."""
    return replace(jobs, choice="any", form="gpus" if jobs.form == "gpus" else "nodes")


def play_steered(jobs: JobList, *, say: Say, logs: Path) -> Play:
    """Play a list under hadard, whose log and journal are copied to `logs`; raises PlayError."""
    return play(as_asked(jobs), way=steering(jobs, logs), say=say)


def steering(jobs: JobList, logs: Path) -> Way:
    """Return the way of a play under hadard, which steers all jobs of the list."""

    @contextmanager
    def way(cluster: LocalCluster, scratch: Path) -> Iterator[Submit]:
        table = scratch / "throughputs.json"
        table.write_text(throughput_table(jobs), encoding="utf-8")
        environment = {**os.environ, **cluster.environment()}
        places = {
            "slurm_conf": cluster.slurm_conf,
            "run_dir": cluster.directory / "run",
            "spool_dir": cluster.directory / "spool",
            "state_dir": scratch / "state",
            "disable_file": scratch / "disabled",
            "throughputs": table,
        }
        daemon, said = Daemon(scratch, environment, {**_SETTINGS, **places}), scratch / "said"
        try:
            with daemon.running():
                yield _by_hadar_sbatch(environment, said)
                if daemon.process is None or daemon.process.poll() is not None:
                    raise PlayError(f"hadard has ended: {daemon.log.read_text()[-2000:]}")
                left = [line for line in said.read_text().splitlines() if _LEFT in line]
                if left:
                    raise PlayError(f"{len(left)} jobs are left to plain Slurm: {left[0]}")
        finally:
            for file in (daemon.log, daemon.journal, said):
                if file.exists():
                    shutil.copy(file, logs / f"{jobs.name}-{file.name}")

    return way


def simulate_steered(jobs: JobList, *, seed: int = 0, is_alone: bool = False) -> Play:
    """Return what the simulator makes of a list, in the seconds of the real play.

    With `is_alone` hadard places all jobs itself, as policy `hadar` in `hadar compare`; without it
    Slurm starts them within its limits. Jobs hold their GPUs for some tenths of a second more, in
    which Slurm sees their end, drawn from the seed.
    """
    asked, draw = in_real_time(as_asked(jobs)), random.Random(f"steered {seed}")
    begin_s = 2.0 + draw.uniform(0.0, PASS_S)
    specs, held_s, limits_s = [], {}, {}
    for job in asked.jobs:
        lag_s = held_s[job.number] = draw.uniform(*LAGS_S) + is_alone * draw.uniform(0.0, PASS_S)
        submitted_s = begin_s + job.submit_s + draw.uniform(*LAGS_S)
        submitted_s += is_alone * draw.uniform(0.0, PASS_S)
        seconds = {k: (a + lag_s, b + lag_s) for k, (a, b) in job.seconds.items()}
        limit_s = asked.limit_s(job)
        spec = spec_of(job, asked, seconds, submitted_s=submitted_s, limit_s=limit_s)
        # hadard takes a limit as one on the slowest type, and sees one Unix user.
        user = job.user if jobs.fairshare != "no" and not is_alone else ""
        specs.append(replace(spec, user=user, limit_type=""))
        limits_s[spec.job_id] = limit_s
    policy = make_policy("hadar")
    if not is_alone:
        plain = make_policy(policy_name(asked))
        assert isinstance(plain, PlainSlurm)
        late = frozenset(job_id for job_id in limits_s if draw.random() < LATE)
        policy = UnderSteer(policy, plain, limits_s, late)
    settings = ExperimentSettings(round_s=ROUND_S if is_alone else PASS_S, sizes=LIMIT)
    found = as_play(asked, run_experiment(specs, cluster_of(asked), policy, settings), begin_s)
    runs = {n: replace(run, end_s=run.end_s - held_s[n]) for n, run in found.runs.items()}
    return replace(found, runs=runs)


def in_real_time(jobs: JobList) -> JobList:
    """Return a list with the seconds in which it is played."""
    times = float(jobs.compression)
    scaled = tuple(
        replace(
            job,
            submit_s=job.submit_s / times,
            seconds={k: (a / times, b / times) for k, (a, b) in job.seconds.items()},
        )
        for job in jobs.jobs
    )
    return replace(jobs, jobs=scaled, compression=1)


def throughput_table(jobs: JobList) -> str:
    """Return the table of throughputs that hadard reads: each job is a workload of its own."""
    rows = {
        f"j{job.number}": {
            gpu_type: {str(job.gpus): [_STEPS / seconds for seconds in pair]}
            for gpu_type, pair in job.seconds.items()
        }
        for job in jobs.jobs
    }
    return json.dumps({"source": f"list {jobs.name}", "workloads": rows})


def _by_hadar_sbatch(environment: dict[str, str], said: Path) -> Submit:
    """Return a way to submit by hadar-sbatch, in a copy of this process: it starts at once."""

    def submit(job: ListedJob, words: Sequence[str]) -> None:
        own = [f"--hadar-model=j{job.number}", *words]
        child = os.fork()
        if child == 0:
            _become(own, environment, said)
        if status := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
            raise PlayError(f"hadar-sbatch: status {status}: {said.read_text()[-1000:]}")

    return submit


def _become(words: Sequence[str], environment: dict[str, str], said: Path) -> None:
    """Execute hadar-sbatch in place of this process, its output into a file."""
    status = 1
    try:
        os.environ.clear()
        os.environ.update(environment)
        sys.argv = ["hadar-sbatch", *words]
        output = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        status = hadar_slurm.cli.sbatch.main(words)
    finally:
        os._exit(status)
