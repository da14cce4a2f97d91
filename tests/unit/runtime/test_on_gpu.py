"""Copies whose models are on a GPU train as those on CPUs do; skipped where there is none."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch", reason="needs PyTorch")
if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

from fakes.trainings import Training, until  # noqa: E402

LOADS_S = "--gone-s=30"  # a GPU takes a while to be ready for a process


@pytest.mark.parametrize(
    "how",
    [
        ("--mode=averaged",),
        ("--mode=averaged", "--delay=0.5"),
        ("--mode=averaged", "--rule=local"),
        ("--mode=synchronous",),
        ("--mode=auto",),
    ],
    ids=lambda words: " ".join(words),
)
def test_copies_on_a_gpu_share_the_steps(
    training: Callable[..., Training], how: tuple[str, ...]
) -> None:
    """Each step counts, and all copies end with the same parameters."""
    job = training(200, "--device=cuda", "--step-s=0.01", LOADS_S, *how)
    job.start_together(0, 1)
    said = job.end(0) + job.end(1)
    job.check(0, 1)
    assert set(job.steps(0)) | set(job.steps(1)) == set(range(200)), said
    if "--delay=0.5" in how:
        assert "steps that were trained ahead" in said


def test_a_copy_that_is_killed_on_a_gpu_comes_back(training: Callable[..., Training]) -> None:
    """It takes over the newest parameters, and what it had not contributed is trained again."""
    job = training(400, "--device=cuda", "--step-s=0.01", LOADS_S, "--delay=0.5")
    job.start_together(0, 1)
    until(lambda: job.has_ended(2))
    job.kill(1, signal.SIGKILL)
    job.end(1, -signal.SIGKILL)
    job.start(1)
    job.end(0)
    job.end(1)
    job.check(0, 1)
    assert set(job.steps(0)) | set(job.steps(1)) == set(range(400))
