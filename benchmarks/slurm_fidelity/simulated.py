"""Plays a list in the simulator, under policy `slurm` set up as the real Slurm was."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from hadar_slurm.core.cluster import Cluster, JobId, Node
from hadar_slurm.core.job import JobSpec, Shape
from hadar_slurm.core.plan import Plan
from hadar_slurm.core.snapshot import Round, Snapshot
from hadar_slurm.core.throughput import GangThroughput, Throughputs
from hadar_slurm.lab.policies.slurm.looks import Looks
from hadar_slurm.lab.policies.slurm.policy import PlainSlurm
from hadar_slurm.lab.study.experiment import ExperimentSettings, run_experiment
from hadar_slurm.lab.study.figures import Result
from hadar_slurm.policies.policy import Policy
from hadar_slurm.policies.registry import make_policy
from slurm_fidelity.jobs import JobList, ListedJob, Play, Run
from slurm_fidelity.passes import Passes
from slurm_fidelity.settings import policy_name, qos

# Many steps, so that rounding to whole ones is nothing.
_STEPS = 10**7
# Real seconds from the end of a job to the start of the next, as measured on a quiet machine.
LAGS_S = (0.05, 0.25)
# Real seconds until a requeued job is gone, by starts after a requeue.
_GONE_S = 0.2
# Longer than any list: nothing happens but at arrivals, ends and looks.
_LONG_S = 1e9
# Real seconds from a limit to the end of the job, which has a second to end by itself.
_KILLS_S = (1.0, 31.0)


def simulate(
    jobs: JobList, passes: Passes, *, seed: int = 0, policy: str = "", begin_s: float = 0.0
) -> Play:
    """Return what the simulator makes of a list, where Slurm looks at its queue in these passes.

    Each job holds its GPUs for some tenths of a real second more, in which Slurm sees its end;
    drawn from the seed. The list begins `begin_s` seconds after priorities were computed.
    """
    draw = random.Random(f"lags {seed}")
    begin_s = max(begin_s, 2.0 * jobs.compression)
    specs = [
        spec_of(job, jobs, lagged.seconds, submitted_s=lagged.submit_s, limit_s=limit_s)
        for job, lagged, limit_s in zip(
            jobs.jobs,
            _later(jobs, draw, begin_s + passes.sbatch_s * jobs.compression),
            [_limit_s(job, jobs, draw) for job in jobs.jobs],
            strict=True,
        )
    ]
    limits = {JobId(str(job.number + 1)): jobs.limit_s(job) for job in jobs.jobs}
    plain = make_policy(policy or policy_name(jobs))
    assert isinstance(plain, PlainSlurm)
    looks = Looks(
        *([begin_s + at_s * jobs.compression for at_s in each] for each in passes[:2]),
        gone_after_s=_GONE_S * jobs.compression,
    )
    made = _WithLimits(replace(plain, looks=looks), limits)
    settings = ExperimentSettings(round_s=_LONG_S)
    return as_play(jobs, run_experiment(specs, cluster_of(jobs), made, settings), begin_s)


def as_play(jobs: JobList, result: Result, begin_s: float) -> Play:
    """Return the result of a simulation as a play of a list that began at `begin_s`."""
    names = {f"n{i}": name for i, name in enumerate(jobs.node_types(), 1)}
    ends = {done.job_id: done for done in result.jcts}
    runs: dict[int, Run] = {}
    # Where jobs are cancelled for others, limits are long.
    lost = "PREEMPTED" if jobs.preempts == "cancel" else "TIMEOUT"
    for segment in sorted(result.segments, key=lambda segment: segment.start_s):
        held = sorted((names[str(n)], count) for n, count in segment.gang.gpus_by_node.items())
        done, number = ends[segment.job_id], int(segment.job_id) - 1
        runs[number] = Run(
            round(segment.start_s - begin_s, 1),
            round(done.end_s - begin_s, 1),
            *(tuple(each) for each in zip(*held, strict=True)),
            state=lost if done.is_killed else "COMPLETED",
            requeued=runs[number].requeued + 1 if number in runs else 0,
        )
    return Play(jobs.name, "simulated", "", runs)


@dataclass(frozen=True)
class _WithLimits:
    """A policy that sees the limits that users wrote, and not when Slurm ends jobs beyond them."""

    policy: Policy
    limits: Mapping[JobId, float]
    # As seen, by job.
    specs: dict[JobId, JobSpec] = field(default_factory=dict, compare=False)
    keeps_limits: ClassVar[bool] = True

    def __getattr__(self, name: str) -> Any:
        """Return a property of the policy, such as whether it requeues."""
        return getattr(self.policy, name)

    def plan(self, snapshot: Snapshot, round_: Round) -> Plan:
        jobs = [replace(job, spec=self._seen(job.spec)) for job in snapshot.jobs]
        seen = Snapshot.of(
            now_s=snapshot.now_s, cluster=snapshot.cluster, jobs=jobs,
            occupied=dict(snapshot.occupied), rules=snapshot.rules, ended=snapshot.ended,
        )  # fmt: skip
        return self.policy.plan(seen, round_)

    def _seen(self, spec: JobSpec) -> JobSpec:
        if spec.job_id not in self.specs:
            self.specs[spec.job_id] = replace(spec, limit_s=self.limits[spec.job_id])
        return self.specs[spec.job_id]


def cluster_of(jobs: JobList) -> Cluster:
    """Return the cluster of a list, its nodes named in the order of their weights."""
    pools = [pool for pool in jobs.pools for _ in range(pool.nodes)]
    return Cluster.of(
        Node.of(f"n{i}", {pool.gpu_type: pool.gpus}) for i, pool in enumerate(pools, 1)
    )


def spec_of(
    job: ListedJob,
    jobs: JobList,
    seconds: Mapping[str, tuple[float, float]],
    *,
    submitted_s: float,
    limit_s: float,
) -> JobSpec:
    """Return a job as the simulator knows it; it has no speed on types that its user leaves out."""
    allowed = jobs.allowed(job)
    rows = {
        # Types that are equally fast stay in the order in which the request names them.
        (k, job.gpus): GangThroughput(*(_STEPS / (t + place * 1e-3) for t in seconds[k]))
        for place, k in enumerate(allowed)
    }
    return JobSpec(
        job_id=JobId(str(job.number + 1)),
        num_gpus=job.gpus,
        total_steps=_STEPS,
        throughputs=Throughputs.of(rows),
        submitted_s=submitted_s,
        can_checkpoint=False,
        restart_cost_s=0.0,
        user=job.user,
        shapes=() if jobs.form == "gpus" else (Shape(job.nodes, job.gpus // job.nodes),),
        limit_s=limit_s,
        # So that the limit is as written, whatever types the job may get.
        limit_type=allowed[0],
        qos=qos(job),
    )


def _later(jobs: JobList, draw: random.Random, begin_s: float) -> list[ListedJob]:
    """Return the jobs as a real Slurm runs them, a little longer, from `begin_s` on."""
    found: list[ListedJob] = []
    for job in jobs.jobs:
        lag_s = draw.uniform(*LAGS_S) * jobs.compression
        seconds = {k: (a + lag_s, b + lag_s) for k, (a, b) in job.seconds.items()}
        found.append(replace(job, submit_s=begin_s + job.submit_s, seconds=seconds))
    return found


def _limit_s(job: ListedJob, jobs: JobList, draw: random.Random) -> float:
    """Return after how long a job is ended: Slurm looks for those every half minute."""
    limit_s, late_s = jobs.limit_s(job), draw.uniform(*_KILLS_S) * jobs.compression
    is_short = max(job.seconds[gpu_type][1] for gpu_type in jobs.allowed(job)) <= limit_s
    return limit_s if is_short else limit_s + late_s
