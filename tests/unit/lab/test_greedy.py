"""Policies srsf and las: their order of jobs, their GPU types, and published results."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from builders import ROUND, a_job, a_snapshot, placed_by, reasons_of, some_rates

from hadar_slurm.core.cluster import GpuType
from hadar_slurm.core.plan import WaitReason
from hadar_slurm.jobspec.throughput_table import parse_table
from hadar_slurm.lab.policies.greedy import las, remaining_service, srsf
from hadar_slurm.lab.study.experiment import ExperimentSettings, run_experiment
from hadar_slurm.lab.traces.cluster import parse_cluster
from hadar_slurm.lab.traces.load import parse_gavel_trace
from hadar_slurm.resources import data_file

SHARED_TRACE = Path(__file__).parents[4] / "shared" / "data" / "hadar480_static.trace"
FLAT = some_rates(V100=2.0, P100=1.0)


def test_the_shortest_remaining_service_goes_first_each_on_its_fastest_type() -> None:
    """Jobs are ordered by gang x seconds left on the fastest type, and placed in that order."""
    # GPU-seconds left on V100s: job 1: 100, job 2: 2 x 40 = 80, job 3: 90.
    jobs = [
        a_job("1", 1, steps=200, throughputs=FLAT),
        a_job("2", 2, steps=160, throughputs=some_rates(V100=2.0)),
        a_job("3", 1, steps=1000, done=820, throughputs=FLAT),
    ]
    gpu_types = (GpuType("P100"), GpuType("V100"))
    # A gang of two is twice as fast, so its 160 steps take 40 s.
    assert [remaining_service(job, gpu_types) for job in jobs] == [100.0, 80.0, 90.0]
    plan = srsf().plan(a_snapshot("3xV100,1xP100", *jobs), ROUND)
    assert placed_by(plan) == {"1": "n2:P100:1", "2": "n1:V100:2", "3": "n1:V100:1"}


def test_the_shorter_stops_the_longer() -> None:
    """A running job may be preempted at the start of a round, but not within one."""
    long, short = a_job("1", steps=10_000, on="n1:V100:1"), a_job("2", steps=10)
    snapshot = a_snapshot("1xV100", long, short)
    assert placed_by(srsf().plan(snapshot, ROUND)) == {"2": "n1:V100:1"}
    within = srsf().plan(snapshot, replace(ROUND, may_move=False))
    assert placed_by(within) == {"1": "n1:V100:1"}
    assert reasons_of(within) == {"2": WaitReason.INSUFFICIENT}


def test_a_job_moves_up_when_its_fastest_type_is_free() -> None:
    """A job moves to its fastest type whatever the restart costs, but not within a type."""
    job = a_job("1", steps=10, on="n2:P100:1", throughputs=FLAT, restart_cost_s=1e6)
    assert placed_by(srsf().plan(a_snapshot("1xV100,1xP100", job), ROUND)) == {"1": "n1:V100:1"}
    job = a_job("1", steps=10, on="n2:V100:1", throughputs=FLAT)
    assert placed_by(srsf().plan(a_snapshot("1xV100,2xV100", job), ROUND)) == {"1": "n2:V100:1"}


def test_the_least_served_goes_first() -> None:
    """Service is GPU-seconds on all types alike, to the millisecond; ties are broken by job id."""
    jobs = [
        a_job("1", service_gpu_s=7200.0, on="n1:V100:1"),
        a_job("2", service_gpu_s=3600.0000001),
        a_job("3", service_gpu_s=3600.0),
        a_job("4", service_gpu_s=3601.0),
    ]
    plan = las().plan(a_snapshot("2xV100,1xP100", *jobs), ROUND)
    assert placed_by(plan) == {"2": "n1:V100:1", "3": "n1:V100:1", "4": "n2:P100:1"}


def test_who_runs_nowhere_is_told_so() -> None:
    """A job that trains on no type is last, takes no GPUs, and has reason NO_THROUGHPUT."""
    jobs = [a_job("1", throughputs=some_rates(A100=1.0)), a_job("2")]
    plan = srsf().plan(a_snapshot("1xV100", *jobs), ROUND)
    assert placed_by(plan) == {"2": "n1:V100:1"}
    assert reasons_of(plan) == {"1": WaitReason.NO_THROUGHPUT}


def test_srsf_comes_to_the_published_figures_of_such_a_greedy() -> None:
    """The first 120 jobs on 60 GPUs under Gavel's rules, within 0.5 % of published results.

    The published simulator trains fractions of steps. With fractions, this policy reproduces the
    published TTD and mean JCT exactly, on every trace.
    """
    if not SHARED_TRACE.exists():
        pytest.skip(f"{SHARED_TRACE} is not there")
    table = parse_table(data_file("throughputs.json").read_text(encoding="utf-8"), "table")
    lines = SHARED_TRACE.read_text(encoding="utf-8").splitlines()[:120]
    specs = parse_gavel_trace(lines, table, "hadar480_static")
    cluster = parse_cluster("20xV100,20xP100,20xK80", gpus_per_node=4)
    result = run_experiment(specs, cluster, srsf(), ExperimentSettings(rules="gavel"))
    assert result.ttd_s / 3600 == pytest.approx(141.80, rel=5e-3)
    assert result.mean_jct_s / 3600 == pytest.approx(26.72, rel=5e-3)
