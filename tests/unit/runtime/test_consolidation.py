"""Parameters are averaged as documented, and exactly where documented as exact."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch", reason="needs PyTorch")

from hadar_slurm.runtime.averaging.consolidation import Outer, check_alike, mean  # noqa: E402

STEPS = st.lists(st.integers(1, 1000), min_size=1, max_size=6)


@given(STEPS, st.sampled_from(["float32", "float64", "bfloat16", "float16", "complex64"]))
def test_copies_that_agree_stay_as_they_are(steps: list[int], kind: str) -> None:
    """The mean equals them to the bit, with any weights."""
    torch.manual_seed(sum(steps))
    tensor = torch.randn(50).to(getattr(torch, kind))
    assert torch.equal(mean([(count, tensor.clone()) for count in steps]), tensor)


@given(STEPS)
def test_infinities_and_negative_zeros_stay_what_they_are(steps: list[int]) -> None:
    """A causal mask of -inf is a buffer like any other."""
    mask = torch.tensor([0.0, -0.0, float("-inf"), float("inf")])
    found = mean([(count, mask.clone()) for count in steps])
    assert found.tolist() == mask.tolist()
    assert torch.signbit(found).tolist() == torch.signbit(mask).tolist()
    stepped, _ = Outer().step(mask, found, None)
    assert stepped.tolist() == mask.tolist()


def test_steps_are_weights() -> None:
    """Three steps of one copy are weighted against one step of another."""
    one, other = torch.tensor([4.0, 0.0]), torch.tensor([0.0, 8.0])
    assert torch.equal(mean([(3, one), (1, other)]), torch.tensor([3.0, 2.0]))


@given(STEPS)
def test_the_mean_is_that_of_double_precision(steps: list[int]) -> None:
    """It is so within the rounding of the type; half precision is averaged in single precision."""
    torch.manual_seed(len(steps))
    for kind, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 1e-2)):
        parts = [(count, torch.randn(20).to(kind)) for count in steps]
        exact = sum(count * tensor.double() for count, tensor in parts) / sum(steps)
        found = mean(parts)
        assert found.dtype == kind
        assert torch.allclose(found.double(), exact, atol=tolerance)


def test_whole_numbers_are_those_of_the_copy_with_most_steps() -> None:
    """Examples are BatchNorm's count of batches and masks; of equals, the first copy counts."""
    parts = [(2, torch.tensor(7)), (5, torch.tensor(9)), (5, torch.tensor(11))]
    assert int(mean(parts)) == 9
    assert bool(mean([(1, torch.tensor(True)), (2, torch.tensor(False))])) is False


def test_an_outer_step_of_rate_one_without_momentum_is_the_mean() -> None:
    """With momentum, the parameters still move after the mean has stopped."""
    base, moved = torch.tensor([1.0, 2.0]), torch.tensor([3.0, -2.0])
    found, velocity = Outer(rate=1.0, momentum=0.0).step(base, moved, None)
    assert torch.equal(found, moved)
    outer = Outer(rate=0.5, momentum=0.5)
    found, velocity = outer.step(base, moved, None)
    # Moved by (-2, 4): Nesterov's step is 0.5 * (1 + 0.5) of it.
    assert torch.equal(found, torch.tensor([2.5, -1.0]))
    again, _ = outer.step(found, found, velocity)
    assert torch.equal(again, found - 0.5 * 0.5 * 0.5 * velocity)


def test_models_that_differ_are_told_apart() -> None:
    """The error has the name and the shape."""
    base = {"a": torch.Size([2]), "b": torch.Size([3, 1])}
    assert check_alike(base, dict(base)) == ""
    assert check_alike(base, {"a": torch.Size([2])}) == "b is missing"
    assert "c is nothing" in check_alike(base, base | {"c": torch.Size([1])})
    assert "a has the shape (4,)" in check_alike(base, base | {"a": torch.Size([4])})
