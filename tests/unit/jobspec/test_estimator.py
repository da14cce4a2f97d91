"""A job's throughputs by its user, the table, published speeds and other jobs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import some_rates

from hadar_slurm.core.gpu_types import Needs
from hadar_slurm.core.throughput import ThroughputTable
from hadar_slurm.core.throughput_model import Origin, Place, Workload
from hadar_slurm.jobspec.description import Description
from hadar_slurm.jobspec.estimator import Estimator
from hadar_slurm.jobspec.throughput_table import parse_table
from hadar_slurm.lab.traces.speeds import SpeedTable
from hadar_slurm.resources import data_file

TABLE = ThroughputTable("test", {"A3C": some_rates(V100=10.0, K80=1.0, P4=0.0)})
KINDS = ("V100", "K80", "A100", "P4")


@pytest.fixture
def estimator() -> Estimator:
    return Estimator.shipped(TABLE)


def origins(estimator: Estimator, description: Description) -> dict[str, Origin]:
    found = estimator.known(description, "ada", KINDS).estimates
    return {gpu_type: estimate.origin for gpu_type, estimate in found.items()}


def test_what_the_user_gives_is_taken_as_it_is(estimator: Estimator) -> None:
    """Given throughputs are used unchanged; types that are not given have throughput 0."""
    given = Description(steps=5, gpus=4, throughputs={"V100": 12.0})
    throughputs = estimator.throughputs(given, "ada", KINDS)
    assert (throughputs.on("v100", 4), throughputs.on("k80", 4)) == (12.0, 0.0)
    assert origins(estimator, given) == {"v100": Origin.GIVEN}


def test_the_table_is_filled_up_with_what_is_published(estimator: Estimator) -> None:
    """A type that the table lacks gets a scaled published speed; a throughput of 0 stays 0."""
    throughputs = estimator.throughputs(Description(steps=5, workload="a3c"), "ada", KINDS)
    assert [throughputs.on(gpu_type, 1) for gpu_type in ("v100", "k80", "p4")] == [10.0, 1.0, 0.0]
    assert throughputs.on("a100", 1) == pytest.approx(10.0 * (1.54 * 2.13 * 3.4) ** (1 / 3))


def test_a_workload_of_the_table_runs_on_types_that_the_table_lacks(estimator: Estimator) -> None:
    """Without any type of the table in the cluster, published ratios scale the table's figures."""
    job = Description(steps=5, workload="a3c")
    throughputs = estimator.throughputs(job, "ada", ("A100", "H100", "X"))
    assert throughputs.on("a100", 1) == pytest.approx(
        estimator.throughputs(job, "ada", ("V100", "K80", "A100")).on("a100", 1)
    )
    assert throughputs.on("h100", 1) > throughputs.on("a100", 1)
    assert throughputs.on("x", 1) > 0


def test_what_is_measured_takes_the_place_of_the_table(estimator: Estimator) -> None:
    job = Description(steps=5, workload="A3C")
    estimator.speeds.measure(Workload("ada", "A3C"), Place("v100", 1), 5.0)
    throughputs = estimator.throughputs(job, "ada", KINDS)
    assert throughputs.on("v100", 1) == 5.0
    # The measurement is half the table's figure, so the other types are estimated at half, too.
    assert throughputs.on("k80", 1) == pytest.approx(0.5)
    assert origins(estimator, job)["v100"] is Origin.MEASURED
    assert estimator.throughputs(job, "ben", KINDS).on("v100", 1) == pytest.approx(5.0)
    assert estimator.known(job, "ben", KINDS).estimates["v100"].origin is Origin.SIMILAR


def test_steps_and_a_limit_give_a_speed_to_begin_with(estimator: Estimator) -> None:
    """The slowest type trains the steps within the limit; the table's ratio scales the others."""
    job = Description(steps=36_000, limit_s=3600.0, workload="job:x")
    throughputs = estimator.throughputs(job, "ada", ("V100", "K80"))
    assert throughputs.on("k80", 1) == pytest.approx(10.0)
    assert throughputs.on("v100", 1) == pytest.approx(100.0)
    assert estimator.total_steps(job, throughputs) == 36_000


def test_hadard_and_a_replay_believe_the_same_of_gpu_types() -> None:
    """The ratios of a job of which nothing is known are those of a history without rates."""
    table = parse_table(data_file("throughputs.json").read_text(encoding="utf-8"), "shipped")
    names = ("k80", "p100", "v100", "t4", "a100", "h100", "l40s", "mi300x", "nvidia_a100_1g.5gb")
    job = Description(limit_s=3600.0, workload="job:x", needs=Needs(types=names))
    found = Estimator.shipped(table).throughputs(job, "ada", names)
    speeds = SpeedTable(table)
    for name in names:
        ratio = found.on(name, 1) / found.on("v100", 1)
        assert ratio == pytest.approx(speeds.speed(name, None)), name


def test_a_sites_own_bandwidth_goes_before_what_was_measured_elsewhere() -> None:
    own = Estimator.shipped(TABLE, own_types={"A100": {"bandwidth_gb_s": 9000}})
    found = own.throughputs(Description(limit_s=9.0, workload="job:x"), "ada", ("V100", "A100"))
    assert found.on("a100", 1) == pytest.approx(10.0 * found.on("v100", 1))


@pytest.mark.parametrize("gpus", [1, 4])
def test_a_limit_alone_is_work_for_so_long_on_the_slowest_type(
    estimator: Estimator, gpus: int
) -> None:
    job = Description(limit_s=3600.0, gpus=gpus, workload="job:x")
    for measured in (False, True):
        if measured:
            estimator.speeds.measure(Workload("ada", "job:x"), Place("v100", gpus), 80.0)
        throughputs = estimator.throughputs(job, "ada", ("V100", "K80"))
        total = estimator.total_steps(job, throughputs)
        assert estimator.counts_real_steps(job, "ada") is measured
        assert total / throughputs.on("k80", gpus) == pytest.approx(3600.0, rel=1e-3)
        assert total / throughputs.on("v100", gpus) == pytest.approx(360.0, rel=1e-3)


def test_answers_are_remembered_until_there_is_news(estimator: Estimator) -> None:
    """Throughputs are cached until a measurement changes them."""
    job = Description(steps=5, workload="A3C")
    first = estimator.throughputs(job, "ada", KINDS)
    assert estimator.throughputs(job, "ada", KINDS) is first
    estimator.speeds.measure(Workload("ada", "A3C"), Place("v100", 1), 5.0)
    assert estimator.throughputs(job, "ada", KINDS) is not first


def test_a_job_has_no_throughput_on_types_that_it_may_not_have(estimator: Estimator) -> None:
    """Neither by estimates nor by given throughputs; time limits count on the types left."""
    types = ("v100", "k80", "a100_1g.5gb")
    whole = Description(limit_s=100.0, workload="job:x")
    large = replace(whole, needs=Needs(memory_gb=14))
    for description, expected in ((whole, {"v100", "k80"}), (large, {"v100"})):
        found = estimator.throughputs(description, "", types)
        assert {name for name in types if found.on(name, 1) > 0} == expected
        assert estimator.known(description, "", types).estimates.keys() == expected
    speed = estimator.throughputs(large, "", types).on("v100", 1)
    assert estimator.total_steps(large, estimator.throughputs(large, "", types)) == pytest.approx(
        100.0 * speed, abs=1
    )
    rates = {"v100": 2.0, "k80": 1.0, "a100_1g.5gb": 1.0}
    given = Description(steps=9, throughputs=rates, needs=Needs(memory_gb=5))
    found = estimator.throughputs(given, "", types)
    # A throughput that is given for a slice names it.
    assert {name for name in types if found.on(name, 1) > 0} == set(types)
