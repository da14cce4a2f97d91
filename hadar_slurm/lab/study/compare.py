"""A comparison: policies x workloads x rules, one process or job per run, resumable.

A *cell* is one run. Its result is one file, named by a digest of all inputs: the jobs with their
throughputs, the cluster, the policy, the settings, our code and the solvers. So an interrupted
comparison resumes, and results of changed code are not reused.
"""

from __future__ import annotations

import hashlib
import math
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import numpy as np

from hadar_slurm.core.cluster import Cluster, JobId
from hadar_slurm.core.job import JobSpec
from hadar_slurm.core.throughput import Throughputs
from hadar_slurm.errors import HadarError, UsageError
from hadar_slurm.lab.policies.adoption import Adoption
from hadar_slurm.lab.policies.slurm.policy import PlainSlurm
from hadar_slurm.lab.provenance import code_digest, machine, versions
from hadar_slurm.lab.study import occupancy
from hadar_slurm.lab.study.bounds import Bounds, bounds, forking_bound_s
from hadar_slurm.lab.study.experiment import (
    ORACLE,
    ExperimentSettings,
    Told,
    run_experiment,
    telling_ended,
)
from hadar_slurm.lab.study.figures import Result, waits_s
from hadar_slurm.lab.traces.limits import LimitHabits, have_limits
from hadar_slurm.lab.traces.model import RecordedTimes
from hadar_slurm.lab.traces.restart import restart_words
from hadar_slurm.lab.traces.speeds import TypeSpeed
from hadar_slurm.policies.policy import DEFAULT_USER_SHARES, Policy
from hadar_slurm.policies.registry import make_policy
from hadar_slurm.sim.claims import UserClaim

# Increased when the format of a cell's file changes.
VERSION = 3

Record = dict[str, Any]

# Policies that run jobs in several copies, where the jobs allow it.
FORKING = ("hadare", "sampling")
# A bound is exact only to the solver's tolerance, a finish to a fraction of a step.
_BOUND_ROUNDING = 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyWorkload:
    """The jobs of a run, with labels for the tables."""

    name: str
    specs: tuple[JobSpec, ...]
    # Offered load in per cent to which the arrivals were scaled; None for the trace's own.
    load: float | None = None
    seed: int | None = None
    # The cost of a migration, as given by the user.
    restart: str = "30"
    # Per cent of the jobs that can move; None: all that the trace lets move.
    movable: float | None = None
    # Workloads of the same origin; "" where that is not of interest.
    family: str = ""
    # What users claim of jobs, where that is not what the jobs are.
    claims: tuple[tuple[JobId, UserClaim], ...] = ()
    # Jobs that have ended before.
    history: tuple[JobSpec, ...] = ()
    # The speeds of GPU types that were assumed, as the trace has none.
    speeds: tuple[TypeSpeed, ...] = ()
    # The GPU types that each job held, in lower case; empty where that is not known.
    held: Mapping[JobId, frozenset[str]] = field(default_factory=dict)
    # What was recorded of the jobs; empty where that is not known.
    recorded: Mapping[JobId, RecordedTimes] = field(default_factory=dict)


# Labels that a run has where they are not the usual ones.
OPTIONAL_LABELS = ("family", "movable", "adoption", "beside")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterWorkload:
    """Jobs, and the cluster on which they run."""

    workload: StudyWorkload
    cluster: Cluster
    cluster_name: str


@dataclass(frozen=True, kw_only=True)
class Cell:
    """The inputs of one run."""

    workload: StudyWorkload
    cluster: Cluster
    cluster_name: str
    policy: str
    settings: ExperimentSettings = field(default_factory=ExperimentSettings)
    # How strictly users share under hadar; None: as by default.
    user_shares: float | None = None
    # Per cent of the users whose jobs are the policy's, and these users; all others' are those of
    # `beside`, a plain Slurm by name. None: all jobs are the policy's.
    adoption: float | None = None
    adopters: frozenset[str] = frozenset()
    beside: str = "slurm"

    @cached_property
    def key(self) -> str:
        """Return a digest of all inputs of the run."""
        jobs = self.workload
        specs = _specs_digest(jobs.specs), jobs.claims, _specs_digest(jobs.history)
        recorded = sorted(jobs.recorded.items())
        policies = {type(make_policy(self.policy)).__module__, type(self.make_policy()).__module__}
        code = [run_experiment.__module__, *sorted(policies)]
        programs = sorted(versions().items()), code_digest(code)
        others = None if self.adoption is None else (self.beside, sorted(self.adopters))
        policy = self.policy, self.user_shares, others
        parts = [VERSION, specs, recorded, self.cluster, policy, self.settings, *programs]
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:20]

    @property
    def labels(self) -> Record:
        """Return the labels of the run in tables; those of OPTIONAL_LABELS if unusual."""
        return {
            **({"family": self.workload.family} if self.workload.family else {}),
            "trace": self.workload.name,
            "jobs": len(self.workload.specs),
            "load": self.workload.load,
            "seed": self.workload.seed,
            "cluster": self.cluster_name,
            "rules": self.settings.rules,
            "restart": self.workload.restart,
            **({} if self.workload.movable is None else {"movable": self.workload.movable}),
            "round_s": self.settings.round_s,
            "policy": self.policy_name,
            "bare_policy": self.policy,
            "speeds": self.settings.speeds,
            "sizes": self.settings.sizes,
            **({} if self.adoption is None else {"adoption": self.adoption, "beside": self.beside}),
        }

    @property
    def policy_name(self) -> str:
        """Return the policy, with its knowledge and its shares where not usual."""
        notes, shares = knowledge(self.settings.speeds, self.settings.sizes), self.user_shares
        share = self.workload.movable
        notes += [] if share is None else [f"{share:g} % movable"]
        keeps = is_plain_slurm(self.policy)
        notes += ["time-on"] if self.settings.adjusts_limits and not keeps else []
        notes += [] if shares is None else [f"user_shares {shares:g}"]
        others = f" beside {self.beside}" if self.adoption else ""
        notes += [] if self.adoption is None else [f"{self.adoption:g} % of users{others}"]
        return f"{self.policy} ({', '.join(notes)})" if notes else self.policy

    def make_policy(self) -> Policy:
        """Return the policy."""
        shares = DEFAULT_USER_SHARES if self.user_shares is None else self.user_shares
        policy = make_policy(self.policy, user_shares=shares)
        if self.adoption is None:
            return policy
        plain = make_policy(self.beside)
        assert isinstance(plain, PlainSlurm)
        return Adoption(policy, self.adopters, plain)

    @property
    def is_forked(self) -> bool:
        """Whether jobs may have several copies, so that only the forking bounds hold."""
        return self.policy in FORKING and any(spec.max_copies > 1 for spec in self.workload.specs)

    def __str__(self) -> str:
        workload = self.workload
        load = "" if workload.load is None else f" at {workload.load:g} %"
        seed = "" if workload.seed is None else f", seed {workload.seed}"
        rules = "" if self.settings.rules == "hadar" else f", {self.settings.rules} rules"
        restart = f", restart {restart_words(workload.restart)}"
        return f"{self.policy_name} on {workload.name}{load}{seed}{rules}{restart}"


def knowledge(speeds: str, sizes: str) -> list[str]:
    """Return what a policy knows, in words, where not all; by the sources of both."""
    notes = [] if speeds == ORACLE else [speeds]
    return notes if sizes == ORACLE else [*notes, f"sizes {sizes}"]


def is_plain_slurm(policy: str) -> bool:
    """Return whether a policy, by name, stands for a site without hadard."""
    return bool(getattr(make_policy(policy), "keeps_limits", False))


def requeues(policy: str) -> bool:
    """Return whether a plain Slurm, by name, has jobs requeued, which may then go on or not."""
    slurm = make_policy(policy)
    return bool(getattr(slurm, "requeues", False)) and not getattr(slurm, "cancels", False)


def _specs_digest(specs: Sequence[JobSpec]) -> str:
    """Return a digest of the jobs; thousands of them share a few tables of rates."""
    digest, empty = hashlib.sha256(), Throughputs()
    tables = {
        key: hashlib.sha256(repr(throughputs.rows).encode()).hexdigest()
        for key, throughputs in {id(s.throughputs): s.throughputs for s in specs}.items()
    }
    for spec in specs:
        text = f"{replace(spec, throughputs=empty)!r} {tables[id(spec.throughputs)]}\n"
        digest.update(text.encode())
    return digest.hexdigest()


def scale_to_load(specs: Sequence[JobSpec], cluster: Cluster, load: float) -> list[JobSpec]:
    """Return the jobs with their arrivals scaled so that they offer `load` per cent.

    At 100 % work arrives at the cluster's maximum rate: the number of jobs times the mean gap
    between arrivals equals the least time for all jobs if they arrived together and could be forked
    (`bounds.forking_bound_s`). Gaps keep their proportions. Raises UsageError when all jobs arrive
    at once.
    """
    arrivals_s = [spec.submitted_s for spec in specs]
    first_s, span_s = min(arrivals_s), max(arrivals_s) - min(arrivals_s)
    if span_s <= 0:
        raise UsageError(
            f"--load {load:g}: all jobs arrive at once, so there are no gaps to scale; give a "
            "trace with arrivals"
        )
    least_s = forking_bound_s([replace(spec, submitted_s=0.0) for spec in specs], cluster)
    if not math.isfinite(least_s):
        raise UsageError(f"--load {load:g}: a job runs on no GPU type of the cluster")
    factor = least_s / (len(specs) * load / 100.0) * (len(specs) - 1) / span_s
    return [replace(spec, submitted_s=(spec.submitted_s - first_s) * factor) for spec in specs]


def with_limits(
    jobs: StudyWorkload, cluster: Cluster, limits: LimitHabits | None, seeds: Sequence[int] | None
) -> list[StudyWorkload]:
    """Return a workload with time limits drawn from its seed, or once from each of `seeds`.

    As it is without `limits`, or if it has its own.
    """
    if limits is None or have_limits(jobs.specs):
        return [jobs]
    types = cluster.gpus_by_type
    return [
        replace(jobs, specs=tuple(limits.drawn(jobs.specs, types, seed)), seed=seed)
        for seed in ((seeds or (0,)) if jobs.seed is None else (jobs.seed,))
    ]


def run_cell(cell: Cell, *, on_progress: Callable[[int], None] = lambda done: None) -> Record:
    """Run a cell and return its record; a failed run has status `failed` and the error."""
    began = time.perf_counter()
    record: Record = {
        "version": VERSION,
        "key": cell.key,
        **cell.labels,
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": versions(),
        "is_forked": cell.is_forked,
    }
    try:
        specs = cell.workload.specs
        limits = bounds(specs, cell.cluster, counts_spread=cell.settings.rules == "hadar")
        result = run_experiment(
            specs,
            cell.cluster,
            cell.make_policy(),
            cell.settings,
            told=Told(dict(cell.workload.claims), cell.workload.history),
            on_round=telling_ended(on_progress),
        )
        record |= {
            "status": "done",
            **figures_of(cell, result),
            **{f"bound_{name}": value for name, value in asdict(limits).items()},
            **_over_bounds(cell, result, limits),
        }
    except Exception as error:
        record |= {"status": "failed", "error": f"{type(error).__name__}: {error}"}
        if not isinstance(error, HadarError):
            record["detail"] = traceback.format_exc()
    return record | {"took_s": time.perf_counter() - began}


def _over_bounds(cell: Cell, result: Result, limits: Bounds) -> Record:
    """Return TTD and mean JCT over their bounds, which are for all steps of all jobs.

    None where a time limit has ended a job, or where the bound is 0.
    """
    ttd_bound_s = limits.ttd_forking_s if cell.is_forked else limits.ttd_gang_s
    jct_bound_s = limits.mean_jct_s if cell.is_forked else limits.mean_jct_gang_s
    pairs = {"ttd": (result.ttd_s, ttd_bound_s), "mean_jct": (result.mean_jct_s, jct_bound_s)}
    found: Record = {}
    for what, (value_s, least_s) in pairs.items():
        if value_s < least_s * (1 - _BOUND_ROUNDING) and not result.killed:
            raise HadarError(
                f"{what} {value_s:g} s is below its lower bound {least_s:g} s: one of them is wrong"
            )
        has_ratio = least_s > 0 and not result.killed
        found[f"{what}_over_bound"] = value_s / least_s if has_ratio else None
    return found


def figures_of(cell: Cell, result: Result) -> Record:
    """Return the figures of a run, and the times and places of its jobs; no ratio to a bound.

    Raises HadarError if a job did not end.
    """
    if missing := result.jobs - result.completed - result.killed:
        raise HadarError(f"{missing} of {result.jobs} jobs did not end")
    specs = cell.workload.specs
    numbers = {spec.job_id: number for number, spec in enumerate(specs)}
    ended = sorted(result.jcts, key=lambda jct: numbers[jct.job_id])
    start_s = min(spec.submitted_s for spec in specs)
    drawn = occupancy.occupancy(
        result.segments, cell.cluster, numbers, start_s=start_s, end_s=start_s + result.ttd_s
    )
    return {
        **{k: value for k, value in result.figures.items() if k not in ("policy", "jobs")},
        "jcts_s": [round(jct.jct_s, 3) for jct in ended],
        **_places(specs, result),
        **_recorded(cell, result),
        "killed_jobs": [number for number, jct in enumerate(ended) if jct.is_killed],
        "users": [spec.user for spec in specs],
        **({} if cell.adoption is None else {"adopters": sorted(cell.adopters)}),
        "gpu_hours": [_gpu_hours(spec, cell.cluster) for spec in specs],
        "occupancy": occupancy.to_tree(drawn) if drawn else None,
    }


def _places(specs: Sequence[JobSpec], result: Result) -> Record:
    """Return each job's GPUs, time to the first of them, and GPU type for most of its GPU time."""
    queued_s, _ = waits_s(result.segments, {spec.job_id: spec for spec in specs})
    held = {spec.job_id: Counter[str]() for spec in specs}
    for ran in result.segments:
        for gpu_type, count in ran.gang.gpus_by_type.items():
            held[ran.job_id][gpu_type] += round(count * (ran.end_s - ran.start_s))
    return {
        "queued_s": [round(queued_s[spec.job_id], 3) for spec in specs],
        "gpus": [spec.num_gpus for spec in specs],
        "gpu_types": [held[spec.job_id].most_common(1)[0][0] for spec in specs],
    }


def _recorded(cell: Cell, result: Result) -> Record:
    """Return figures of what was recorded, and the mean JCT of the same jobs here; else nothing.

    Of plain Slurm also how far off that mean is. Where arrivals are scaled to a load, the recorded
    times are those of other arrivals.
    """
    known = cell.workload.recorded
    pairs = [(known[done.job_id], done) for done in result.jcts if done.job_id in known]
    if not pairs or cell.workload.load is not None:
        return {}
    jcts_s = np.array([was.jct_s for was, _ in pairs])
    p50_jct_s, p95_jct_s, p99_jct_s = (float(np.percentile(jcts_s, q)) for q in (50, 95, 99))
    was_s, is_s = float(jcts_s.mean()), sum(done.jct_s for _, done in pairs) / len(pairs)
    first_s = min(done.submitted_s for done in result.jcts)
    last_s = max(done.submitted_s + was.jct_s for was, done in pairs)
    recorded = {
        "jobs": len(pairs),
        "mean_jct_s": was_s,
        "simulated_jct_s": is_s,
        "p50_jct_s": p50_jct_s,
        "p95_jct_s": p95_jct_s,
        "p99_jct_s": p99_jct_s,
        "mean_queueing_s": sum(was.queued_s for was, _ in pairs) / len(pairs),
        "max_wait_s": max(was.queued_s for was, _ in pairs),
        **({"ttd_s": last_s - first_s} if len(pairs) == len(result.jcts) else {}),
    }
    is_plain = is_plain_slurm(cell.policy) and not cell.adoption
    off = {"off": is_s / was_s - 1.0} if is_plain and was_s > 0 else {}
    return {"recorded": recorded, **off}


def _gpu_hours(spec: JobSpec, cluster: Cluster) -> float:
    """Return a job's GPU-hours on its fastest type."""
    throughput = spec.throughputs.best(cluster.gpus_by_type, spec.num_gpus)
    return round(spec.num_gpus * spec.total_steps / throughput / 3600.0, 4)
