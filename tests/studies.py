"""Small runs to compare, for tests of the study package."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from builders import a_spec, some_rates

from hadar_slurm.core.job import JobSpec
from hadar_slurm.lab.study.compare import Cell, Record, StudyWorkload
from hadar_slurm.lab.study.experiment import ExperimentSettings
from hadar_slurm.lab.traces.cluster import parse_cluster

CLUSTER = parse_cluster("2xV100,2xK80", gpus_per_node=2)


def some_jobs(count: int = 4, *, steps: int = 3000) -> tuple[JobSpec, ...]:
    """Return jobs of one and two GPUs, a minute apart, each larger than the one before."""
    throughputs = some_rates(V100=10.0, K80=2.0)
    return tuple(
        a_spec(
            str(n), 1 + n % 2, steps=steps * (n + 1), throughputs=throughputs, submitted_s=60.0 * n
        )
        for n in range(count)
    )


def limited_jobs() -> tuple[JobSpec, ...]:
    """Return jobs with time limits that are long enough on V100s, and too short on K80s."""
    jobs = some_jobs()
    limits_s = [1.2 * spec.total_steps / spec.throughput_on("V100") for spec in jobs]
    return tuple(
        replace(spec, limit_s=limit_s, limit_type="V100")
        for spec, limit_s in zip(jobs, limits_s, strict=True)
    )


def a_cell(
    policy: str = "srsf",
    *,
    specs: tuple[JobSpec, ...] | None = None,
    name: str = "few",
    settings: ExperimentSettings | None = None,
) -> Cell:
    """Return a run of a few jobs on four GPUs."""
    return Cell(
        workload=StudyWorkload(name=name, specs=some_jobs() if specs is None else specs),
        cluster=CLUSTER,
        cluster_name="2xV100,2xK80",
        policy=policy,
        settings=settings or ExperimentSettings(),
    )


def a_record(policy: str = "hadar", *, ttd_h: float = 1.0, **others: Any) -> Record:
    """Return a run's record with the figures that a test needs."""
    return {
        "trace": "t", "jobs": 3, "load": None, "cluster": "c", "rules": "hadar", "restart": "30",
        "round_s": 360.0, "seed": None, "policy": policy, "bare_policy": policy.partition(" ")[0],
        "speeds": "oracle", "sizes": "oracle", "status": "done", "ttd_s": 3600 * ttd_h,
        "utilization": 0.5, "cru": 0.5, "utilization_by_type": {"K80": 0.25}, **others,
    }  # fmt: skip
