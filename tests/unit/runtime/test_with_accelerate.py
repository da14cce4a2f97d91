"""A loop with Accelerate trains in copies by two lines: each step once, to the same parameters."""

from __future__ import annotations

from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]
torch = pytest.importorskip("torch", reason="needs PyTorch")
if find_spec("accelerate") is None:
    pytest.skip("needs accelerate", allow_module_level=True)

from fakes.trainer_runs import (  # noqa: E402
    PROGRAM,
    MakeTraining,
    check_alone,
    check_asked_to_save,
    check_falling,
    check_together,
)


def test_a_copy_alone_is_as_the_plain_loop(training: MakeTraining) -> None:
    """The training has dropout and a prepared scheduler."""
    check_alone(training, "accelerate")


def test_batches_may_be_accumulated_and_loaded_by_workers(training: MakeTraining) -> None:
    """A step is a step of the optimiser; batches loaded ahead change nothing."""
    check_alone(training, "accelerate", "--accumulate=2", "--workers=2", "--dropout=0")


def test_copies_share_the_steps(training: MakeTraining) -> None:
    """The rate follows the steps of the whole job, by the script's own scheduler."""
    check_falling(check_together(training, "accelerate"), 120)


def test_copies_share_the_steps_in_mixed_precision(training: MakeTraining) -> None:
    """No other option is needed."""
    check_together(training, "accelerate", "--bf16")


def test_copies_train_synchronously(training: MakeTraining) -> None:
    """Most steps are trained by both, each with a part of the batch."""
    job = training(80, "--by=accelerate", "--mode=synchronous", "--gone-s=20", "--gather-s=60")
    job.program = PROGRAM
    job.start_together(0, 1)
    for copy in range(2):
        job.end(copy)
    job.check(0, 1)
    ours, theirs = set(job.steps(0)), set(job.steps(1))
    assert ours | theirs == set(range(80))
    assert len(ours & theirs) > 40


def test_a_copy_asked_to_save_gives_what_it_has(training: MakeTraining) -> None:
    """After USR1 it contributes its steps at once, and it ends on SIGTERM."""
    check_asked_to_save(training, "accelerate")


def test_the_last_batch_is_dropped_where_the_loader_drops_it() -> None:
    """A prepared loader no longer says so itself."""
    from accelerate import Accelerator
    from torch.utils.data import DataLoader, TensorDataset

    from hadar_slurm.runtime.loading.order import Order

    loader = DataLoader(TensorDataset(torch.zeros(10, 1)), 4, shuffle=True, drop_last=True)
    prepared = Accelerator(cpu=True).prepare(loader)
    assert Order.of(prepared.base_dataloader) == Order.of(loader)
    assert Order.of(loader).num_batches == len(prepared) == 2


@pytest.mark.parametrize(
    ("kind", "count", "wrong"),
    [("MULTI_CPU", 2, "an accelerator of 2 processes"), ("FSDP", 1, "FSDP: a copy is one process")],
)
def test_what_a_copy_cannot_do_is_refused(kind: str, count: int, wrong: str) -> None:
    """Before it joins its job."""
    from hadar_slurm.runtime.with_accelerate import AcceleratedCopy

    accelerator: Any = SimpleNamespace(distributed_type=kind, num_processes=count, scaler=None)
    model = torch.nn.Linear(1, 1)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match=wrong):
        AcceleratedCopy(accelerator, model, optimiser, total_steps=1)
