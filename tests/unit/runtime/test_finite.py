"""NaN or infinite values of one copy do not reach the averaged parameters."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch", reason="needs PyTorch")

from fakes.trainings import Training  # noqa: E402
from torch import nn  # noqa: E402

from hadar_slurm.runtime.averaging import state  # noqa: E402
from hadar_slurm.runtime.averaging.finite import NotFiniteError, fault_in  # noqa: E402
from hadar_slurm.runtime.copy import Copy  # noqa: E402
from hadar_slurm.runtime.files.ranges import Ranges  # noqa: E402
from hadar_slurm.runtime.files.records import Contribution, SlotEnd  # noqa: E402
from hadar_slurm.runtime.files.slots import Slots  # noqa: E402
from hadar_slurm.runtime.membership.surroundings import Surroundings  # noqa: E402
from hadar_slurm.runtime.settings import Settings  # noqa: E402

SETTINGS = Settings(slot_s=0.05, cost_part=1.0, gone_after_s=0.5, poll_s=0.01, report_every_s=0.01)


class Masked(nn.Module):
    """A linear layer, batch statistics, and a mask with valid values of -inf."""

    mask: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.register_buffer("mask", torch.full((4, 4), -math.inf).triu(1))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the outputs of the layers."""
        outputs: torch.Tensor = self.norm(self.layer(inputs))
        return outputs


def a_copy(directory: Path, number: int = 0, delay: float = 0.0) -> Copy:
    """Return a copy of a job of 60 steps."""
    torch.manual_seed(0)
    model = Masked()
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    settings = Settings(
        slot_s=0.05,
        cost_part=1.0,
        gone_after_s=0.5,
        poll_s=0.01,
        report_every_s=0.01,
        delay=delay,
        optimiser_every=1,
    )
    where = Surroundings(copy=number, directory=directory)
    return Copy(model, optimiser, total_steps=60, settings=settings, surroundings=where)


def train(copy: Copy, spoil: Callable[[Copy, int], None]) -> list[int]:
    """Train to the end, and return the steps; `spoil` is called after each."""
    steps = []
    with copy:
        for step in copy.steps():
            copy.model(torch.randn(8, 4)).square().mean().backward()
            copy.optimiser.step()
            copy.optimiser.zero_grad()
            steps.append(step)
            spoil(copy, step)
    return steps


def spoil(copy: Copy, what: str, value: float) -> None:
    """Put a value into a parameter, a batch statistic or the optimiser's state."""
    with torch.no_grad():
        if what == "parameter":
            copy.model.layer.weight[1, 2] = value
        elif what == "statistics":
            copy.model.norm.running_var[0] = value
        else:
            copy.optimiser.state[copy.model.layer.bias]["exp_avg"][0] = value


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("delay", [0.0, 1.0])
@pytest.mark.parametrize(
    ("what", "name"),
    [
        ("parameter", "model/layer.weight"),
        ("statistics", "model/norm.running_var"),
        ("state", ""),  # in the parameters by the next step
    ],
)
def test_a_spoilt_contribution_is_left_out(
    tmp_path: Path,
    what: str,
    name: str,
    value: float,
    delay: float,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its steps are trained again, and the log names the copy and the tensor."""
    spoilt: list[int] = []

    def once(copy: Copy, step: int) -> None:
        # With a delay, later steps may be trained ahead, and are then not contributed.
        if step == (0 if delay else 20) and not spoilt:
            spoilt.append(step)
            spoil(copy, what, value)

    copy = a_copy(tmp_path, delay=delay)
    steps = train(copy, once)
    assert sorted(set(steps)) == list(range(60))
    assert [steps.count(step) for step in spoilt] == [2]
    end, file = copy.member.newest()
    assert end.done == Ranges.of([(0, 60)])
    for each in ("model/layer.weight", "model/norm.running_var", "optimiser/1/exp_avg"):
        assert bool(torch.isfinite(file.tensor(each)).all())
    assert bool(torch.isfinite(copy.model.layer.weight).all())
    told = (tmp_path / "job.log").read_text()
    assert f"of copy 0 counts nothing: {name}" in told
    assert "left out: slot" in told
    assert "its steps are dealt out again" in caplog.text


def test_one_of_several_copies_is_left_out(tmp_path: Path) -> None:
    """The other copy's steps count, even if the contributing release does not check its values."""
    copy = a_copy(tmp_path)
    dealt = {0: Ranges.of([(0, 10)]), 1: Ranges.of([(10, 20)])}
    copy.member.slots.end(SlotEnd(slot=0, total_steps=60, dealt=dealt), *copy.member.named())
    end, _ = copy.member.slots.read(0)
    copy.member.slots.contribute(Contribution(0, 1, end.id, dealt[0], 1.0), *copy.member.named())
    spoil(copy, "parameter", math.nan)
    copy.member.slots.contribute(Contribution(1, 1, end.id, dealt[1], 1.0), *copy.member.named())
    assert copy.member.ending.end(end, {0, 1}, {0, 1})
    after, file = copy.member.newest()
    assert after.done == dealt[0]
    assert after.spoilt == ()
    assert bool(torch.isfinite(file.tensor("model/layer.weight")).all())


def test_training_stops_where_nothing_is_finite_any_more(tmp_path: Path) -> None:
    """It stops after three intervals in a row, and again after a restart."""

    def always(copy: Copy, step: int) -> None:
        if step >= 20:
            spoil(copy, "parameter", math.nan)

    for _ in range(2):
        with pytest.raises(NotFiniteError, match="3 slots in a row") as caught:
            train(a_copy(tmp_path), always)
    assert "copy 0: model/layer.weight has 1 of 16 values" in str(caught.value)
    assert "remove the newer ones" in str(caught.value)
    newest = Slots(tmp_path).newest()
    assert newest is not None
    assert bool(torch.isfinite(newest[1].tensor("model/layer.weight")).all())
    # After the newest end is removed, training continues, and the repeated interval may succeed.
    kept = Slots(tmp_path).kept()
    (tmp_path / "slots" / f"slot-{kept[-1]:08}.safetensors").unlink()
    steps = train(a_copy(tmp_path), lambda copy, step: None)
    assert set(range(25, 60)) <= set(steps)


def test_infinite_values_that_were_there_are_no_fault(tmp_path: Path) -> None:
    """The mask's own values are valid, but the same value elsewhere is not."""
    copy = a_copy(tmp_path)
    copy.member.slots.end(SlotEnd(slot=0, total_steps=60), *copy.member.named())
    _, base = copy.member.slots.read(0)
    tensors, facts = copy.member.named()
    assert fault_in(tensors.items(), facts, base) == ""
    assert "model/mask has 6 of 16 values" in fault_in(tensors.items(), facts, None)
    tensors["model/mask"] = tensors["model/mask"].clone().fill_(-math.inf)
    assert "model/mask has 10 of 16 values" in fault_in(tensors.items(), facts, base)
    facts["state"] = {"0": {"momentum": math.nan}}
    tensors = {state.MODEL + "layer.bias": torch.zeros(4)}
    assert "the optimiser's momentum of parameter 0" in fault_in(tensors.items(), facts, base)


@pytest.mark.parametrize(
    ("every", "most", "expected"),
    [
        (10, 3, [10, 20, 30, 36, 37]),
        (10, 2, [20, 30, 36, 37]),
        (5, 3, [25, 30, 35, 36, 37]),
        (0, 3, [36, 37]),
        (10, 0, [36, 37]),
    ],
)
def test_some_older_ends_are_kept(
    tmp_path: Path, every: int, most: int, expected: list[int]
) -> None:
    """With them, a training that slowly diverged can be set back."""
    slots = Slots(tmp_path, every, most)
    for slot in range(38):
        slots.end(SlotEnd(slot=slot, total_steps=60), {"model/a": torch.zeros(1)}, {})
    assert slots.kept() == expected


def test_a_copy_that_diverges_is_left_out_of_a_job_of_two(
    training: Callable[..., Training],
) -> None:
    """The values may be due to a faulty GPU; the other copy trains its steps."""
    job = training(300, "--step-s=0.01", "--slot-s=0.5")
    go = job.hold(0)
    held = job.hold(1, options=("--spoil-at=100",))
    go.touch()
    held.touch()
    said = job.end(0) + job.end(1)
    job.check(0, 1)
    assert "of copy 1 counts nothing: model/0.weight has " in said
    assert "left out: slot" in (job.directory / "job.log").read_text()
    assert all(bool(torch.isfinite(each).all()) for each in job.final(0).values())
