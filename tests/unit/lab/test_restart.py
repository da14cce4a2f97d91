"""Restart costs: one value, one per model, or a published preset."""

import pytest

from hadar_slurm.errors import UsageError
from hadar_slurm.lab.traces.restart import RestartCosts, parse_restart_costs


def test_one_figure_is_for_every_model() -> None:
    """A plain number applies to every model."""
    assert parse_restart_costs("12.5").of("LM (batch size 80)") == 12.5


def test_a_model_may_have_its_own() -> None:
    """A model's cost applies to all its batch sizes, in any case; others keep the default."""
    costs = parse_restart_costs("10, ResNet-50=250,resnet-18=3")
    assert costs.of("ResNet-50 (batch size 64)") == 250
    assert costs.of("ResNet-18 (batch size 16)") == 3
    assert costs.of("CycleGAN") == 10


def test_the_longest_model_that_fits_decides() -> None:
    """A cost for one batch size overrides that of the model."""
    costs = parse_restart_costs("LM=5,LM (batch size 80)=50")
    assert costs == RestartCosts(30.0, {"LM": 5.0, "LM (batch size 80)": 50.0})
    assert costs.of("LM (batch size 80)") == 50
    assert costs.of("LM (batch size 5)") == 5


def test_the_preset_has_the_published_penalties() -> None:
    """`sia` is the table of the Sia artifact."""
    costs = parse_restart_costs("sia")
    assert [costs.of(name) for name in ("ResNet-50 (batch size 16)", "BERT", "A3C")] == [
        250.0,
        120.0,
        30.0,
    ]


@pytest.mark.parametrize("text", ["", "fast", "-1", "nan", "30,=5", "30,LM=", "30,,"])
def test_what_is_no_cost_is_refused(text: str) -> None:
    """An invalid cost raises a UsageError that names the option."""
    with pytest.raises(UsageError, match="--restart-seconds"):
        parse_restart_costs(text)
