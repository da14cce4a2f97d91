"""Hugging Face's Trainer trains in copies by one call: each step once, to the same parameters."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]
torch = pytest.importorskip("torch", reason="needs PyTorch")
if find_spec("transformers") is None or find_spec("accelerate") is None:
    pytest.skip("needs transformers and accelerate", allow_module_level=True)

from fakes.trainer_runs import (  # noqa: E402
    MakeTraining,
    check_alone,
    check_asked_to_save,
    check_falling,
    check_together,
)

from hadar_slurm.runtime.membership.surroundings import Surroundings  # noqa: E402


def test_a_copy_alone_is_as_the_plain_loop(training: MakeTraining) -> None:
    """The training has dropout and a scheduler that the Trainer steps."""
    check_alone(training, "transformers")


def test_batches_may_be_accumulated_loaded_by_workers_and_evaluated_between(
    training: MakeTraining,
) -> None:
    """A step is a step of the optimiser; batches loaded ahead change nothing."""
    options = ("--accumulate=2", "--workers=2", "--validate", "--dropout=0")
    check_alone(training, "transformers", *options)


def test_copies_share_the_steps(training: MakeTraining) -> None:
    """The rate follows the steps of the whole job, by the Trainer's own scheduler and optimiser."""
    told = check_together(training, "transformers", "--validate", "--schedule=linear")
    check_falling(told, 120)


def test_copies_share_the_steps_in_mixed_precision(training: MakeTraining) -> None:
    """No other option is needed."""
    check_together(training, "transformers", "--bf16")


def test_a_copy_asked_to_save_gives_what_it_has(training: MakeTraining) -> None:
    """After USR1 it contributes its steps at once, and it ends on SIGTERM."""
    check_asked_to_save(training, "transformers")


def trainer_in(directory: Path, **options: Any) -> Any:
    """Return a Trainer that must not train."""
    import transformers

    class Model(torch.nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def forward(self, inputs: Any) -> Any:
            raise AssertionError("a step is trained")

    args = transformers.TrainingArguments(
        output_dir=str(directory / "out"), use_cpu=True, report_to=[], **options
    )
    data = [{"inputs": torch.zeros(2)} for _ in range(40)]
    return transformers.Trainer(model=Model(), args=args, train_dataset=data, eval_dataset=data)


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"auto_find_batch_size": True}, "auto_find_batch_size"),
        (
            {"load_best_model_at_end": True, "eval_strategy": "no", "save_strategy": "no"},
            "load_best_model_at_end",
        ),
        (
            {"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "epoch"},
            "ReduceLROnPlateau follows a metric",
        ),
    ],
)
def test_what_a_copy_cannot_do_is_refused_by_its_name(
    tmp_path: Path, options: dict[str, Any], wrong: str
) -> None:
    """The error is raised before the first step."""
    from hadar_slurm.runtime.with_transformers import train_in_copies

    trainer = trainer_in(tmp_path, remove_unused_columns=False, **options)
    where = Surroundings(copy=0, directory=tmp_path / "job")

    def train() -> None:
        train_in_copies(trainer, surroundings=where)
        trainer.train()

    with pytest.raises(ValueError, match=wrong):
        train()
    assert not (tmp_path / "job").exists()


def test_no_checkpoint_is_written_where_copies_would_write_the_same_one(tmp_path: Path) -> None:
    """All copies have the same output directory."""
    from hadar_slurm.runtime.with_transformers import train_in_copies

    trainer = trainer_in(tmp_path, save_strategy="steps", save_steps=1)
    train_in_copies(trainer)
    assert trainer.args.save_strategy == "no"
