"""Batches by samples: any may be asked for, with and without workers; some orders are refused."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch", reason="needs PyTorch")

from torch.utils.data import (  # noqa: E402
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    WeightedRandomSampler,
)

from hadar_slurm.runtime.loading.batches import Batches  # noqa: E402
from hadar_slurm.runtime.loading.order import Order  # noqa: E402


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_has_the_samples_asked_for(workers: int) -> None:
    """They may be those foreseen, or others, again or as before."""
    loader: Any = DataLoader(range(40), 6, num_workers=workers)
    batches = Batches(loader)
    drawn = torch.get_rng_state()
    for first in (0, 3, 6, 9, 20, 23, 0, 0, 3):
        foreseen = [[each, each + 1, each + 2] for each in range(first + 3, 37, 3)]
        found = batches.get([first, first + 1, first + 2], lambda: foreseen, seed=1)  # noqa: B023
        assert found.tolist() == [first, first + 1, first + 2]
    assert torch.equal(torch.get_rng_state(), drawn)


def test_workers_load_what_is_foreseen() -> None:
    """A batch that was foreseen is not asked for again."""
    loader: Any = DataLoader(range(40), 1, num_workers=1)
    batches, calls = Batches(loader), []

    def foreseen() -> list[list[int]]:
        calls.append(1)
        return [[each] for each in range(1, 10)]

    assert [batches.get([each], foreseen, seed=1).tolist() for each in range(10)] == [
        [each] for each in range(10)
    ]
    assert len(calls) == 1


class Endless(IterableDataset):  # type: ignore[misc, type-arg]
    """A data set without a length."""

    def __iter__(self) -> Any:
        return iter(())


@pytest.mark.parametrize(
    ("loader", "wrong"),
    [
        (lambda: DataLoader(Endless()), "Endless is an IterableDataset; read it by copy.positions"),
        (lambda: DataLoader(range(9), batch_size=None), "needs batch_size=, and has none; index"),
        (
            lambda: DataLoader(range(9), sampler=WeightedRandomSampler([1.0] * 9, 9)),
            "sampler=WeightedRandomSampler; for a part of the data set use torch.utils.data.Subset",
        ),
        (
            lambda: DataLoader(range(9), sampler=RandomSampler(range(9), replacement=True)),
            "sampler=RandomSampler",
        ),
        (
            lambda: DataLoader(
                range(9),
                batch_sampler=type("Mine", (BatchSampler,), {})(
                    SequentialSampler(range(9)), 2, False
                ),
            ),
            "batch_sampler=Mine",
        ),
        (lambda: DataLoader(range(9), 10, drop_last=True), "no batch: its data set has 9 samples"),
    ],
)
def test_an_order_that_is_not_ours_to_decide_is_refused(loader: Any, wrong: str) -> None:
    """The error names what decides the order, and the remedy."""
    with pytest.raises(ValueError, match=wrong):
        Order.of(loader())
