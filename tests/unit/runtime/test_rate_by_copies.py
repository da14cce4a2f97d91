"""The learning rate follows the effective number of copies that average."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch", reason="needs PyTorch")

from fakes.by_loader import SETTINGS, Job, Plan  # noqa: E402

from hadar_slurm.runtime.averaging.rates import aim, factor, warm_up_steps  # noqa: E402
from hadar_slurm.runtime.copy import Copy  # noqa: E402
from hadar_slurm.runtime.files.ranges import Ranges  # noqa: E402
from hadar_slurm.runtime.files.records import SlotEnd  # noqa: E402
from hadar_slurm.runtime.intervals.scaling import Scaling  # noqa: E402
from hadar_slurm.runtime.settings import Settings  # noqa: E402


def an_end(*shares: int, **facts: Any) -> SlotEnd:
    """Return an end after which copies have shares of the next steps."""
    dealt, first = {}, 0
    for copy, share in enumerate(shares):
        dealt[copy] = Ranges.of([(first, first + share)])
        first += share
    return SlotEnd(slot=1, total_steps=1000, dealt=dealt, **facts)


def test_the_factor_is_the_root_of_the_effective_copies() -> None:
    """Speeds of 1, 1, 0.5, 0.5 and 0.2 are those of 3.2 copies; one copy has the script's rate."""
    assert aim(an_end(20, 20, 10, 10, 4), True) == pytest.approx(math.sqrt(3.2))
    assert aim(an_end(20), True) == 1.0
    assert aim(an_end(20, together=True), True) == 1.0
    assert aim(an_end(), True) == 1.0
    assert aim(an_end(20, 20), False) == 1.0
    assert aim(an_end(20, 20), 2) == 2.0
    assert aim(an_end(20), 2) == 1.0


def test_the_factor_grows_with_the_job_s_steps_and_falls_at_once() -> None:
    """It begins with what it was at the end of the interval before."""
    assert warm_up_steps(1000) == 50
    assert warm_up_steps(10**6) == 1000
    four = an_end(20, 20, 20, 20, done=Ranges.of([(0, 100)]), rate_factor=1.2)
    found = [factor(four, done, True) for done in (100, 110, 150, 900)]
    assert found == pytest.approx([1.2, 1.4, 2.0, 2.0])
    assert factor(replace(four, dealt={0: Ranges.of([(0, 9)])}), 101, True) == 1.0
    assert SlotEnd.of({**four.facts, "id": "1"}).rate_factor == 1.2


def test_a_factor_must_be_positive() -> None:
    """The error names the setting."""
    with pytest.raises(ValueError, match="rate_by_copies must be above 0, not -1"):
        Settings(rate_by_copies=-1.0)


def test_a_script_s_scheduler_does_not_see_the_factor() -> None:
    """Schedulers read and write the script's own rate, also after a step that has failed."""
    weight = torch.nn.Parameter(torch.zeros(()))
    optimiser = torch.optim.SGD([weight], lr=0.5)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimiser, 0.5)
    scaling = Scaling.of(optimiser)
    assert Scaling.of(optimiser) is scaling
    scaling.factor = 3.0
    before = 0.0
    for rate in (0.5, 0.25, 0.125):
        assert optimiser.param_groups[0]["lr"] == rate
        weight.grad = torch.ones(())
        optimiser.step()
        assert float(weight.detach()) == before - 3.0 * rate
        before = float(weight.detach())
        scheduler.step()

    def fail() -> float:
        raise ArithmeticError

    with pytest.raises(ArithmeticError):
        optimiser.step(fail)
    optimiser.step()
    assert optimiser.param_groups[0]["lr"] == 0.0625
    assert float(weight.detach()) == before - 3.0 * 0.0625


def note(copy: Copy, number: int, plan: Plan) -> None:
    """Have a copy note the rate of each of its optimiser's steps."""

    def noted(optimiser: Any, *_: object) -> None:
        with (plan.notes / f"rates-{number}").open("a") as told:
            told.write(f"{optimiser.param_groups[0]['lr']}\n")

    copy.optimiser.register_step_pre_hook(noted)


def rates(job: Job) -> list[list[float]]:
    """Return the rates of each copy's steps."""
    paths = sorted(job.plan.notes.glob("rates-*"))
    return [[float(line) for line in path.read_text().splitlines()] for path in paths]


@pytest.mark.parametrize(
    ("mode", "copies", "by_copies", "least", "most"),
    [
        ("averaged", 2, True, 1.1, 1.415),
        ("averaged", 2, 3.0, 3.0, 3.0),
        ("averaged", 2, False, 1.0, 1.0),
        ("averaged", 1, True, 1.0, 1.0),
        ("synchronous", 2, True, 1.0, 1.0),
    ],
)
def test_copies_train_with_the_rate_of_their_number(
    job: Callable[..., Job], mode: str, copies: int, by_copies: Any, least: float, most: float
) -> None:
    """It grows from the script's own; `job.log` says so, once."""
    settings = replace(SETTINGS, slot_s=0.3, rate_by_copies=by_copies)
    made = job(
        copies=copies,
        epochs=5,
        mode=mode,
        slow=(0.003, 0.003),
        settings=settings,
        prepare=note,
    )
    made.run()
    # The last interval's few steps may be dealt unequally.
    factors = [max(each) / made.plan.lr for each in rates(made)]
    assert all(least - 1e-6 <= each <= most + 1e-6 for each in factors), (factors, made.log())
    assert [each[0] / made.plan.lr for each in rates(made)] == pytest.approx([1.0] * copies)
    assert ("the learning rate becomes" in made.log()) == (most > 1)
