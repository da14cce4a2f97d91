"""Lightning's Trainer trains in copies by a callback: each step once, to the same parameters."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]
torch = pytest.importorskip("torch", reason="needs PyTorch")
if find_spec("lightning") is None:
    pytest.skip("needs Lightning", allow_module_level=True)

from fakes.trainer_runs import (  # noqa: E402
    MakeTraining,
    check_alone,
    check_asked_to_save,
    check_falling,
    check_together,
)

from hadar_slurm.runtime.membership.surroundings import Surroundings  # noqa: E402


@pytest.fixture(autouse=True)
def _environment() -> Iterator[None]:
    """Restore the environment: variables that Lightning sets would affect every later training."""
    with mock.patch.dict(os.environ):
        yield


def test_a_copy_alone_is_as_the_plain_loop(training: MakeTraining) -> None:
    """The training has dropout and a scheduler that Lightning steps."""
    check_alone(training, "lightning")


def test_batches_may_be_accumulated_loaded_by_workers_and_validated_between(
    training: MakeTraining,
) -> None:
    """A step is a step of the optimiser; batches loaded ahead change nothing."""
    options = ("--accumulate=2", "--workers=2", "--validate", "--dropout=0")
    check_alone(training, "lightning", *options)


def test_copies_share_the_steps(training: MakeTraining) -> None:
    """The learning rate follows the steps of the whole job."""
    told = check_together(training, "lightning", "--validate")
    check_falling(told, 120)


def test_a_cycle_of_rates_is_the_job_s_in_mixed_precision(training: MakeTraining) -> None:
    """The scheduler computes each rate from the one before, and changes the betas, too."""
    told = check_together(training, "lightning", "--schedule=cycle", "--bf16")
    optimiser = torch.optim.AdamW([torch.zeros(1)], lr=1e-2)
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimiser, max_lr=1e-2, total_steps=121)
    rates = []
    for _ in range(120):
        rates.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        cycle.step()
    assert [rate for _, rate, _ in told] == pytest.approx([rates[at] for _, _, at in told])


def test_a_copy_asked_to_save_gives_what_it_has(training: MakeTraining) -> None:
    """Lightning's own signal handlers, which would requeue the job, are not used."""
    check_asked_to_save(training, "lightning")


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({}, "max_epochs"),
        ({"max_epochs": 2, "min_steps": 3}, "min_steps"),
        ({"max_epochs": 2, "limit_train_batches": 3, "accumulate_grad_batches": 2}, "no multiple"),
        ({"max_epochs": 2, "strategy": "ddp"}, "DDPStrategy"),
        ({"max_epochs": 2, "plateau": True}, "ReduceLROnPlateau follows a metric"),
        ({"max_epochs": 2, "manual": True}, "automatic_optimization"),
        ({"max_epochs": 2, "plain_loader": True}, "InCopies.batches"),
    ],
)
def test_what_a_copy_cannot_do_is_refused_by_its_name(
    tmp_path: Path, options: dict[str, Any], wrong: str
) -> None:
    """The error is raised before the first step."""
    import lightning.pytorch as pl
    from torch.utils.data import DataLoader, TensorDataset

    from hadar_slurm.runtime.with_lightning import InCopies

    is_plateau, is_manual = options.pop("plateau", False), options.pop("manual", False)
    is_plain = options.pop("plain_loader", False)

    class Module(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)
            self.automatic_optimization = not is_manual

        def training_step(self, batch: Any) -> Any:
            raise AssertionError("a step is trained")

        def configure_optimizers(self) -> Any:
            optimiser = torch.optim.SGD(self.parameters(), lr=0.1)
            if not is_plateau:
                return optimiser
            plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimiser)
            return [optimiser], [{"scheduler": plateau, "monitor": "loss"}]

    copies = InCopies(surroundings=Surroundings(copy=0, directory=tmp_path / "job"))
    loader: Any = DataLoader(TensorDataset(torch.zeros(40, 2)), 4)
    quiet: dict[str, Any] = dict.fromkeys(
        ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
    )
    options = {"max_epochs": -1, "accelerator": "cpu", "devices": 1, **quiet, **options}
    trainer = pl.Trainer(callbacks=[copies], **options)
    with pytest.raises(ValueError, match=wrong):
        trainer.fit(Module(), loader if is_plain else copies.batches(loader))
    assert not (tmp_path / "job").exists()
