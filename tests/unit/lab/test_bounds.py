"""Lower bounds: by hand, against published figures, and against simulated schedules."""

from __future__ import annotations

import csv
import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random

import pytest
from builders import a_spec, some_rates
from hypothesis import given
from hypothesis import strategies as st

from hadar_slurm.core.cluster import Cluster
from hadar_slurm.core.job import JobSpec
from hadar_slurm.core.throughput import GangThroughput, Throughputs
from hadar_slurm.jobspec.throughput_table import parse_table
from hadar_slurm.lab.policies.greedy import srsf
from hadar_slurm.lab.study.bounds import Bounds, bounds, forking_bound_s
from hadar_slurm.lab.study.experiment import ExperimentSettings, run_experiment
from hadar_slurm.lab.traces.cluster import parse_cluster
from hadar_slurm.lab.traces.load import parse_gavel_trace

DATA = Path(__file__).parents[4] / "shared" / "data"
# 10 steps/s on a V100, 5 on a P100, 2 on a K80.
SPEEDS = some_rates(V100=10.0, P100=5.0, K80=2.0)


def a_small_cluster(text: str = "2xV100,2xP100,2xK80") -> Cluster:
    return parse_cluster(text, gpus_per_node=2)


def gang_bound_s(specs: list[JobSpec], cluster: Cluster) -> float:
    """Return the lower bound on the TTD for one gang per job at a time."""
    return bounds(specs, cluster).ttd_gang_s


def test_one_job_takes_its_time_on_the_fastest_type() -> None:
    """The bounds of a single gang are its run time on the fastest type."""
    found = bounds([a_spec(steps=1000, throughputs=SPEEDS)], a_small_cluster())
    assert found.ttd_gang_s == pytest.approx(100.0)
    assert found.mean_jct_gang_s == pytest.approx(100.0)


def test_one_forked_job_has_all_gpus() -> None:
    """A forked job of one GPU trains on all GPUs: 2 x 10 + 2 x 5 + 2 x 2 = 34 steps/s."""
    found = bounds([a_spec(steps=3400, throughputs=SPEEDS)], a_small_cluster())
    assert found.ttd_forking_s == pytest.approx(100.0)
    assert found.mean_jct_s == pytest.approx(340.0 / 6)


def test_two_types_share_what_two_jobs_need() -> None:
    """By hand: 3000 steps at 10 and 5 steps/s, one GPU each, take 200 s."""
    specs = [a_spec(str(i), steps=1500, throughputs=SPEEDS) for i in range(2)]
    assert gang_bound_s(specs, a_small_cluster("1xV100,1xP100")) == pytest.approx(200.0)


def test_a_gang_counts_all_its_gpus() -> None:
    """By hand: three gangs of two on one pair of GPUs, 100 s each, run one after another."""
    throughputs = Throughputs.of({("V100", 2): GangThroughput(10.0)})
    specs = [a_spec(str(i), 2, steps=1000, throughputs=throughputs) for i in range(3)]
    found = bounds(specs, a_small_cluster("2xV100"))
    assert found.ttd_gang_s == pytest.approx(300.0)
    assert found.mean_jct_s == pytest.approx(200.0)


def test_the_squashed_area_by_hand() -> None:
    """100, 200 and 300 GPU-seconds on two GPUs: the mean of 50, 150 and 300 s."""
    specs = [a_spec(str(n), steps=n * 1000, throughputs=SPEEDS) for n in (3, 1, 2)]
    assert bounds(specs, a_small_cluster("2xV100")).mean_jct_s == pytest.approx(500.0 / 3)


def test_the_hybrid_bound_by_hand() -> None:
    """Two equal jobs on one GPU end after 100 and 200 s: the bound is the exact mean."""
    specs = [a_spec(str(n), steps=1000, throughputs=SPEEDS) for n in range(2)]
    assert bounds(specs, a_small_cluster("1xV100")).mean_jct_gang_s == pytest.approx(150.0)


def test_late_arrivals_bound_the_end() -> None:
    """A job of 100 s that arrives at 1000 s ends at 1100 s at the earliest."""
    early = [a_spec(str(n), steps=10, throughputs=SPEEDS) for n in range(5)]
    late = a_spec("9", steps=1000, throughputs=SPEEDS, submitted_s=1000.0)
    assert gang_bound_s([*early, late], a_small_cluster()) == pytest.approx(1100.0)


def test_time_counts_from_the_first_submission() -> None:
    """Shifting all arrivals by an hour changes no bound."""
    specs = [
        a_spec(str(n), steps=1000 * n, throughputs=SPEEDS, submitted_s=n * 20.0) for n in (1, 2, 3)
    ]
    later = [replace(spec, submitted_s=spec.submitted_s + 3600.0) for spec in specs]
    before, after = bounds(specs, a_small_cluster()), bounds(later, a_small_cluster())
    assert _values(after) == pytest.approx(_values(before))


def test_a_shortest_job_that_comes_late_interrupts() -> None:
    """One GPU, 100 s at 0 and 10 s at 20: preemptive shortest first gives JCTs of 110 and 10 s."""
    specs = [
        a_spec("1", steps=1000, throughputs=SPEEDS),
        a_spec("2", steps=100, throughputs=SPEEDS, submitted_s=20.0),
    ]
    assert bounds(specs, a_small_cluster("1xV100")).mean_jct_s == pytest.approx(60.0)


def test_a_job_that_runs_nowhere_has_no_finite_bound() -> None:
    """A job that runs on no type of the cluster makes all bounds infinite."""
    specs = [a_spec(throughputs=some_rates(T4=1.0))]
    assert _values(bounds(specs, a_small_cluster())) == (math.inf,) * 4


def test_no_jobs_take_no_time() -> None:
    """All bounds of an empty workload are 0."""
    assert _values(bounds([], a_small_cluster())) == (0.0,) * 4


def test_rates_across_nodes_count_only_when_asked() -> None:
    """With `counts_spread`, the bound uses the rate across nodes where that is higher."""
    throughputs = Throughputs.of({("V100", 2): GangThroughput(10.0, 20.0)})
    specs = [a_spec("1", 2, steps=1000, throughputs=throughputs)]
    cluster = a_small_cluster("4xV100")
    assert gang_bound_s(specs, cluster) == pytest.approx(100.0)
    assert bounds(specs, cluster, counts_spread=True).ttd_gang_s == pytest.approx(50.0)


@st.composite
def workloads(draw: st.DrawFn) -> tuple[list[JobSpec], Cluster]:
    gpu_types = draw(st.sampled_from([("V100",), ("V100", "K80"), ("V100", "P100", "K80")]))
    cluster = a_small_cluster(",".join(f"{draw(st.sampled_from([2, 4]))}x{k}" for k in gpu_types))
    speeds = st.sampled_from([0.0, 1.0, 2.0, 5.0, 9.0])
    specs = []
    for number in range(draw(st.integers(1, 8))):
        throughputs = some_rates(**{gpu_type: draw(speeds) for gpu_type in gpu_types})
        if throughputs.best(gpu_types, 1) <= 0:
            throughputs = some_rates(**dict.fromkeys(gpu_types, 3.0))
        gang = draw(st.sampled_from([1, 1, 2]))
        steps, at_s = draw(st.integers(1, 9000)), draw(st.sampled_from([0.0, 0.0, 77.0, 500.0]))
        specs.append(
            a_spec(str(number), gang, steps=steps, throughputs=throughputs, submitted_s=at_s)
        )
    return specs, cluster


@given(workloads(), st.sampled_from(["hadar", "gavel"]))
def test_no_schedule_beats_the_bounds(drawn: tuple[list[JobSpec], Cluster], rules: str) -> None:
    """Results simulated under either set of rules are never below any bound."""
    specs, cluster = drawn
    least = bounds(specs, cluster, counts_spread=rules == "hadar")
    reached = run_experiment(specs, cluster, srsf(), ExperimentSettings(round_s=60.0, rules=rules))
    rounding = 1 + 1e-6
    assert least.ttd_forking_s <= least.ttd_gang_s * rounding
    assert least.mean_jct_s <= least.mean_jct_gang_s * rounding
    assert least.ttd_gang_s <= reached.ttd_s * rounding
    assert least.mean_jct_gang_s <= reached.mean_jct_s * rounding


@given(workloads())
def test_the_suffix_bound_is_the_largest_of_all_suffixes(
    drawn: tuple[list[JobSpec], Cluster],
) -> None:
    """Skipping irrelevant suffixes gives the same bound as solving every suffix."""
    specs, cluster = drawn
    arrivals = sorted({spec.submitted_s for spec in specs})
    each = [
        at_s
        - arrivals[0]
        + gang_bound_s(
            [replace(spec, submitted_s=0.0) for spec in specs if spec.submitted_s >= at_s], cluster
        )
        for at_s in arrivals
    ]
    assert gang_bound_s(specs, cluster) == pytest.approx(max(each), rel=1e-4)


def test_many_arrivals_take_few_solves() -> None:
    """Bounds of 2000 arrivals near capacity, where many suffixes are nearly critical."""
    rng = Random(3)
    at_s = 0.0
    specs = []
    for number in range(2000):
        at_s += rng.expovariate(1 / 20.0)
        steps = rng.randint(500, 9000)
        specs.append(a_spec(str(number), steps=steps, throughputs=SPEEDS, submitted_s=at_s))
    cluster = parse_cluster("10xV100,10xP100,10xK80", gpus_per_node=2)
    least_s = gang_bound_s(specs, cluster)
    assert at_s < least_s < 2 * at_s
    assert forking_bound_s(specs, cluster) <= least_s * (1 + 1e-6)


def _published() -> list[tuple[str, int, str, float]]:
    path = DATA / "peer_results.csv"
    if not path.exists():
        return []
    with path.open(encoding="utf-8") as file:
        return [
            (r["trace"], int(r["jobs"]), r["scheduler"], float(r["ttd_h"] or r["mean_jct_h"]))
            for r in csv.DictReader(file)
            if r["scheduler"].startswith("bound/")
        ]


@pytest.mark.skipif(not DATA.exists(), reason="the shared traces are not beside this checkout")
@pytest.mark.parametrize(("trace", "jobs", "gpu_type", "hours"), _published())
def test_the_bounds_are_the_published_ones(
    trace: str, jobs: int, gpu_type: str, hours: float
) -> None:
    """Bounds match those published for the same traces within 0.1 %."""
    specs = _trace(trace)[:jobs]
    cluster = parse_cluster("20xV100,20xP100,20xK80", gpus_per_node=4)
    fields = {"gang": "ttd_gang_s", "forking": "ttd_forking_s", "jct": "mean_jct_s"}
    found_s = getattr(bounds(specs, cluster), fields[gpu_type.removeprefix("bound/")])
    assert found_s / 3600.0 == pytest.approx(hours, rel=1e-3)


@cache
def _trace(name: str) -> list[JobSpec]:
    path = DATA / "gavel_simulation_throughputs.json"
    table = parse_table(path.read_text(encoding="utf-8"), str(path))
    text = (DATA / f"{name}.trace").read_text(encoding="utf-8")
    return parse_gavel_trace(text.splitlines(), table, name)


def _values(found: Bounds) -> tuple[float, ...]:
    return (found.ttd_gang_s, found.ttd_forking_s, found.mean_jct_s, found.mean_jct_gang_s)
