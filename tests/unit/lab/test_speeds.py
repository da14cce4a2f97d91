"""Estimated throughputs for traces without them."""

from __future__ import annotations

import json
import math
from statistics import stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hadar_slurm.core.throughput import GangThroughput, Throughputs, ThroughputTable
from hadar_slurm.errors import UsageError
from hadar_slurm.jobspec.throughput_table import parse_table
from hadar_slurm.lab.traces.speeds import SpeedTable, parse_gpu_speeds
from hadar_slurm.resources import data_file

TABLE = parse_table(data_file("throughputs.json").read_text(encoding="utf-8"), "throughputs.json")
SPEEDS = SpeedTable(TABLE)
FAMILIES = ("A3C", "CycleGAN", "LM", "Recommendation", "ResNet-18", "ResNet-50", "Transformer")


def mean(values: list[float]) -> float:
    return math.prod(values) ** (1 / len(values))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("gpu_type", ["k80", "p100"])
def test_a_familys_speed_is_the_mean_over_its_batch_sizes(family: str, gpu_type: str) -> None:
    """A speed is the geometric mean of the ratios of single-GPU rates in the shipped table."""
    tree = json.loads(data_file("throughputs.json").read_text(encoding="utf-8"))["workloads"]
    ratios = [
        gpu_types[gpu_type]["1"][0] / gpu_types["v100"]["1"][0]
        for name, gpu_types in tree.items()
        if name.split(" (batch size")[0] == family
    ]
    assert SPEEDS.speed(gpu_type.upper(), family) == pytest.approx(mean(ratios))


@pytest.mark.parametrize("gpu_type", ["k80", "p100", "a100", "t4"])
def test_a_model_of_no_family_takes_the_mean_of_all(gpu_type: str) -> None:
    """The geometric mean over families applies, each family counted once."""
    speeds = [SPEEDS.speed(gpu_type, family) for family in FAMILIES]
    known = [speed for speed in speeds if speed is not None]
    assert len(known) == len(FAMILIES)
    assert SPEEDS.speed(gpu_type, None) == pytest.approx(mean(known))


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("vgg16 (batch size 64)", "ResNet-50"),
        ("inception3", "ResNet-50"),
        ("resnet50 (batch size 128)", "ResNet-50"),
        ("ResNet18", "ResNet-18"),
        ("bert", "Transformer"),
        ("gpt2", "Transformer"),
        ("DeepSpeech2", "LM"),
        ("lm (batch size 5)", "LM"),
        ("somenet", None),
        ("", None),
    ],
)
def test_the_family_of_a_model(name: str, family: str | None) -> None:
    """The prefix of the name decides, ignoring case, punctuation and batch size."""
    assert SPEEDS.family(name) == family


@pytest.mark.parametrize(
    ("gpu_type", "speed"),
    [
        ("V100", 1.0),
        ("tesla_v100-sxm2-32gb", 1.0),
        ("A100", 1.54),
        ("nvidia_a100-sxm4-80gb", 1.54),
        ("nvidia_geforce_rtx_2080_ti", 0.64),
        ("rtx2080ti", 0.64),
        ("quadro_rtx_6000", 0.62),
        ("tesla_t4", 0.32),
        ("1g.5gb", 1.54 / 8),
        ("nvidia_a100_3g.20gb", 1.54 * 3 / 7),
        ("A100_1g.10gb", 1.54 / 7),
        ("rtx_6000_ada_generation", 960 / 900),
        ("H100", 1.54 * 3350 / 1555),
        ("nvidia_h100_80gb_hbm3", 1.54 * 3350 / 1555),
        ("nvidia_h100_80gb_hbm3_1g.10gb", 1.54 * 3350 / 1555 / 8),
        ("L40S", 864 / 900),
        ("nvidia_l4", 0.32 * 300 / 320),
        ("mi300x", 1.54 * 5300 / 1555),
        ("v1000", None),
        ("quantum9", None),
        ("", None),
    ],
)
def test_a_type_is_known_by_the_names_sites_give_it(gpu_type: str, speed: float | None) -> None:
    """Long Slurm names and MIG slices are recognised; similar names are not."""
    found = SPEEDS.speed(gpu_type, "ResNet-50")
    assert found == (None if speed is None else pytest.approx(speed))


def test_speeds_are_relative_to_the_reference() -> None:
    """Another reference type keeps all ratios."""
    other = SpeedTable(TABLE, "P100")
    for family in (*FAMILIES, None):
        ratio = SPEEDS.speed("v100", family), SPEEDS.speed("p100", family)
        assert ratio[1] is not None
        assert other.speed("p100", family) == pytest.approx(1.0)
        assert other.speed("v100", "LM") == pytest.approx(1 / (SPEEDS.speed("p100", "LM") or 0))


def test_speeds_given_go_before_all_others() -> None:
    """Given speeds apply to every family, and may add unknown types."""
    told = SpeedTable(TABLE, given={"k80": 0.5, "h100": 6.0, "1g.5gb": 0.1})
    for family in (*FAMILIES, None):
        assert told.speed("K80", family) == 0.5
        assert told.speed("H100", family) == 6.0
        assert told.speed("1g.5gb", family) == 0.1
        assert told.speed("nvidia_h100_80gb_hbm3_2g.20gb", family) == pytest.approx(6.0 / 4)
        assert told.speed("h200", family) == pytest.approx(6.0 * 4800 / 3350)
        assert told.speed("P100", family) == SPEEDS.speed("P100", family)


@pytest.mark.parametrize("family", [*FAMILIES, None])
def test_any_known_type_may_be_the_reference(family: str | None) -> None:
    """With reference H100, which the table lacks, all ratios are kept."""
    speeds = SpeedTable(TABLE, "H100", {"a40": 0.3})
    h100 = SPEEDS.speed("h100", family)
    assert speeds.speed("h100", family) == 1.0
    assert speeds.speed("A40", family) == 0.3
    for gpu_type in ("v100", "t4", "l40s", "a100"):
        speed = SPEEDS.speed(gpu_type, family)
        assert h100 is not None
        assert speed is not None
        assert speeds.speed(gpu_type, family) == pytest.approx(speed / h100)


def test_an_unknown_reference_knows_only_what_is_given() -> None:
    """With a reference of which nothing is known, no speed follows from the types in the table."""
    speeds = SpeedTable(TABLE, "quantum9", {"a40": 0.3})
    assert speeds.speed("quantum9", "LM") == 1.0
    assert speeds.speed("A40", None) == 0.3
    assert speeds.speed("V100", "LM") == pytest.approx(0.3 * 900 / 696)
    assert SpeedTable(TABLE, "quantum9").speed("V100", "LM") is None


def test_origin_and_spread_of_every_speed_are_said() -> None:
    """Each type of the trace and the cluster has its ratio, spread, origin and number of models."""
    speeds = SpeedTable(TABLE, given={"a40": 0.9}, gpu_types=("K80", "L40S", "A40", "quantum9"))
    found = {each.gpu_type: each for each in speeds.assumed(("h100", "T4", "V100"), {"x"})}
    assert list(found) == ["A40", "K80", "L40S", "T4", "V100", "h100"]
    assert {name: (each.source, each.samples) for name, each in found.items()} == {
        "A40": ("--gpu-speeds", 0),
        "K80": ("throughput table, 7 models", 7),
        "L40S": ("memory bandwidth, from v100", 0),
        "T4": ("measured elsewhere, 3 models", 3),
        "V100": ("reference", 0),
        "h100": ("memory bandwidth, from a100", 0),
    }
    logs = [math.log(SPEEDS.speed("k80", family) or 0) for family in FAMILIES]
    assert found["K80"].spread == pytest.approx(math.exp(stdev(logs)))
    assert found["h100"].spread == pytest.approx(math.exp(0.4))
    assert found["V100"].spread == 1.0
    assert all(each.spread >= 1.05 for name, each in found.items() if name != "V100")
    (resnet,) = speeds.assumed((), {"vgg16"})[:1]
    assert (resnet.gpu_type, resnet.model) == ("A40", "ResNet-50")
    k80 = next(each for each in speeds.assumed((), {"vgg16"}) if each.gpu_type == "K80")
    assert k80.source == f"throughput table, {k80.samples} batch sizes"
    assert k80.samples > 1


def test_a_workload_of_the_very_name_brings_its_own_rows() -> None:
    """A workload of the same name gives its rates for the gang, within a node and across nodes."""
    table = ThroughputTable(
        "site",
        {
            "mine": Throughputs.of(
                {
                    ("v100", 2): GangThroughput(10.0, 8.0),
                    ("k80", 2): GangThroughput(2.0, 1.0),
                    ("p100", 2): GangThroughput(0.0),
                }
            )
        },
    )
    throughputs = SpeedTable(table).throughputs(
        "Mine", num_gpus=2, steps_per_s=3.0, ran_on=["V100"]
    )
    assert throughputs.on("v100", 2) == pytest.approx(3.0)
    assert throughputs.on("v100", 2, is_spread=True) == pytest.approx(2.4)
    assert throughputs.on("k80", 2) == pytest.approx(0.6)
    assert throughputs.on("k80", 2, is_spread=True) == pytest.approx(0.3)
    assert throughputs.on("p100", 2) == 0.0
    spread = SpeedTable(table).throughputs("mine", num_gpus=2, steps_per_s=3.0, ran_on=["V100"],
                                 was_spread=True)  # fmt: skip
    assert spread.on("v100", 2, is_spread=True) == pytest.approx(3.0)


def test_a_table_with_absurd_rates_does_no_harm() -> None:
    """Extreme ratios are ignored, and no rate is infinite."""
    table = ThroughputTable(
        "odd",
        {
            "x": Throughputs.of(
                {("v100", 1): GangThroughput(1e-300), ("k80", 1): GangThroughput(1e300)}
            )
        },
    )
    throughputs = SpeedTable(table).throughputs("x", num_gpus=1, steps_per_s=1.0, ran_on=["v100"])
    assert throughputs.on("v100", 1) == 1.0
    assert all(math.isfinite(throughput.together) for _, throughput in throughputs.rows)


@given(
    name=st.sampled_from(["vgg16", "gpt2", "x", ""]),
    ran_on=st.sets(
        st.sampled_from(["V100", "k80", "H100", "1g.5gb", "tesla_t4"]), min_size=1, max_size=3
    ),
    num_gpus=st.integers(1, 64),
    was_spread=st.booleans(),
)
def test_where_it_ran_a_job_is_as_fast_as_recorded(
    name: str, ran_on: set[str], num_gpus: int, *, was_spread: bool
) -> None:
    """The gang that ran has the recorded steps per second, whatever its types."""
    speeds = SpeedTable(TABLE, gpu_types=("V100", "P100"))
    throughputs = speeds.throughputs(
        name, num_gpus=num_gpus, steps_per_s=2.0, ran_on=ran_on, was_spread=was_spread
    )
    is_spread = was_spread and num_gpus > 1
    if num_gpus > 1 or not was_spread:
        assert throughputs.of_gang(ran_on, num_gpus, is_spread=is_spread) == pytest.approx(2.0)
    assert {gpu_type.lower() for gpu_type in ran_on} <= set(throughputs.gpu_types)


def test_speeds_on_the_command_line() -> None:
    """The format is TYPE=SPEED, in any case, with optional spaces."""
    assert parse_gpu_speeds("H100=2.5, A40 = 1.1") == {"h100": 2.5, "a40": 1.1}
    assert parse_gpu_speeds("") == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("H100", "--gpu-speeds: 'H100': expected TYPE=SPEED, such as H100=2.5"),
        ("=2", "--gpu-speeds: '=2': expected TYPE=SPEED"),
        ("H100=0", "--gpu-speeds: speed of H100 '0': expected a number above 0"),
        ("H100=-1", "--gpu-speeds: speed of H100 '-1': expected a number, 0 or more"),
        ("H100=nan", "--gpu-speeds: speed of H100 'nan': expected a number"),
        ("H100=1e300", "--gpu-speeds: speed of H100 '1e300': expected a number"),
        ("H100=2,h100=3", "--gpu-speeds: 'h100=3': given twice"),
        ("H100=2,", "--gpu-speeds: '': expected TYPE=SPEED"),
    ],
)
def test_what_is_no_speed_is_refused(text: str, words: str) -> None:
    """The error quotes the wrong part."""
    with pytest.raises(UsageError, match=words):
        parse_gpu_speeds(text)


def test_the_reference_has_no_other_speed_than_one() -> None:
    """Another speed for the reference type is an error."""
    with pytest.raises(UsageError, match="V100 is the reference type, whose speed is 1"):
        SpeedTable(TABLE, "V100", {"v100": 2.0})
