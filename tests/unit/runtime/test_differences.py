"""Contributions are differences in half precision, and nothing small is lost over intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch", reason="needs PyTorch")

from hadar_slurm.runtime.averaging.consolidation import OptimiserRule, Outer  # noqa: E402
from hadar_slurm.runtime.averaging.differences import Differences  # noqa: E402
from hadar_slurm.runtime.averaging.merging import SpoiltError, merged, shapes  # noqa: E402
from hadar_slurm.runtime.files.tensors import BLOCK, TensorFile  # noqa: E402
from hadar_slurm.runtime.files.writing import write_tensors  # noqa: E402

FACTS = {"facts": {"state": {}, "groups": [], "parameters": ["model/a"], "extra": []}}


def file(path: Path, tensors: Mapping[str, Any], **facts: Any) -> TensorFile:
    """Return a file with these tensors."""
    write_tensors(path, tensors, {**FACTS, **facts})
    return TensorFile(path)


def parts_of(
    directory: Path, base: TensorFile, values: list[Any], made: list[Differences] | None = None
) -> list[tuple[int, TensorFile]]:
    """Return the contributions of copies with these values of `model/a`, of 1, 2, ... steps."""
    made = made or [Differences() for _ in values]
    return [
        (
            steps,
            file(
                directory / f"part-{steps}",
                by.of({"model/a": value}, ["model/a"], base, is_exact=False),
            ),
        )
        for steps, (value, by) in enumerate(zip(values, made, strict=True), start=1)
    ]


def one_of(
    directory: Path, base: TensorFile, parts: list[tuple[int, TensorFile]], **known: Any
) -> TensorFile:
    """Return what an interval ends with."""
    known = {"rule": OptimiserRule.AVERAGE, "outer": None} | known
    tensors, facts, _ = merged(base, parts, **known)
    write_tensors(directory / "after", tensors, {"facts": facts})
    return TensorFile(directory / "after")


def test_a_contribution_has_half_of_the_bytes(tmp_path: Path) -> None:
    """What is no parameter in single precision stays as it is, such as batch statistics."""
    base = file(tmp_path / "base", {"model/a": torch.randn(1000), "model/var": torch.ones(3)})
    mine = {
        "model/a": torch.randn(1000),
        "model/var": torch.full((3,), 1e-3),
        "model/count": torch.tensor(3),
    }
    found = Differences().of(mine, ["model/a"], base, is_exact=False)
    assert found.keys() == {"difference/model/a", "model/var", "model/count"}
    assert found["difference/model/a"].dtype == torch.bfloat16
    assert found["difference/model/a"].shape == mine["model/a"].shape
    assert torch.equal(found["model/var"], mine["model/var"])
    written = file(tmp_path / "part", found)
    assert shapes(written) == {name: tensor.shape for name, tensor in mine.items()}


def test_the_mean_is_that_of_single_precision_within_rounding(tmp_path: Path) -> None:
    """Steps are weights, over tensors of several blocks; the mean is kept in single precision."""
    torch.manual_seed(0)
    start = torch.randn(BLOCK + 77)
    base = file(tmp_path / "base", {"model/a": start})
    values = [start + 1e-3 * torch.randn_like(start) for _ in range(3)]
    after = one_of(tmp_path, base, parts_of(tmp_path, base, values)).tensor("model/a")
    exact = sum(steps * value.double() for steps, value in enumerate(values, start=1)) / 6
    assert after.dtype == torch.float32
    # Half of the last of 8 bits, of differences of at most 5e-3.
    assert float((after.double() - exact).abs().max()) < 5e-3 * 2**-8


def test_small_changes_are_not_lost_over_many_intervals(tmp_path: Path) -> None:
    """The sum of 200 rounded means is the exact one, within the rounding of one of them."""
    size, start = 1e-3, torch.zeros(500)
    # Rounding drops the same part of each of these.
    moves = [size * torch.full((500,), 1.0 + part) for part in (2.0**-10, 2.0**-9 - 2.0**-12)]
    made, rounded = [Differences(), Differences()], torch.zeros(500).double()
    base = file(tmp_path / "base", {"model/a": start})
    for _ in range(200):
        now = base.tensor("model/a")
        parts = parts_of(tmp_path, base, [now + move for move in moves], made)
        base = one_of(tmp_path, base, parts)
        rounded += sum(n * move.bfloat16().double() for n, move in enumerate(moves, start=1)) / 3
    exact = 200 * sum(n * move.double() for n, move in enumerate(moves, start=1)) / 3
    lost = float((rounded - exact).abs().min())
    error = float((base.tensor("model/a").double() - exact).abs().max())
    assert error < size * 2**-8 < lost / 10


def test_an_exact_contribution_has_what_was_left_out(tmp_path: Path) -> None:
    """That of a lone copy, and that to the last interval: nothing stays behind."""
    base = file(tmp_path / "base", {"model/a": torch.zeros(4)})
    by, value = Differences(), torch.tensor([1.0, 1 / 3, 1e-3, 2.0])
    rounded = by.of({"model/a": value}, ["model/a"], base, is_exact=False)["difference/model/a"]
    left = value - rounded.float()
    assert float(left.abs().max()) > 0
    found = by.of({"model/a": value}, ["model/a"], base, is_exact=True)
    assert torch.allclose(found["model/a"], value + left, atol=1e-8)
    again = by.of({"model/a": value}, ["model/a"], base, is_exact=True)
    assert again["model/a"] is value


@pytest.mark.parametrize("is_exact", [False, True])
def test_copies_that_agree_stay_as_they_are(tmp_path: Path, is_exact: bool) -> None:
    """Infinite values, such as those of a mask, do so too."""
    start = torch.tensor([0.5, -math.inf, math.inf, 3.0])
    base = file(tmp_path / "base", {"model/a": start})
    parts = [
        (
            steps,
            file(
                tmp_path / f"part-{steps}",
                Differences().of({"model/a": start.clone()}, ["model/a"], base, is_exact=is_exact),
            ),
        )
        for steps in (3, 5, 7)
    ]
    assert torch.equal(one_of(tmp_path, base, parts).tensor("model/a"), start)


def test_a_mean_that_is_not_finite_names_the_tensor(tmp_path: Path) -> None:
    """The base has finite values there."""
    base = file(tmp_path / "base", {"model/a": torch.zeros(3)})
    parts = [(1, file(tmp_path / "part", {"model/a": torch.tensor([0.0, math.nan, 1.0])}))]
    with pytest.raises(SpoiltError, match="model/a has 1 values that are NaN or infinite"):
        one_of(tmp_path, base, parts)
    assert not (tmp_path / "after").exists()


def test_differences_and_whole_parameters_have_one_mean(tmp_path: Path) -> None:
    """A copy whose start could no longer be read contributes its parameters as they are."""
    base = file(tmp_path / "base", {"model/a": torch.tensor([1.0, 2.0])})
    parts = parts_of(tmp_path, base, [torch.tensor([2.0, 2.0])])
    parts.append((3, file(tmp_path / "whole", {"model/a": torch.tensor([4.0, 6.0])})))
    after = one_of(tmp_path, base, parts).tensor("model/a")
    assert torch.allclose(after, torch.tensor([3.5, 5.0]))


def test_an_outer_step_keeps_its_velocity(tmp_path: Path) -> None:
    """By the same rule as on whole tensors."""
    base = file(tmp_path / "base", {"model/a": torch.tensor([1.0, 2.0])})
    outer = Outer(rate=0.5, momentum=0.5)
    old, velocity = base.tensor("model/a"), None
    for _ in range(2):
        moved = old + torch.tensor([1.0, -2.0])
        after = one_of(tmp_path, base, parts_of(tmp_path, base, [moved]), outer=outer)
        expected, velocity = outer.step(old, moved, velocity)
        assert torch.allclose(after.tensor("model/a"), expected)
        assert torch.allclose(after.tensor("outer/model/a"), velocity)
        (tmp_path / "after").rename(tmp_path / "base")
        base, old = TensorFile(tmp_path / "base"), expected


@pytest.mark.parametrize(
    ("rule", "expected"),
    [("average", 2.0), ("keep", 3.0), ("local", 3.0), ("reset", None)],
)
def test_the_optimisers_state_follows_the_rule(
    tmp_path: Path, rule: str, expected: float | None
) -> None:
    """Copies that have not contributed theirs do not count."""
    base = file(tmp_path / "base", {"model/a": torch.zeros(1)})
    parts = [
        (2, file(tmp_path / "one", {"model/a": torch.zeros(1), "optimiser/0/m": torch.ones(1)})),
        (
            2,
            file(tmp_path / "two", {"model/a": torch.zeros(1), "optimiser/0/m": torch.ones(1) * 3}),
        ),
        (9, file(tmp_path / "none", {"model/a": torch.zeros(1)}, with_state=False)),
    ]
    parts[1] = replace_steps(parts[1], 2)
    if rule in ("keep", "local"):
        parts[1] = replace_steps(parts[1], 3)
    tensors, _, has_state = merged(base, parts, OptimiserRule(rule), None)
    assert has_state
    after = one_of(tmp_path, base, parts, rule=OptimiserRule(rule))
    assert ("optimiser/0/m" in tensors) == (expected is not None)
    if expected is not None:
        assert float(after.tensor("optimiser/0/m")) == expected
    assert merged(base, parts[2:], OptimiserRule.AVERAGE, None)[2] is False


def replace_steps(part: tuple[int, TensorFile], steps: int) -> tuple[int, TensorFile]:
    """Return a contribution of another number of steps."""
    return steps, part[1]
