"""Batch statistics and random numbers of copies, as docs/runtime.md says.

Statistics of synchronous copies: `synchronous/test_gradients.py`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch", reason="needs PyTorch")

from fakes import train_copy  # noqa: E402
from fakes.by_loader import Job, Plan  # noqa: E402

from hadar_slurm.runtime.copy import Copy  # noqa: E402
from hadar_slurm.runtime.files.ranges import Ranges  # noqa: E402
from hadar_slurm.runtime.files.records import Contribution, SlotEnd  # noqa: E402
from hadar_slurm.runtime.membership.surroundings import Surroundings  # noqa: E402

MEAN, VARIANCE = "model/1.running_mean", "model/1.running_var"
COUNT = "model/1.num_batches_tracked"


def a_copy(path: Path, number: int = 0) -> Copy:
    """Return a copy that has not joined."""
    model, optimiser, _ = train_copy.make(0)
    where = Surroundings(copy=number, directory=path)
    return Copy(model, optimiser, total_steps=40, surroundings=where)


def test_averaged_statistics_are_the_mean_by_steps(tmp_path: Path) -> None:
    """The count of batches is that of the copy with most steps."""
    copy = a_copy(tmp_path)
    slots = copy.member.slots
    dealt = {0: Ranges.of([(0, 30)]), 1: Ranges.of([(30, 40)])}
    slots.end(SlotEnd(slot=0, total_steps=40, dealt=dealt), *copy.member.named())
    end, _ = slots.read(0)
    for number, (mean, variance, count) in enumerate([(1.0, 2.0, 30), (5.0, 6.0, 10)]):
        tensors, facts = copy.member.named()
        changed = {MEAN: mean, VARIANCE: variance, COUNT: count}
        own = tensors | {
            name: torch.full_like(tensors[name], value) for name, value in changed.items()
        }
        slots.contribute(Contribution(number, 1, end.id, dealt[number], 1.0), own, facts)
    assert copy.member.ending.end(end, {0, 1}, {0, 1})
    _, file = copy.member.newest()
    assert torch.allclose(file.tensor(MEAN), torch.full((16,), 2.0))
    assert torch.allclose(file.tensor(VARIANCE), torch.full((16,), 3.0))
    assert int(file.tensor(COUNT)) == 30


def test_averaged_copies_draw_different_numbers_and_again_the_same(tmp_path: Path) -> None:
    """Interval and copy decide; random numbers of Python are left alone."""
    drawn: dict[tuple[int, int, int], Any] = {}
    random.seed(3)
    for number in (0, 1):
        copy = a_copy(tmp_path / "job", number)
        if not number:
            copy.member.slots.end(SlotEnd(slot=0, total_steps=40), *copy.member.named())
        _, file = copy.member.slots.read(0)
        for slot in (0, 1):
            for again in (0, 1):
                copy.learner.load(SlotEnd(slot=slot, total_steps=40), file)
                drawn[number, slot, again] = float(torch.rand(()))
    assert len(set(drawn.values())) == 4
    assert all(drawn[number, slot, 0] == drawn[number, slot, 1] for number, slot, _ in drawn)
    assert random.random() == random.Random(3).random()


def test_synchronous_copies_draw_different_numbers(job: Callable[..., Job]) -> None:
    """As copies of one batch, which has as much noise as on one node."""

    def prepare(copy: Copy, number: int, plan: Plan) -> None:
        def drawn(*_: object) -> None:
            with (plan.notes / f"drawn-{number}").open("a") as told:
                told.write(f"{float(torch.rand(()))}\n")

        copy.optimiser.register_step_pre_hook(drawn)

    made = job(copies=2, epochs=2, mode="synchronous", prepare=prepare)
    made.run()
    drawn = [(made.plan.notes / f"drawn-{copy}").read_text().split() for copy in (0, 1)]
    # The copy that is there first may train a step before the other one has joined.
    assert len(drawn[0]) + len(drawn[1]) > made.plan.total_steps, made.log()
    assert not set(drawn[0]) & set(drawn[1])
