"""Generated workloads: their distributions, for any seed."""

from __future__ import annotations

import math
from collections import Counter
from itertools import groupby, pairwise
from random import Random
from statistics import median, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hadar_slurm.core.job import JobSpec
from hadar_slurm.core.throughput import GangThroughput, Throughputs, ThroughputTable
from hadar_slurm.errors import UsageError
from hadar_slurm.jobspec.throughput_table import parse_table
from hadar_slurm.lab.traces.workload import (
    GENERATORS,
    HADAR_SIZES,
    GavelMost,
    burst_jobs,
    gavel_jobs,
    generate,
    hadar_jobs,
    sweep_jobs,
)
from hadar_slurm.resources import data_file

TABLE = parse_table(data_file("throughputs.json").read_text(encoding="utf-8"), "throughputs.json")
MANY = 4000


def model(job: JobSpec) -> str:
    return job.workload.partition(" (")[0]


def run_s(job: JobSpec) -> float:
    return job.total_steps / job.throughputs.on("v100", job.num_gpus)


def share(jobs: list[JobSpec], **gangs: int) -> float:
    return sum(job.num_gpus == gangs["of"] for job in jobs) / len(jobs)


@pytest.mark.parametrize("name", GENERATORS)
def test_a_seed_says_it_all(name: str) -> None:
    """The same seed gives the same jobs; another seed gives others."""
    jobs = generate(name, 50, Random(3).random, TABLE, mean_gap_s=60.0)
    assert jobs == generate(name, 50, Random(3).random, TABLE, mean_gap_s=60.0)
    assert jobs != generate(name, 50, Random(4).random, TABLE, mean_gap_s=60.0)
    assert [job.job_id for job in jobs] == [str(number) for number in range(50)]


def test_hadars_mix() -> None:
    """Four equally frequent sizes with their models and GPU-hours; gangs of 1, 2 and 4."""
    jobs = hadar_jobs(MANY, Random(0).random, TABLE)
    sizes = {name: size for size, (_, _, models) in HADAR_SIZES.items() for name in models}
    for job in jobs:
        least, most, _ = HADAR_SIZES[sizes[model(job)]]
        assert least * 0.99 < job.num_gpus * run_s(job) / 3600 < most * 1.01
    for count in Counter(sizes[model(job)] for job in jobs).values():
        assert count == pytest.approx(MANY / 4, rel=0.1)
    gangs = [job for job in jobs if model(job) != "CycleGAN"]
    assert {job.num_gpus for job in jobs if model(job) == "CycleGAN"} == {1}
    assert [share(gangs, of=size) for size in (1, 2, 4)] == pytest.approx([0.7, 0.1, 0.2], abs=0.03)


def test_gavels_mix() -> None:
    """All workloads, gangs of 1 to 8, and run times of 31.6 to 10,000 minutes."""
    jobs = gavel_jobs(MANY, Random(0).random, TABLE)
    assert {job.workload for job in jobs} == set(TABLE.workloads)
    assert all(31.6 * 60 * 0.99 < run_s(job) < 10_000 * 60 * 1.01 for job in jobs)
    assert sum(run_s(job) < 60_000 for job in jobs) / MANY == pytest.approx(0.8, abs=0.02)
    gangs = [job for job in jobs if model(job) not in ("A3C", "CycleGAN", "Recommendation")]
    found = [share(gangs, of=size) for size in (1, 2, 4, 8)]
    assert found == pytest.approx([0.70, 0.10, 0.15, 0.05], abs=0.03)


def test_gavels_whole_hours() -> None:
    """Run times are 1 to 24 hours, and gangs are no larger than the largest."""
    jobs = gavel_jobs(MANY, Random(0).random, TABLE, most=GavelMost(gang=4, whole_hours=24))
    hours = Counter(round(run_s(job) / 3600) for job in jobs)
    assert set(hours) == set(range(1, 25))
    assert max(job.num_gpus for job in jobs) == 4


def test_sweeps() -> None:
    """A sweep is 5 to 40 jobs of one workload at once; lengths have their median and spread."""
    jobs = sweep_jobs(MANY, Random(0).random, TABLE, mean_gap_s=36000.0)
    sessions = [list(each) for _, each in groupby(jobs, key=lambda job: job.submitted_s)]
    sweeps = [each for each in sessions if len(each) >= 5]
    assert len(sweeps) / len(sessions) == pytest.approx(0.25, abs=0.06)
    assert max(map(len, sweeps)) <= 40
    for sweep in sweeps:
        assert {(job.workload, job.num_gpus) for job in sweep} == {(sweep[0].workload, 1)}
        assert max(map(run_s, sweep)) <= 2.1 * min(map(run_s, sweep)) + 10
    logs = [math.log(run_s(each[0])) for each in sessions]
    assert math.exp(median(logs)) == pytest.approx(1200, rel=0.35)
    assert stdev(logs) == pytest.approx(1.7, rel=0.15)


def test_bursts() -> None:
    """Jobs arrive in bursts of 12 on average, mostly gangs, with a heavy tail of lengths."""
    jobs = burst_jobs(MANY, Random(0).random, TABLE, mean_gap_s=600.0)
    gaps = [after.submitted_s - job.submitted_s for job, after in pairwise(jobs)]
    assert sum(gap > 600 for gap in gaps) / MANY == pytest.approx(1 / 12, abs=0.02)
    assert [share(jobs, of=size) for size in (1, 2, 4, 8)] == pytest.approx(
        [0.4, 0.2, 0.2, 0.2], abs=0.03
    )
    # Three quarters are shorter than 2 minutes * 4 ** (1 / 0.8).
    assert sum(run_s(job) < 679 for job in jobs) / MANY == pytest.approx(0.75, abs=0.02)
    assert max(map(run_s, jobs)) <= 5 * 86400 * 1.01


@pytest.mark.parametrize("name", GENERATORS)
def test_arrivals(name: str) -> None:
    """The first job arrives at 0, the others later, in whole seconds, with the mean gap given."""
    arrivals = [
        job.submitted_s for job in generate(name, MANY, Random(1).random, TABLE, mean_gap_s=90.0)
    ]
    assert arrivals[0] == 0.0
    assert arrivals == sorted(arrivals)
    assert all(arrival == int(arrival) for arrival in arrivals)
    assert arrivals[-1] / (MANY - 1) == pytest.approx(90.0, rel=0.06)
    at_once = generate(name, 30, Random(1).random, TABLE)
    assert {job.submitted_s for job in at_once} == {0.0}


@given(
    values=st.lists(st.floats(0, 1, exclude_max=True), min_size=1),
    name=st.sampled_from(tuple(GENERATORS)),
)
def test_any_numbers_make_jobs(values: list[float], name: str) -> None:
    """Any sequence of random numbers in [0, 1) gives valid jobs."""
    numbers = iter(values * 200)
    for job in generate(name, 5, lambda: next(numbers), TABLE, mean_gap_s=10.0):
        assert job.total_steps >= 1
        assert job.throughputs.on("v100", job.num_gpus) > 0


def test_what_cannot_be_generated_is_named() -> None:
    """Errors name wrong generators, counts, gaps, and models missing in the table."""
    draw = Random(0).random
    with pytest.raises(UsageError, match="generator 'x': expected one of hadar, gavel"):
        generate("x", 1, draw, TABLE)
    with pytest.raises(UsageError, match="0 jobs: expected 1 or more"):
        generate("hadar", 0, draw, TABLE)
    with pytest.raises(UsageError, match="a mean gap of nan s: expected seconds, 0 or more"):
        generate("gavel", 1, draw, TABLE, mean_gap_s=float("nan"))
    other = ThroughputTable("site", {"mine": Throughputs.of({("a100", 1): GangThroughput(1.0)})})
    with pytest.raises(UsageError, match=r"has no .* with a rate on one V100"):
        generate("hadar", 1, draw, other)
    with pytest.raises(UsageError, match="no workload of the throughput table has a rate on one"):
        generate("gavel", 1, draw, other)
    (job,) = gavel_jobs(1, draw, other, reference="A100")
    assert job.workload == "mine"
