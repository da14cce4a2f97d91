"""Plays a list on a Slurm of this machine's own, in compressed time, with jobs that sleep.

A job sleeps as long as it would run on the slowest of the types that it got. Everything that is
started ends with the play, whatever happens.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from hadar_slurm.devcluster.cluster import LocalCluster
from hadar_slurm.devcluster.config import NodeShape
from hadar_slurm.errors import HadarError
from slurm_fidelity.jobs import MINUTE_S, JobList, ListedJob, Play, Run
from slurm_fidelity.settings import (
    CALC_PERIOD_MIN,
    one_of_each_tier,
    qos,
    sbatch_options,
    slurm_conf,
)

Say = Callable[[str], None]
# Submits a job with these words of sbatch.
Submit = Callable[[ListedJob, Sequence[str]], object]

# $1 is the job's number; the others are TYPE:SECONDS-WITHIN-A-NODE:SECONDS-OVER-SEVERAL, the
# slowest type first.
_SCRIPT = """#!/bin/bash
echo "$1 begin $EPOCHREALTIME" >> {log}
# GPUs by node, which Slurm shows of running jobs only.
scontrol --details --oneliner show job "$SLURM_JOB_ID" > {log}."$1" &
for each in "${{@:2}}"; do
  IFS=: read -r type within over <<< "$each"
  [[ ,$SLURM_JOB_NODELIST == *-$type-* ]] || continue
  if [ "$SLURM_JOB_NUM_NODES" -gt 1 ]; then sleep "$over"; else sleep "$within"; fi
  break
done
echo "$1 end $EPOCHREALTIME" >> {log}
wait
"""
_HELD = re.compile(r" Nodes=(\S+) .*?GRES=gpu:[^:]+:([0-9]+)")
# How much longer than its jobs a play may take, and what it may take in any case; real seconds.
_MOST_TIMES, _LEAST_S = 4.0, 300.0
# From the start of slurmctld until it computes priorities, measured on 22.05.8; 24.11.5, 26.05.5.
_OLD_PERIOD_S, _PERIOD_S = 1.0, 0.1


class PlayError(HadarError):
    """A list could not be played to its end."""


@dataclass(frozen=True, slots=True)
class _Stage:
    """A cluster that is ready for the jobs; priorities were computed `period_at` (epoch)."""

    cluster: LocalCluster
    script: Path
    log: Path
    period_at: float


# Given a cluster and an empty directory, how jobs are submitted during a play.
Way = Callable[[LocalCluster, Path], AbstractContextManager[Submit]]


@contextmanager
def plainly(cluster: LocalCluster, scratch: Path) -> Iterator[Submit]:
    """Submit jobs by sbatch."""
    run = cluster.runner(timeout_s=60).run
    yield lambda job, words: run(["sbatch", "--parsable", *words])


def play(
    jobs: JobList, *, way: Way = plainly, say: Say = lambda line: None, most_s: float = 0.0
) -> Play:
    """Play a list and return what happened; raises PlayError after `most_s` real seconds."""
    most_s = most_s or max(_LEAST_S, _MOST_TIMES * _work_s(jobs))
    with _stage(jobs, say) as stage:
        scratch = stage.log.parent / "way"
        scratch.mkdir()
        with way(stage.cluster, scratch) as submit:
            began_at, late_s = _submit(jobs, stage, submit, say)
            _wait(jobs, stage, began_at, most_s, say)
        runs = _runs(jobs, stage, began_at)
        version = stage.cluster.runner().run(["sinfo", "-V"]).split()[-1]
    period_s = CALC_PERIOD_MIN * MINUTE_S
    since_s = (began_at - stage.period_at) % period_s if jobs.fairshare != "no" else 0.0
    return Play(
        jobs.name,
        version,
        datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
        runs,
        round(late_s, 2),
        round(os.getloadavg()[0], 1),
        round(since_s * jobs.compression, 1),
        round(began_at, 2),
    )


def _work_s(jobs: JobList) -> float:
    """Return how long all jobs would take on the whole cluster, from the last submission."""
    gpus = sum(pool.nodes * pool.gpus for pool in jobs.pools)
    work = sum(job.gpus * max(b for _, b in job.seconds.values()) for job in jobs.jobs)
    return (max(job.submit_s for job in jobs.jobs) + work / gpus) / jobs.compression


@contextmanager
def _stage(jobs: JobList, say: Say) -> Iterator[_Stage]:
    """Start the cluster, with an account for each user where fair share counts."""
    base = Path(tempfile.mkdtemp(prefix="hadar-fid-"))
    base.chmod(0o755)
    sizes = {pool.gpu_type: pool.gpus for pool in jobs.pools}
    shapes = [NodeShape(node, {name: sizes[name]}) for node, name in jobs.node_types().items()]
    counts_shares = jobs.fairshare != "no"
    say(f"starting {len(shapes)} nodes")
    try:
        with LocalCluster.up(
            base / "c",
            shapes,
            accounting=counts_shares or jobs.has_qos,
            timeout_s=180,
            slurmd_timeout_s=3000,
            settings=slurm_conf(jobs),
        ) as cluster:
            period_at = _with_weights(cluster, jobs)
            script, log = base / "job.sh", base / "log"
            script.write_text(_SCRIPT.format(log=log), encoding="utf-8")
            log.touch()
            yield _Stage(cluster, script, log, period_at)
    finally:
        shutil.rmtree(base, ignore_errors=True)


def _with_weights(cluster: LocalCluster, jobs: JobList) -> float:
    """Start slurmctld again with the nodes' weights; return when priorities are computed (epoch).

    In slurm.conf, since from 24.11 on planned starts do not heed those that scontrol sets. It
    computes priorities when it starts, and at each PriorityCalcPeriod.
    """
    weights = {
        node: 10 * place
        for place, pool in enumerate(jobs.pools, 1)
        for node, gpu_type in jobs.node_types().items()
        if gpu_type == pool.gpu_type
    }
    text = cluster.slurm_conf.read_text(encoding="utf-8")
    for node, weight in weights.items():
        text = text.replace(f"NodeName={node} ", f"NodeName={node} Weight={weight} ")
    if jobs.fairshare != "no":
        # Otherwise fair share counts CPUs.
        billing = "TRESBillingWeights=CPU=0,GRES/gpu=1"
        text = text.replace("PartitionName=main ", f"PartitionName=main {billing} ")
        _make_accounts(cluster, jobs)
    if jobs.has_qos:
        _make_qos(cluster, jobs)
    cluster.slurm_conf.write_text(text, encoding="utf-8")
    cluster.stop_controller()
    began_at = time.time()
    cluster.start_controller(timeout_s=60)
    deadline = time.time() + 60
    while time.time() < deadline:
        if all(node.state == "idle" for node in cluster.status().nodes):
            version = cluster.runner().run(["sinfo", "-V"]).split()[-1]
            return began_at + (_OLD_PERIOD_S if version.startswith("22.") else _PERIOD_S)
        time.sleep(0.2)
    raise PlayError(f"nodes are not idle again: {cluster.status().nodes}")


def _make_accounts(cluster: LocalCluster, jobs: JobList) -> None:
    """Make an account for each user, of which each has one share."""
    run = cluster.runner(timeout_s=60).run
    me = run(["id", "-un"]).strip()
    for user in sorted({job.user for job in jobs.jobs}):
        run(["sacctmgr", "--immediate", "add", "account", user])
        run(["sacctmgr", "--immediate", "add", "user", me, f"account={user}"])
    # slurmdbd sends them to slurmctld.
    time.sleep(1.0)


def _make_qos(cluster: LocalCluster, jobs: JobList) -> None:
    """Make a QOS for each tier, which preempts all lower ones, and let the user have them all.

    slurmctld reads them when it starts again.
    """
    run = cluster.runner(timeout_s=60).run
    me, lower = run(["id", "-un"]).strip(), ["normal"]
    for job in one_of_each_tier(jobs):
        name = qos(job)
        preempt = [f"Preempt={','.join(lower)}"] * bool(jobs.preempts)
        run(["sacctmgr", "--immediate", "add", "qos", name, f"Priority={job.tier}", *preempt])
        run(["sacctmgr", "--immediate", "modify", "user", me, "set", f"qos+={name}"])
        lower.append(name)


def _submit(jobs: JobList, stage: _Stage, submit: Submit, say: Say) -> tuple[float, float]:
    """Submit every job at its time; return when time 0 was, and how late one was at most."""
    began_at, late_s = time.time() + 0.5, 0.0
    for count, job in enumerate(jobs.jobs, 1):
        due_at = began_at + job.submit_s / jobs.compression
        while (left_s := due_at - time.time()) > 0:
            time.sleep(min(left_s, 0.2))
        late_s = max(late_s, -left_s)
        account = [f"--account={job.user}"] if jobs.fairshare != "no" else []
        words = ["--output=/dev/null", "--chdir=/", *account]
        words += [f"--job-name=j{job.number}", *sbatch_options(job, jobs)]
        submit(job, [*words, str(stage.script), str(job.number), *_pace(job, jobs.compression)])
        if count % 20 == 0:
            say(f"{count} of {len(jobs.jobs)} jobs submitted, {time.time() - began_at:.0f} s")
    return began_at, late_s


def _pace(job: ListedJob, compression: int) -> list[str]:
    slowest_first = sorted(job.seconds.items(), key=lambda item: -item[1][0])
    return [f"{name}:{a / compression:.3f}:{b / compression:.3f}" for name, (a, b) in slowest_first]


def _wait(jobs: JobList, stage: _Stage, began_at: float, most_s: float, say: Say) -> None:
    """Wait until no job runs or waits."""
    told_at = 0.0
    while left := stage.cluster.runner(timeout_s=60).run(["squeue", "-h", "-o", "%T"]).split():
        now = time.time()
        if now > began_at + most_s:
            raise PlayError(f"{jobs.name}: {len(left)} jobs have not ended after {most_s:.0f} s")
        if now > told_at + 20:
            say(
                f"{left.count('RUNNING')} run, {left.count('PENDING')} wait, {now - began_at:.0f} s"
            )
            told_at = now
        time.sleep(0.5)


def _runs(jobs: JobList, stage: _Stage, began_at: float) -> dict[int, Run]:
    """Return the jobs' runs: what their scripts wrote, and what Slurm says of those it ended."""
    at: dict[tuple[int, str], float] = {}
    for line in stage.log.read_text(encoding="utf-8").splitlines():
        number, what, moment = line.split()
        at[int(number), what] = (float(moment) - began_at) * jobs.compression
    text = stage.cluster.runner(timeout_s=60).run(["scontrol", "--oneliner", "show", "job"])
    runs: dict[int, Run] = {}
    for line in text.splitlines():
        fields = dict(re.findall(r"(?:^| )(\w+)=(\S*)", line))
        number = int(fields["JobName"].removeprefix("j"))
        if (number, "begin") not in at:
            continue
        end_s = at.get((number, "end")) or _ended_s(fields, began_at) * jobs.compression
        details = Path(f"{stage.log}.{number}").read_text(encoding="utf-8")
        held = sorted(
            (node, int(count))
            for names, count in _HELD.findall(details)
            for node in _hosts(stage.cluster, names)
        )
        nodes, gpus = (tuple(each) for each in zip(*held, strict=True))
        start_s = round(at[number, "begin"], 1)
        state, requeued = fields["JobState"], int(fields["Restarts"])
        runs[number] = Run(start_s, round(end_s, 1), nodes, gpus, state, requeued)
    if missing := {job.number for job in jobs.jobs} - runs.keys():
        raise PlayError(f"{jobs.name}: nothing is known of jobs {sorted(missing)}")
    return runs


def _ended_s(fields: Mapping[str, str], began_at: float) -> float:
    # The runner has Slurm print seconds since 1970.
    return float(fields["EndTime"]) - began_at


def _hosts(cluster: LocalCluster, names: str) -> list[str]:
    if re.fullmatch(r"[\w-]+", names):
        return [names]
    return cluster.runner().run(["scontrol", "show", "hostnames", names]).split()
