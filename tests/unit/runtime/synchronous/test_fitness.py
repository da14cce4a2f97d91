"""Which training scripts can share their steps: seen while they train on their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch", reason="needs PyTorch")

from hadar_slurm.runtime.averaging.modes import IntervalChooser, IntervalKind, TrainingMode  # noqa: E402
from hadar_slurm.runtime.synchronous.fitness import Fitness  # noqa: E402

Script = Callable[[Fitness, Any, Any], None]


def once(fitness: Fitness, model: Any, optimiser: Any) -> None:
    """Train a step as the documentation shows it."""
    fitness.expect(1)
    model(torch.ones(3, 4)).mean().backward()
    optimiser.step()


def in_parts(fitness: Fitness, model: Any, optimiser: Any) -> None:
    """Accumulate gradients."""
    for _ in range(3):
        fitness.expect(3)
        model(torch.ones(3, 4)).mean().backward()
    optimiser.step()


def without_samples(fitness: Fitness, model: Any, optimiser: Any) -> None:
    """Read batches in a way of one's own."""
    model(torch.ones(3, 4)).mean().backward()
    optimiser.step()


def two_losses(fitness: Fitness, model: Any, optimiser: Any) -> None:
    """Call backward for each of two losses."""
    fitness.expect(1)
    for _ in range(2):
        model(torch.ones(3, 4)).mean().backward()
    optimiser.step()


def two_steps(fitness: Fitness, model: Any, optimiser: Any) -> None:
    """Use gradients twice."""
    fitness.expect(1)
    model(torch.ones(3, 4)).mean().backward()
    optimiser.step()
    optimiser.step()


def mixed_parts(fitness: Fitness, model: Any, optimiser: Any) -> None:
    """Take the same batch whole and in parts."""
    fitness.expect(1)
    fitness.expect(2)
    model(torch.ones(3, 4)).mean().backward()
    optimiser.step()


def no_gradients(fitness: Fitness, model: Any, optimiser: Any) -> None:
    """Compute gradients in a way that leaves none in the parameters."""
    fitness.expect(1)
    torch.autograd.grad(model(torch.ones(3, 4)).mean(), list(model.parameters()))


@pytest.mark.parametrize(
    ("script", "fault"),
    [
        (once, ""),
        (in_parts, ""),
        (without_samples, "no samples from"),
        (two_losses, "called 2 times in a step, with samples in 1 part"),
        (two_steps, "2 steps in one"),
        (mixed_parts, "in 1 and in 2 parts"),
        (no_gradients, "called 0 times"),
    ],
)
def test_a_step_shows_whether_it_can_be_shared(script: Script, fault: str) -> None:
    """The reason of a script that averages is told; nothing stays on the model."""
    model = torch.nn.Linear(4, 2)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    fitness = Fitness(model, optimiser)
    fitness.begin()
    script(fitness, model, optimiser)
    fitness.finish()
    assert fitness.fault is not None
    assert fault in fitness.fault if fault else fitness.fault == ""
    two_losses(fitness, model, optimiser)  # is not counted
    assert fault in fitness.fault


def test_a_sparse_gradient_is_not_exchanged() -> None:
    """An exchange takes dense gradients."""
    model = torch.nn.Embedding(8, 2, sparse=True)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    fitness = Fitness(model, optimiser)
    fitness.begin()
    fitness.expect(1)
    model(torch.tensor([1, 2])).mean().backward()
    fitness.finish()
    assert fitness.fault == "gradients are sparse"


def test_an_interval_is_watched_once_for_the_same_copies() -> None:
    """Copies that never can train synchronously, as those of an older script, do not delay it."""
    choice = IntervalChooser(TrainingMode.AUTO)
    assert choice.kind((0,), (), ()) is IntervalKind.AVERAGED
    assert choice.kind((0, 1), (), ()) is IntervalKind.WATCHED
    assert choice.kind((0, 1), (0,), ()) is IntervalKind.AVERAGED
    assert choice.kind((0, 1), (0, 1), ()) is IntervalKind.SYNCHRONOUS
    assert choice.kind((0, 1), (0, 1), (0, 1)) is IntervalKind.AVERAGED
    assert choice.kind((0, 1, 2), (0, 1), (0, 1)) is IntervalKind.WATCHED
    assert choice.kind((0, 1, 2), (0, 1, 2), (0, 1)) is IntervalKind.SYNCHRONOUS


def test_a_mode_that_was_asked_for_is_not_watched() -> None:
    """Only "auto" has something to find out."""
    assert IntervalChooser(TrainingMode.AVERAGED).kind((0, 1), (0, 1), ()) is IntervalKind.AVERAGED
    assert IntervalChooser(TrainingMode.SYNCHRONOUS).kind((0, 1), (0,), ()) is IntervalKind.AVERAGED
    assert (
        IntervalChooser(TrainingMode.SYNCHRONOUS).kind((0, 1), (0, 1), (0, 1))
        is IntervalKind.SYNCHRONOUS
    )
