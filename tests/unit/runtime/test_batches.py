"""Batches by number have the right samples for any numbers, with and without workers."""

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

from hadar_slurm.runtime.batches import Batches  # noqa: E402


def samples(number: int, batch_size: int, size: int) -> list[int]:
    """Return indices in an order that the loader does not have."""
    return [(7 * index) % size for index in range(number * batch_size, (number + 1) * batch_size)]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("is_shuffled", [True, False])
def test_a_batch_has_its_number_s_samples(workers: int, is_shuffled: bool) -> None:
    """Numbers may be consecutive, skipped or repeated, and pass the end of an epoch."""
    loader: Any = DataLoader(range(20), 6, shuffle=is_shuffled, num_workers=workers)
    batches = Batches(loader)
    drawn = torch.get_rng_state()
    for number in (0, 1, 2, 3, 9, 10, 4, 4, 11):
        found = batches.get(number, 12, samples, seed=1).tolist()
        plain = [index % 20 for index in range(number * 6, number * 6 + 6)]
        assert found == (samples(number, 6, 20) if is_shuffled else plain)
    assert torch.equal(torch.get_rng_state(), drawn)


class Endless(IterableDataset):  # type: ignore[misc, type-arg]
    """A data set without a length."""

    def __iter__(self) -> Any:
        return iter(())


@pytest.mark.parametrize(
    ("loader", "wrong"),
    [
        (lambda: DataLoader(Endless()), "Endless is an IterableDataset"),
        (lambda: DataLoader(range(9), batch_size=None), "needs batch_size=, and has none"),
        (
            lambda: DataLoader(range(9), sampler=WeightedRandomSampler([1.0] * 9, 9)),
            "sampler=WeightedRandomSampler",
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
    ],
)
def test_an_order_that_is_not_ours_to_decide_is_refused(loader: Any, wrong: str) -> None:
    """The error names what decides the order."""
    with pytest.raises(ValueError, match=wrong):
        Batches(loader())
