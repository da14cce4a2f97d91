"""What our policies see in Sia's simulator of jobs that tune their batch sizes.

HADAR_SIA_ARTIFACT names a checkout of Sia's artifact; its test needs the simulator's libraries too.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[3]
SIA = ROOT / "benchmarks" / "sia"
ARTIFACT = os.environ.get("HADAR_SIA_ARTIFACT")
LIBRARIES = ("pandas", "scipy", "autograd", "rich")


@pytest.fixture
def batch_sizes(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the module on batch sizes."""
    monkeypatch.syspath_prepend(str(SIA))
    import batch_sizes

    return batch_sizes


class Goodput:
    """A goodput function that tries 1 to 8 samples a GPU, twice before a synchronisation."""

    def __init__(self, model: Any, gradients: Any, initial: int) -> None:
        assert (len(model), len(gradients), initial) == (7, 2, 4)

    def throughput(self, nodes: Any, gpus: Any, atomic: Any, accum: Any) -> Any:
        """Return samples/s by a model of throughput."""
        raise AssertionError("step times are measured")

    def efficiency(self, batch_size: Any) -> Any:
        """Return what a sample is worth, by a model of gradients."""
        raise AssertionError("what samples are worth is known")

    def optimize(
        self, nodes: int, gpus: int, most: int, bounds: tuple[int, int], *, accumulation: bool
    ) -> tuple[float, int, int]:
        """Return the greatest goodput, with what it is reached."""
        assert accumulation
        atomic = np.array([[size] for size in (1, 2, 4, 8)])
        goodput = self.throughput(nodes, np.array([gpus]), atomic, atomic * 0 + 1)
        goodput *= self.efficiency(gpus * atomic * 2)
        best = int(np.argmax(goodput))
        return float(goodput.flat[best]), int(atomic.flat[best]), 1


class Application:
    """Measured up to 4 samples: a step takes 1 s for each sample, and 1 s for each node.

    All samples are worth the same in its first epoch; later large batches are worth no more than
    small ones.
    """

    init_batch_size, min_local_bsz, max_batch_size = 4, 1, 64

    def get_max_local_bsz(self, placement: tuple[int, ...]) -> int:
        """Return the largest batch of a GPU."""
        return 8

    def get_throughput(self, placement: tuple[int, ...], atomic: int) -> tuple[float, float]:
        """Return the measured times in s of a step, and of its synchronisation."""
        assert type(atomic) is int
        return (-1, -1) if atomic > 4 else (len(placement) + atomic, len(placement))

    def get_progress(self, epoch: int) -> float:
        """Return the work done by the end of an epoch."""
        return 100.0 * epoch

    def get_grad_stats(self, batch_size: int, epoch: int) -> tuple[float, float]:
        """Return squared norm and variance of the gradient."""
        return (1.0, 0.0) if epoch else (0.0, 1.0)


def info(*, epoch: int = 0, progress: float = 0.0, epochs: int = 1, slowdown: float = 1.0) -> Any:
    """Return a job as the simulator shows it."""
    return SimpleNamespace(
        applications={"fast": Application()}, slowdown_factor=slowdown,
        epoch=epoch, progress=progress, epochs=epochs, remain_steps=100.0 * epochs - progress,
    )  # fmt: skip


def test_speed_is_the_goodput_at_the_best_batch_size(batch_sizes: ModuleType) -> None:
    """By measured step times with accumulation, in steps of the initial batch size."""
    speed = batch_sizes.useful_speed(Goodput)
    # Two GPUs with 4 samples, twice before a synchronisation: 16 samples in 1 + 4 + 4 s.
    assert speed(info(), "fast", (2,)) == pytest.approx(16 / 9 / 4)
    assert speed(info(slowdown=0.5), "fast", (2,)) == pytest.approx(16 / 9 / 4 / 2)
    # Two nodes take a second longer, once: synchronisation is not repeated.
    assert speed(info(), "fast", (1, 1)) == pytest.approx(16 / 10 / 4)


def test_speed_is_that_of_all_epochs_left(batch_sizes: ModuleType) -> None:
    """So that the work left, at this speed, takes as long as the job will train."""
    speed = batch_sizes.useful_speed(Goodput)
    # Where large batches are worth no more, the initial batch size is best: 1 + 1 + 1 s.
    assert speed(info(epoch=1, progress=100.0, epochs=2), "fast", (2,)) == pytest.approx(1 / 3)
    # 60 steps of the first epoch, 100 of the second.
    both_s = 60 * 9 * 4 / 16 + 100 * 3
    shown = info(epoch=0, progress=40.0, epochs=2)
    assert speed(shown, "fast", (2,)) == pytest.approx(160 / both_s)


def test_without_foresight_speed_is_that_of_the_present_epoch(batch_sizes: ModuleType) -> None:
    """Whatever the epochs after it are like."""
    speed = batch_sizes.useful_speed(Goodput, foresees=False)
    shown = info(epoch=0, progress=40.0, epochs=2, slowdown=0.5)
    assert speed(shown, "fast", (2,)) == pytest.approx(16 / 9 / 4 / 2)


def test_a_gang_too_large_for_the_largest_batch_does_not_run(batch_sizes: ModuleType) -> None:
    """Each GPU needs the smallest number of samples at least."""
    assert batch_sizes.useful_speed(Goodput)(info(), "fast", (65,)) == 0.0


class Cluster:
    """What is used of the simulator's."""

    tunes = True

    def disable_bsz_tuning(self) -> None:
        """Keep batch sizes."""
        self.tunes = False

    def get_gavel_job_info(self, job: Any) -> Any:
        """Return what Gavel is shown."""
        return SimpleNamespace(total_steps=7, remain_steps=3)


def a_job(epoch: int, progress: float) -> Any:
    """Return a job of five epochs of 100 steps."""
    return SimpleNamespace(
        reference_app=Application(), completion_epoch=4, epoch=epoch, progress=progress
    )


def test_work_counts_in_steps_of_the_initial_batch_size(batch_sizes: ModuleType) -> None:
    """It is what the simulator calls progress, to the end of the last epoch."""
    cluster = batch_sizes.tuning_batches(Cluster)()
    shown = cluster.get_gavel_job_info(a_job(1, 120.0))
    assert (shown.total_steps, shown.remain_steps) == (500.0, 380.0)
    assert (shown.epoch, shown.epochs, shown.progress) == (1, 5, 120.0)
    # One that is about to end is still a job.
    assert cluster.get_gavel_job_info(a_job(4, 500.0)).remain_steps == 1.0


def test_batch_sizes_are_tuned_or_kept_whatever_the_simulator_does(
    batch_sizes: ModuleType,
) -> None:
    """It switches tuning off for Gavel, in whose place our policies are, and on for Sia."""
    tuning, keeping = batch_sizes.tuning_batches(Cluster)(), batch_sizes.keeping_batches(Cluster)()
    tuning.disable_bsz_tuning()
    assert tuning.tunes
    assert not keeping.tunes


_ONE_JOB = """
import json, sys
sys.path[:0] = sys.argv[1:3]
import applications, goodput, job
from batch_sizes import tuning_batches, useful_speed

class Shows:
    def get_gavel_job_info(self, job):
        return type("Info", (), {"applications": job.applications})()

every = applications.APPLICATIONS
one = job.Job("one", {k: v["cifar10"] for k, v in every.items()}, 0, 4, 2048)
one.migrate("rtx", (4,))
one.step(one.rescale_time + 60)
shown = tuning_batches(Shows)().get_gavel_job_info(one)
shown.slowdown_factor = one.calibration_factor
speed, begin_s = useful_speed(goodput.GoodputFunction)(shown, "rtx", (4,)), one.current_time
while one.completion_time is None:
    one.step(60)
print(json.dumps([shown.remain_steps / speed, one.completion_time - begin_s]))
"""


@pytest.mark.slow
@pytest.mark.skipif(not ARTIFACT, reason="needs Sia's artifact: set HADAR_SIA_ARTIFACT")
@pytest.mark.skipif(
    not all(map(importlib.util.find_spec, LIBRARIES)), reason="needs Sia's libraries"
)
def test_a_real_job_ends_when_it_is_expected_to() -> None:
    """Its models of throughput and gradients cost it a little of the best goodput."""
    simulator = Path(str(ARTIFACT), "sia-simulator").resolve()
    command = [sys.executable, "-W", "ignore", "-c", _ONE_JOB, str(SIA), str(simulator)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    expected_s, real_s = json.loads(done.stdout.splitlines()[-1])
    assert expected_s <= real_s * 1.01
    assert real_s == pytest.approx(expected_s, rel=0.1)
