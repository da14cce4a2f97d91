"""Learning rates follow the steps of the whole job, with any scheduler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch", reason="needs PyTorch")

from hadar_slurm.runtime.trainers.rates import LearningRates  # noqa: E402

schedulers = torch.optim.lr_scheduler
MAKERS: dict[str, Callable[[Any], Any]] = {
    "lambda": lambda o: schedulers.LambdaLR(o, lambda step: 1 / (1 + step)),
    "cycle": lambda o: schedulers.OneCycleLR(o, max_lr=[0.5, 0.2], total_steps=40),
    "exponential": lambda o: schedulers.ExponentialLR(o, 0.9),
    "warmup": lambda o: schedulers.SequentialLR(
        o,
        [schedulers.LinearLR(o, 0.1, total_iters=5), schedulers.CosineAnnealingLR(o, 30)],
        milestones=[5],
    ),
}


def optimiser() -> Any:
    """Return an optimiser with two groups."""
    one, other = torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(3))
    groups = [{"params": [one]}, {"params": [other], "lr": 0.05, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=0.1)


def shown(groups: Any) -> list[tuple[float, Any]]:
    """Return the values that a scheduler may change."""
    return [(group["lr"], group["betas"]) for group in groups]


def every(steps: int) -> Callable[[int], bool]:
    """Return a function that says whether a scheduler is due: once in `steps` steps."""
    return lambda step: step % steps == 0


@pytest.mark.filterwarnings("ignore:The epoch parameter:UserWarning")
@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("interval", [1, 3])
def test_rates_at_any_step_are_those_of_a_training_alone(name: str, interval: int) -> None:
    """Steps may be skipped, or go back where an interval's steps were lost."""
    alone = optimiser()
    scheduler = MAKERS[name](alone)
    expected = []
    for step in range(36):
        expected.append(shown(alone.param_groups))
        alone.step()
        if (step + 1) % interval == 0:
            scheduler.step()
    real = optimiser()
    rates = LearningRates(real, [(MAKERS[name](real), every(interval))])
    for step in (0, 1, 2, 7, 8, 20, 11, 35, 3):
        # A slot end restores the rates of the copy that wrote it.
        for group in real.param_groups:
            group["lr"], group["betas"] = 77.0, (0.0, 0.0)
        rates.set(step)
        assert shown(real.param_groups) == expected[step]


def test_a_scheduler_s_own_steps_change_nothing() -> None:
    """A trainer calls the scheduler after each of its steps; it reports the rates that apply."""
    real = optimiser()
    scheduler = schedulers.ExponentialLR(real, 0.5)
    rates = LearningRates(real, [(scheduler, every(1))])
    for step in (4, 5, 6):
        rates.set(step)
        assert scheduler.get_last_lr() == [0.1 * 0.5**step, 0.05 * 0.5**step]
        real.step()
        scheduler.step()


def test_without_a_scheduler_rates_are_left_alone() -> None:
    """A script may set them itself."""
    real = optimiser()
    rates = LearningRates(real, [])
    real.param_groups[0]["lr"] = 0.3
    rates.set(5)
    assert real.param_groups[0]["lr"] == 0.3


def test_what_follows_a_metric_is_refused() -> None:
    """Each copy measures a metric of its own."""
    real = optimiser()
    with pytest.raises(ValueError, match="ReduceLROnPlateau follows a metric"):
        LearningRates(real, [(schedulers.ReduceLROnPlateau(real), every(1))])
    with pytest.raises(ValueError, match="object is no scheduler of PyTorch"):
        LearningRates(real, [(object(), every(1))])
