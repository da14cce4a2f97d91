"""Estimates of throughputs without measurements, and their change by measurements."""

from __future__ import annotations

import math

import pytest

from hadar_slurm.core.gpu_types import GpuFacts
from hadar_slurm.core.throughput import GangThroughput, Throughputs
from hadar_slurm.core.throughput_model import (
    Origin,
    Place,
    Prior,
    ThroughputModel,
    Workload,
    estimated_throughputs,
    relative_prior,
)
from hadar_slurm.sim.learning import relative_speeds

K80, P100, V100 = (Place(gpu_type, 1) for gpu_type in ("k80", "p100", "v100"))
PUBLISHED = {
    name: GpuFacts(bandwidth_gb_s=speed)
    for name, speed in (("k80", 240.0), ("p100", 732.0), ("v100", 900.0))
}
KINDS = tuple(PUBLISHED)
MINE = Workload("ada", "ResNet-50 (batch size 64)")


def prior(num_gpus: int = 1) -> Prior:
    """Return the prior of a job of which only 1 step/s on its slowest type is known."""
    return relative_prior(relative_speeds(KINDS, PUBLISHED), num_gpus, 1.0)


def listed(**throughputs: float) -> Prior:
    return Prior(
        Throughputs.of(
            {
                (gpu_type, 1): GangThroughput(throughput)
                for gpu_type, throughput in throughputs.items()
            }
        )
    )


def speed(
    speeds: ThroughputModel, place: Place, of: Prior | None = None, workload: Workload = MINE
) -> float:
    return speeds.estimate(workload, place, of or prior(place.num_gpus)).steps_per_s


def measure_all(speeds: ThroughputModel, model: str, ratio: float) -> None:
    """Record measurements of eight workloads of a model on both types."""
    for number in range(8):
        workload = Workload("ada", f"{model} (batch size {number})")
        speeds.measure(workload, V100, ratio)
        speeds.measure(workload, K80, 1.0)


def test_without_any_measurement_the_published_speeds_count() -> None:
    found = [ThroughputModel().estimate(MINE, place, prior()) for place in (K80, P100, V100)]
    assert [estimate.steps_per_s for estimate in found] == pytest.approx([1.0, 3.05, 3.75])
    assert {estimate.origin for estimate in found} == {Origin.PUBLISHED}


def test_the_first_measurement_replaces_what_was_believed() -> None:
    speeds = ThroughputModel()
    assert speeds.measure(MINE, V100, 10.0)
    estimate = speeds.estimate(MINE, V100, prior())
    assert (estimate.steps_per_s, estimate.origin) == (10.0, Origin.MEASURED)
    assert estimate.uncertainty < speeds.estimate(MINE, K80, prior()).uncertainty


def test_one_measurement_moves_the_other_types_by_the_published_ratio() -> None:
    speeds = ThroughputModel()
    speeds.measure(MINE, V100, 10.0)
    estimate = speeds.estimate(MINE, K80, prior())
    assert estimate.steps_per_s == pytest.approx(10.0 * 240 / 900)
    assert estimate.origin is Origin.SIMILAR


def test_ratios_are_learned_from_the_family_more_than_from_others() -> None:
    speeds = ThroughputModel()
    measure_all(speeds, "LM", 3.0)
    measure_all(speeds, "ResNet-50", 10.0)
    speeds.measure(MINE, V100, 100.0)
    speeds.measure(Workload("ada", "A3C"), V100, 100.0)
    resnet = 100.0 / speed(speeds, K80)
    stranger = 100.0 / speed(speeds, K80, workload=Workload("ada", "A3C"))
    assert 8.0 < resnet < 10.0
    assert 4.0 < stranger < 7.0


def test_what_does_not_fit_stays_unfit_until_it_is_seen_to_train() -> None:
    speeds = ThroughputModel()
    own = listed(v100=20.0, k80=0.0)
    speeds.measure(MINE, V100, 20.0)
    assert speed(speeds, K80, own) == 0.0
    speeds.measure(MINE, K80, 2.0)
    assert speed(speeds, K80, own) == 2.0


def test_a_gang_of_another_size_goes_by_its_size() -> None:
    speeds = ThroughputModel()
    speeds.measure(MINE, Place("v100", 4), 40.0)
    assert speed(speeds, Place("v100", 2)) == pytest.approx(20.0)
    assert speed(speeds, Place("v100", 8)) == pytest.approx(80.0)
    assert speed(speeds, Place("v100", 4, is_spread=True)) == pytest.approx(0.8 * 40.0)


def test_noise_is_no_news() -> None:
    speeds = ThroughputModel()
    speeds.measure(MINE, V100, 10.0)
    version = speeds.version
    assert not any(
        speeds.measure(MINE, V100, throughput) for throughput in (10.2, 9.8, 10.4, 9.7, 10.0)
    )
    assert (speed(speeds, V100), speeds.version) == (10.0, version)


def test_a_speed_that_changes_is_believed_soon() -> None:
    speeds = ThroughputModel()
    speeds.measure(MINE, V100, 10.0)
    for _ in range(5):
        speeds.measure(MINE, V100, 20.0)
    assert speed(speeds, V100) == pytest.approx(20.0, rel=0.1)


def test_others_measurements_count_until_there_are_own_ones() -> None:
    speeds = ThroughputModel()
    for user, throughput in (("ben", 9.0), ("cyd", 10.0), ("mallory", 1e9)):
        speeds.measure(Workload(user, MINE.name), V100, throughput)
    estimate = speeds.estimate(MINE, V100, prior())
    assert (estimate.steps_per_s, estimate.origin) == (pytest.approx(10.0), Origin.SIMILAR)
    speeds.measure(MINE, V100, 8.0)
    assert speed(speeds, V100) == 8.0


def test_a_type_that_nobody_has_published_is_like_the_middle_of_the_others() -> None:
    found = relative_prior(relative_speeds(("k80", "v100", "mystery"), PUBLISHED), 1, 1.0)
    assert found.on(Place("mystery", 1)) == pytest.approx(math.sqrt(3.75))


def test_all_rates_of_a_gang_come_with_their_origins() -> None:
    speeds = ThroughputModel()
    speeds.measure(MINE, Place("v100", 2), 10.0)
    throughputs, told = estimated_throughputs(speeds, MINE, 2, ("V100", "K80"), prior(2))
    assert throughputs.on("v100", 2) == 10.0
    assert throughputs.on("v100", 2, is_spread=True) == pytest.approx(8.0)
    assert {gpu_type: estimate.origin for gpu_type, estimate in told.items()} == {
        "v100": Origin.MEASURED,
        "k80": Origin.SIMILAR,
    }
