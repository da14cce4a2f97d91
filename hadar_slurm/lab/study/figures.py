"""The figures of a simulated run: completion times, fairness, use of GPUs."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import numpy as np

from hadar_slurm.core.cluster import Cluster, JobId
from hadar_slurm.core.job import JobSpec, Phase
from hadar_slurm.core.snapshot import Ended, GangRules
from hadar_slurm.engine.loop import RoundRecord
from hadar_slurm.errors import HadarError
from hadar_slurm.metrics import Segment, Segments, num_moves
from hadar_slurm.sim.backend import SimBackend

# Relative rounding error of sums over a long run.
_ROUNDING = 1e-6


class Completion(NamedTuple):
    """The arrival and the end of a job, in seconds."""

    job_id: JobId
    submitted_s: float
    end_s: float
    # Whether its time limit, or a plan, ended it before it had trained all its steps.
    is_killed: bool = False

    @property
    def jct_s(self) -> float:
        """Return the job completion time."""
        return self.end_s - self.submitted_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The figures of one run."""

    policy: str
    jobs: int
    # All steps trained.
    completed: int
    # Ended with steps left; the GPU-seconds that these jobs held, on all types, and their
    # share of what all jobs held. All that they trained is lost.
    killed: int
    killed_gpu_s: float
    killed_share: float
    # First submission to last end.
    ttd_s: float
    # Submission to end, of killed jobs too.
    mean_jct_s: float
    p50_jct_s: float
    p95_jct_s: float
    p99_jct_s: float
    # Submission to first GPU.
    mean_queueing_s: float
    # Longest uninterrupted time of any job without GPUs.
    max_wait_s: float
    # Finish-time fairness, rho of Themis (NSDI'20): JCT over the time on a 1/n share of every GPU
    # type, n being the mean number of jobs present during the job's life. Killed jobs have none.
    mean_ftf: float
    max_ftf: float
    # Slow-down: JCT over the time alone on the fastest type, on as few nodes as possible. Killed
    # jobs have none.
    mean_slowdown: float
    p99_slowdown: float
    # Mean slow-down of each user's jobs: mean and largest over the users. None: no job has a user.
    mean_user_slowdown: float | None
    max_user_slowdown: float | None
    # Fraction of GPU time until TTD in which steps were trained, those of killed jobs included.
    utilization: float
    # Fraction of each type's time until TTD that jobs held.
    utilization_by_type: Mapping[str, float]
    # Fraction of GPU time until TTD that jobs held, overhead included.
    cru: float
    # Starts beyond each job's first.
    moves: int
    rounds: int
    # Of the jobs that ended, the share that outlasted the quantiles of what was believed of them
    # before they trained. None where no sizes are learned.
    beyond_q50: float | None = None
    beyond_q75: float | None = None
    beyond_q90: float | None = None
    # Wall time of one call of the policy.
    decision_ms_p50: float
    decision_ms_p99: float
    # Processor time of the whole run, solvers included.
    cpu_s: float
    jcts: tuple[Completion, ...]
    segments: tuple[Segment, ...]

    @property
    def figures(self) -> dict[str, Any]:
        """Return all fields but the jobs' completions and segments, by name."""
        names = (field.name for field in fields(self))
        return {name: getattr(self, name) for name in names if name not in ("jcts", "segments")}


def check_accounts(world: SimBackend, segments: Sequence[Segment]) -> None:
    """Raise HadarError unless steps and GPU-seconds balance.

    Every job that is done has trained its steps, plus those lost by node failures, and one that was
    ended before that fewer. The simulator's GPU-seconds equal those of the segments, which
    follow from the loop's actions.
    """
    held: defaultdict[tuple[JobId, str], float] = defaultdict(float)
    for segment in segments:
        for gpu_type, count in segment.gang.gpus_by_type.items():
            held[segment.job_id, gpu_type] += count * (segment.end_s - segment.start_s)
    for job_id, job in world.sim_jobs.items():
        total = job.spec.total_steps
        left, rounding = total - job.steps_done, _ROUNDING * total + 1e-3
        is_off = left <= 0 if job.phase is Phase.FAILED else abs(left) > rounding
        if job.phase.is_final and is_off:
            how = f"{job.phase} after {job.steps_done:g} of {total} steps"
            raise HadarError(f"job {job_id} is {how}")
        for gpu_type, service in job.service.items() if job.phase.is_final else ():
            if abs(service - held[job_id, gpu_type]) > _ROUNDING * service + 1e-3:
                received = f"job {job_id} received {service:g} GPU-seconds of {gpu_type}"
                raise HadarError(f"{received} and held {held[job_id, gpu_type]:g}")


@dataclass
class RunTally:
    """What the rounds of a run come to; `began_s` is the processor time at its beginning."""

    began_s: float
    book: Segments = field(default_factory=Segments)
    ended: dict[JobId, Ended] = field(default_factory=dict)
    decisions_s: list[float] = field(default_factory=list)

    def add(self, record: RoundRecord) -> None:
        """Count a round; raises HadarError if it failed."""
        if record.errors:
            raise HadarError(f"round {record.round.index}: {'; '.join(record.errors)}")
        self.book.add(record)
        self.decisions_s.append(record.durations["plan"])
        for end in record.snapshot.ended if record.snapshot else ():
            self.ended[end.job_id] = end

    def result(self, policy: str, world: SimBackend, segments: Sequence[Segment]) -> Result:
        """Return the figures of the run."""
        specs = {spec.job_id: spec for spec in world.jobs}
        jcts = tuple(
            Completion(job, specs[job].submitted_s, end.end_s, end.phase is Phase.FAILED)
            for job, end in self.ended.items()
        )
        first_s = min((spec.submitted_s for spec in world.jobs), default=0.0)
        ttd_s = max((done.end_s for done in jcts), default=first_s) - first_s
        decisions_ms = 1000.0 * np.array(self.decisions_s or [0.0])
        queued_s, longest_s = waits_s(segments, specs)
        return Result(
            policy=policy,
            jobs=len(specs),
            completed=sum(not done.is_killed for done in jcts),
            **_of_killed(jcts, world),
            ttd_s=ttd_s,
            **_of_jobs(jcts, specs, world),
            mean_queueing_s=float(np.mean(list(queued_s.values()) or [0.0])),
            max_wait_s=max(longest_s.values(), default=0.0),
            **_of_gpus(world, max(ttd_s, 1e-9)),
            moves=num_moves(segments),
            rounds=len(self.decisions_s),
            decision_ms_p50=float(np.percentile(decisions_ms, 50)),
            decision_ms_p99=float(np.percentile(decisions_ms, 99)),
            cpu_s=cpu_s() - self.began_s,
            jcts=jcts,
            segments=tuple(segments),
        )


def _of_jobs(
    jcts: Sequence[Completion], specs: Mapping[JobId, JobSpec], world: SimBackend
) -> dict[str, Any]:
    """Return the figures of a result that are about the times of jobs."""
    cluster = world.cluster
    times_s = np.array([done.jct_s for done in jcts] or [0.0])
    p50_jct_s, p95_jct_s, p99_jct_s = (float(np.percentile(times_s, q)) for q in (50, 95, 99))
    whole = [done for done in jcts if not done.is_killed]
    ftf = finish_time_fairness(jcts, specs, cluster) if whole else np.zeros(1)
    slow = slowdowns(whole, specs, cluster, world.rules) if whole else np.ones(1)
    by_user = list(user_slowdowns(whole, specs, slow).values()) if whole else []
    return {
        "mean_jct_s": float(times_s.mean()),
        "p50_jct_s": p50_jct_s,
        "p95_jct_s": p95_jct_s,
        "p99_jct_s": p99_jct_s,
        "mean_ftf": float(ftf.mean()),
        "max_ftf": float(ftf.max()),
        "mean_slowdown": float(slow.mean()),
        "p99_slowdown": float(np.percentile(slow, 99)),
        "mean_user_slowdown": float(np.mean(by_user)) if by_user else None,
        "max_user_slowdown": max(by_user, default=None),
    }


def _of_killed(jcts: Sequence[Completion], world: SimBackend) -> dict[str, Any]:
    """Return the figures of a result that are about jobs ended with steps left."""
    held_s = {job_id: sum(job.service.values()) for job_id, job in world.sim_jobs.items()}
    killed = [done.job_id for done in jcts if done.is_killed]
    lost_s = sum(held_s[job_id] for job_id in killed)
    share = lost_s / max(sum(held_s.values()), 1e-9)
    return {"killed": len(killed), "killed_gpu_s": lost_s, "killed_share": share}


def _of_gpus(world: SimBackend, span_s: float) -> dict[str, Any]:
    """Return the figures of a result that are about the use of GPUs."""
    cluster = world.cluster
    by_type: defaultdict[str, float] = defaultdict(float)
    for job in world.sim_jobs.values():
        for gpu_type, service in job.service.items():
            by_type[gpu_type] += service
    whole_s = span_s * sum(cluster.capacity.values())
    counts = cluster.gpus_by_type.items()
    return {
        "utilization": sum(job.productive_gpu_s for job in world.sim_jobs.values()) / whole_s,
        "utilization_by_type": {str(name): by_type[name] / (n * span_s) for name, n in counts},
        "cru": sum(by_type.values()) / whole_s,
    }


def waits_s(
    segments: Sequence[Segment], specs: Mapping[JobId, JobSpec]
) -> tuple[dict[JobId, float], dict[JobId, float]]:
    """Return, by job, the time to its first GPU and its longest stretch without any, in seconds."""
    first: dict[JobId, float] = {}
    longest: dict[JobId, float] = {}
    until: dict[JobId, float] = {}
    for segment in segments:
        job_id = segment.job_id
        since_s = until.get(job_id, specs[job_id].submitted_s)
        first.setdefault(job_id, segment.start_s - specs[job_id].submitted_s)
        longest[job_id] = max(longest.get(job_id, 0.0), segment.start_s - since_s)
        until[job_id] = max(until.get(job_id, 0.0), segment.end_s)
    return first, longest


def finish_time_fairness(
    jcts: Sequence[Completion], specs: Mapping[JobId, JobSpec], cluster: Cluster
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return rho of every job with all steps trained: its JCT over its time on a 1/n share of the
    cluster.

    On that share a job of W GPUs spends the fraction capacity_r / (n W) of its time on type r, all
    types together at most 1 (Gavel, OSDI'20, finish-time fairness policy); n is the number of jobs
    present, killed ones too, averaged over the job's life.
    """
    came = np.sort(np.array([done.submitted_s for done in jcts]))
    ended = np.sort(np.array([done.end_s for done in jcts]))

    past_s = np.empty(len(came))

    def seconds_since(moments_s: np.ndarray, time_s: float) -> float:
        """Return the sum of the seconds that have passed since all sorted moments up to a time."""
        number = int(np.searchsorted(moments_s, time_s, side="right"))
        np.subtract(time_s, moments_s[:number], out=past_s[:number])
        return float(past_s[:number].sum())

    def job_seconds_until(time_s: float) -> float:
        """Return the integral of the number of jobs present, from the start, in job-seconds."""
        return seconds_since(came, time_s) - seconds_since(ended, time_s)

    rho = []
    for done in jcts:
        if done.is_killed:
            continue
        spec = specs[done.job_id]
        present = job_seconds_until(done.end_s) - job_seconds_until(done.submitted_s)
        num_jobs = max(1.0, present / max(done.jct_s, 1e-9))
        shares = [
            (count / (num_jobs * spec.num_gpus), speed)
            for gpu_type, count in cluster.gpus_by_type.items()
            if (speed := spec.throughputs.on(gpu_type, spec.num_gpus)) > 0
        ]
        scale = max(1.0, sum(share for share, _ in shares))
        throughput = sum(share / scale * speed for share, speed in shares)
        rho.append(done.jct_s * throughput / spec.total_steps)
    return np.array(rho)


def slowdowns(
    jcts: Sequence[Completion], specs: Mapping[JobId, JobSpec], cluster: Cluster, rules: GangRules
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return the slow-down of every completed job: its JCT over its time alone.

    Alone, a job has its fastest GPU type from submission to end, on one node if a node has enough
    GPUs and on several otherwise.
    """
    alone_s: dict[tuple[int, int], float] = {}  # seconds per step
    found = []
    for done in jcts:
        spec = specs[done.job_id]
        key = (id(spec.throughputs), spec.num_gpus)
        if key not in alone_s:
            alone_s[key] = 1.0 / max(
                spec.throughputs.on(
                    gpu_type,
                    spec.num_gpus,
                    is_spread=rules.counts_spread
                    and cluster.largest_node(gpu_type) < spec.num_gpus,
                )
                for gpu_type in cluster.gpus_by_type
            )
        found.append(done.jct_s / (alone_s[key] * spec.total_steps))
    return np.array(found)


def user_slowdowns(
    jcts: Sequence[Completion],
    specs: Mapping[JobId, JobSpec],
    slow: np.ndarray[tuple[int], np.dtype[np.float64]],
) -> dict[str, float]:
    """Return, by user, the mean of the jobs' slow-downs; `slow` has one for each of `jcts`.

    Jobs without a user are left out.
    """
    found: defaultdict[str, list[float]] = defaultdict(list)
    for done, slowdown in zip(jcts, slow, strict=True):
        if user := specs[done.job_id].user:
            found[user].append(float(slowdown))
    return {user: sum(values) / len(values) for user, values in found.items()}


def cpu_s() -> float:
    """Return the processor time of this process and of those that it has waited for."""
    return sum(os.times()[:4])
