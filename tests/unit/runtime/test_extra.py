"""Mixed precision, schedulers and gradient accumulation: their state is kept with the model's."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch", reason="needs PyTorch")

from hadar_slurm.runtime.copy import Copy  # noqa: E402
from hadar_slurm.runtime.membership.surroundings import Surroundings  # noqa: E402
from hadar_slurm.runtime.settings import Settings  # noqa: E402

SETTINGS = Settings(slot_s=0.05, cost_part=1.0, poll_s=0.01, report_every_s=0.01)
INPUTS = torch.randn(64, 8, generator=torch.Generator().manual_seed(3))
LABELS = INPUTS.sum(dim=1, keepdim=True)


def a_copy(directory: Path, total_steps: int = 30, **extra: Any) -> Copy:
    """Return the only copy of a job that fits a linear function."""
    torch.manual_seed(1)
    model = torch.nn.Linear(8, 1)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
    made = {name: [make(optimiser) for make in makers] for name, makers in extra.items()}
    return Copy(
        model,
        optimiser,
        total_steps=total_steps,
        settings=SETTINGS,
        surroundings=Surroundings(copy=0, directory=directory),
        **made,
    )


def scaler(_: Any = None, **known: Any) -> Any:
    """Return a GradScaler whose scale grows fast."""
    return torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=4, **known)


def decay(optimiser: Any) -> Any:
    """Return a learning rate scheduler."""
    return torch.optim.lr_scheduler.StepLR(optimiser, step_size=10)


def train_mixed(copy: Copy, step: int, parts: int) -> None:
    """Train a step in bfloat16, with a scaled loss and gradient accumulation."""
    scale, scheduler = copy.learner.extra
    for part in range(parts):
        batch = copy.samples(step, batch_size=16, size=64, part=part, parts=parts)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = torch.nn.functional.mse_loss(copy.model(INPUTS[batch]), LABELS[batch])
        scale.scale(loss / parts).backward()
    scale.step(copy.optimiser)
    scale.update()
    scheduler.step()
    copy.optimiser.zero_grad()


def test_mixed_precision_goes_on_where_it_was(tmp_path: Path) -> None:
    """Scale and schedule are the same after three runs as after one."""
    finals = []
    for name, stops in (("whole", [0]), ("cut", [7, 19, 0])):
        for stop in stops:
            copy = a_copy(tmp_path / name, extra=[scaler, decay])
            with suppress(SystemExit), copy:
                for step in copy.steps():
                    train_mixed(copy, step, 2)
                    if step + 1 == stop:
                        copy.requests.asked.add(signal.SIGTERM)
        grade, schedule = copy.learner.extra
        finals.append((copy.model.state_dict(), grade.state_dict(), schedule.state_dict()))
    (one, one_scale, one_plan), (two, two_scale, two_plan) = finals
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert one_scale == two_scale
    assert one_scale["scale"] > 8.0
    assert one_plan["last_epoch"] == two_plan["last_epoch"] == 30


def test_turns_add_up_to_the_batch(tmp_path: Path) -> None:
    """A batch in four parts has the same gradient as the whole batch."""

    def trained(name: str, parts: int) -> Any:
        copy = a_copy(tmp_path / name)
        with copy:
            for step in copy.steps():
                for part in range(parts):
                    batch = copy.samples(step, batch_size=16, size=64, part=part, parts=parts)
                    error = copy.model(INPUTS[batch]) - LABELS[batch]
                    (error.square().sum() / 16).backward()
                copy.optimiser.step()
                copy.optimiser.zero_grad()
        return copy.model.weight

    assert torch.allclose(trained("once", 1), trained("turns", 4), atol=1e-6)


def test_a_scaler_that_is_not_enabled_keeps_out_of_the_way(tmp_path: Path) -> None:
    """A copy whose GPU trains in bfloat16 has one; its empty state changes no other scaler."""
    with a_copy(tmp_path, extra=[lambda _: scaler(enabled=False)]) as copy:
        list(copy.steps())
    late = a_copy(tmp_path, extra=[scaler])
    with late:
        assert list(late.steps()) == []
    assert late.learner.extra[0].state_dict()["scale"] == 8.0


def multi_step(optimiser: Any) -> Any:
    """Return a scheduler whose state JSON would change."""
    return torch.optim.lr_scheduler.MultiStepLR(optimiser, [3])


class Odd:
    """An object whose state has a tensor."""

    def state_dict(self) -> dict[str, Any]:
        """Return a state that is not plain."""
        return {"table": [torch.zeros(3)]}


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (multi_step, "MultiStepLR.milestones is Counter"),
        (lambda _: Odd(), r"Odd.table\[0\] is Tensor"),
    ],
)
def test_what_no_plain_value_is_is_refused_at_once(
    tmp_path: Path, make: Callable[[Any], Any], why: str
) -> None:
    """Otherwise the state would be restored with other types."""
    with pytest.raises(TypeError, match=why):
        a_copy(tmp_path, extra=[make])


def test_a_job_begun_with_other_extras_is_refused(tmp_path: Path) -> None:
    """The states could not be assigned to the objects."""
    with a_copy(tmp_path, extra=[scaler]) as copy:
        list(copy.steps())
    with (
        pytest.raises(ValueError, match="keeps the state of 1 extra objects, not 0"),
        a_copy(tmp_path) as other,
    ):
        list(other.steps())
