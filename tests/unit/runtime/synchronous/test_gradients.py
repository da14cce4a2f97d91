"""Gradients of all copies are those of the whole batch, or none."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch", reason="needs PyTorch")

from torch import nn  # noqa: E402

from hadar_slurm.runtime.synchronous.gradients import (  # noqa: E402
    Exchanged,
    Field,
    Gradients,
    StepOutcome,
)
from hadar_slurm.runtime.synchronous.links import LinkError, Links  # noqa: E402
from hadar_slurm.runtime.synchronous.transfer import send_bytes  # noqa: E402

LIMIT_S = 90.0
INPUTS = torch.randn(12, 4, generator=torch.Generator().manual_seed(3))


def model() -> Any:
    """Return a model with batch statistics, and a parameter that is not used."""
    torch.manual_seed(1)
    made = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, affine=False), nn.Linear(3, 1))
    made.register_parameter("unused", nn.Parameter(torch.ones(2)))
    return made


def in_copies(
    directory: Path,
    train: Callable[[int, Gradients], None],
    count: int = 2,
    make: Callable[[], Any] = model,
) -> Any:
    """Return models and outcomes of copies that train one step, each in a thread.

    None begins before all are linked: one that closes its links earlier has no group formed.
    """

    def one(rank: int) -> tuple[Any, Exchanged]:
        made = models[rank]
        links = Links(directory / "keys", rank, ["here"] * count, lambda: True)
        are_linked.wait(LIMIT_S)
        gradients = Gradients(made, torch.optim.SGD(made.parameters(), lr=0.0), links=links)
        gradients.open()
        gradients.begin({Field.CLOSE: 1.0} if rank == 0 else {})
        train(rank, gradients)
        found = gradients.finish()
        gradients.close()
        return made, found

    directory.mkdir(exist_ok=True)
    models, are_linked = [make() for _ in range(count)], threading.Barrier(count)
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


def loss_of(made: Any, rows: range) -> Any:
    """Return the mean loss of some samples, in evaluation mode to be exact with statistics."""
    return made(INPUTS[rows.start : rows.stop]).square().mean()


def test_unequal_shares_give_the_gradients_of_the_batch(tmp_path: Path) -> None:
    """Weighted by samples, before they are clipped, and the same bits on each copy."""

    def train(rank: int, gradients: Gradients) -> None:
        rows = (range(9), range(9, 12))[rank]
        gradients.expect(len(rows), 12, 1)
        loss_of(gradients.model.eval(), rows).backward()
        nn.utils.clip_grad_norm_(gradients.model.parameters(), 0.1)

    whole = model().eval()
    loss_of(whole, range(12)).backward()
    nn.utils.clip_grad_norm_(whole.parameters(), 0.1)
    (one, told), (other, _) = in_copies(tmp_path, train)
    assert told.outcome is StepOutcome.APPLIED
    assert told.any(Field.CLOSE)
    assert not told.any(Field.LEAVES)
    for name, parameter in whole.named_parameters():
        mine, theirs = (each.get_parameter(name).grad for each in (one, other))
        if parameter.grad is None:
            assert mine is None
            continue
        assert torch.equal(mine, theirs)
        assert torch.allclose(mine, parameter.grad, atol=1e-7)


def test_parts_are_exchanged_once(tmp_path: Path) -> None:
    """Two backward passes of half a share each are one exchange."""

    def train(rank: int, gradients: Gradients) -> None:
        made = gradients.model.eval()
        for part in range(2):
            gradients.expect(6, 12, 2)
            first = 6 * rank + 3 * part
            (loss_of(made, range(first, first + 3)) / 2).backward()

    whole = model().eval()
    loss_of(whole, range(12)).backward()
    for made, found in in_copies(tmp_path, train):
        assert found.outcome is StepOutcome.APPLIED
        assert torch.allclose(made[0].weight.grad, whole[0].weight.grad, atol=1e-7)


def test_running_means_are_those_of_the_batch(tmp_path: Path) -> None:
    """Each copy's batch statistics count by its samples."""

    def train(rank: int, gradients: Gradients) -> None:
        rows = (range(9), range(9, 12))[rank]
        gradients.expect(len(rows), 12, 1)
        loss_of(gradients.model, rows).backward()

    whole = model()
    loss_of(whole, range(12))
    (one, _), (other, _) = in_copies(tmp_path, train)
    assert torch.allclose(one[1].running_mean, whole[1].running_mean, atol=1e-7)
    assert torch.equal(one[1].running_var, other[1].running_var)


def test_a_value_that_is_not_finite_enters_no_copy(tmp_path: Path) -> None:
    """All drop the step, with what it has changed of the batch statistics."""

    def train(rank: int, gradients: Gradients) -> None:
        gradients.expect(6, 12, 1)
        factor = float("nan") if rank else 1.0
        (loss_of(gradients.model, range(6 * rank, 6 * rank + 6)) * factor).backward()

    for made, found in in_copies(tmp_path, train):
        assert found.outcome is StepOutcome.DROPPED
        assert found.why == "gradients of rank 1 have NaN or infinite values"
        assert all(each.grad is None for each in made.parameters())
        assert torch.equal(made[1].running_mean, torch.zeros(3))
        assert int(made[1].num_batches_tracked) == 0


@pytest.mark.parametrize("is_scaled", [False, True])
def test_parameters_that_are_not_finite_are_told(tmp_path: Path, is_scaled: bool) -> None:
    """Also with a GradScaler, which would skip every step of all copies."""

    def train(rank: int, gradients: Gradients) -> None:
        gradients.is_scaled = is_scaled
        if rank:
            with torch.no_grad():
                gradients.model[2].weight[0, 0] = float("nan")
        gradients.expect(6, 12, 1)
        loss_of(gradients.model, range(6 * rank, 6 * rank + 6)).backward()

    for _, found in in_copies(tmp_path, train):
        assert found.outcome is StepOutcome.DROPPED
        assert found.column(Field.SPOILT) == [0.0, 1.0]


def test_infinite_gradients_are_a_scalers_own_affair(tmp_path: Path) -> None:
    """It skips that step on all copies, and scales less; batch statistics have to be finite."""

    def train(rank: int, gradients: Gradients) -> None:
        gradients.is_scaled = True
        gradients.expect(6, 12, 1)
        factor = float("inf") if rank else 1.0
        (loss_of(gradients.model, range(6 * rank, 6 * rank + 6)) * factor).backward()

    for made, found in in_copies(tmp_path, train):
        assert found.outcome is StepOutcome.APPLIED
        assert not torch.isfinite(made[2].weight.grad).all()
        assert torch.isfinite(made[1].running_mean).all()

    def spoil(rank: int, gradients: Gradients) -> None:
        if rank:
            gradients.model[1].running_mean[0] = float("nan")
        train(0, gradients)

    for made, found in in_copies(tmp_path / "again", spoil):
        assert found.outcome is StepOutcome.DROPPED
        assert torch.equal(made[1].running_mean, torch.zeros(3))


def test_a_mask_is_no_fault(tmp_path: Path) -> None:
    """Buffers that are infinite when a group begins are not averaged."""

    def train(rank: int, gradients: Gradients) -> None:
        gradients.expect(6, 12, 1)
        loss_of(gradients.model, range(6 * rank, 6 * rank + 6)).backward()

    def masked() -> Any:
        made = model()
        made.register_buffer("mask", torch.full((2, 2), float("-inf")).triu(1))
        return made

    for made, found in in_copies(tmp_path, train, make=masked):
        assert found.outcome is StepOutcome.APPLIED
        assert torch.equal(made.mask, masked().mask)


def test_a_copy_that_comes_back_changes_no_later_step(tmp_path: Path) -> None:
    """It ends the exchange in which it was given up, while the others are in another one."""
    mine, theirs = model(), model()  # not in threads: they share a random generator
    is_intact, sizes = [True], []
    is_summing, has_come_back = threading.Event(), threading.Event()

    class Watched(Links):
        def sum(self, tensor: Any) -> None:
            sizes.append(len(tensor))
            if len(sizes) > 1:
                is_summing.set()
            super().sum(tensor)

    def links_of(name: str, rank: int) -> Links:
        kind = Links if rank else Watched
        return kind(tmp_path / name, rank, ["here"] * 2, lambda: bool(rank) or is_intact[0])

    def step(gradients: Gradients, links: Links) -> Exchanged:
        gradients.join(links)
        gradients.open()
        gradients.begin({})
        gradients.expect(6, 12, 1)
        loss_of(gradients.model.eval(), range(6 * links.rank, 6 * links.rank + 6)).backward()
        return gradients.finish()

    def without_rate(made: Any) -> Gradients:
        return Gradients(made, torch.optim.SGD(made.parameters(), lr=0.0))

    def stays() -> None:
        gradients = without_rate(mine)
        assert step(gradients, links_of("one", 0)).outcome is StepOutcome.BROKEN
        is_intact[0] = True
        assert step(gradients, links_of("two", 0)).outcome is StepOutcome.APPLIED

    def stands_still() -> None:
        links = links_of("one", 1)
        is_intact[0] = False
        assert is_summing.wait(LIMIT_S)
        links.sum(torch.full((sizes[0],), 1e6))
        has_come_back.set()

    def comes() -> None:
        links = links_of("two", 1)
        assert has_come_back.wait(LIMIT_S)
        step(without_rate(theirs), links)

    with ThreadPoolExecutor(3) as pool:
        for copy in [pool.submit(each) for each in (stays, stands_still, comes)]:
            copy.result(LIMIT_S)
    whole = model().eval()
    loss_of(whole, range(12)).backward()
    assert torch.allclose(mine[0].weight.grad, whole[0].weight.grad, atol=1e-7)


@pytest.mark.parametrize(
    ("samples", "why"),
    [((6, 5), "has not trained its part"), ((0, 0), "no copy has called copy.samples")],
)
def test_samples_that_are_missing_are_noticed(
    tmp_path: Path, samples: tuple[int, int], why: str
) -> None:
    """The sum of all samples has to be the batch."""

    def train(rank: int, gradients: Gradients) -> None:
        if samples[rank]:
            gradients.expect(samples[rank], 12, 1)
        loss_of(gradients.model, range(6)).backward()

    for _, found in in_copies(tmp_path, train):
        assert found.outcome is StepOutcome.DROPPED
        assert why in found.why


def test_a_second_backward_is_refused(tmp_path: Path) -> None:
    """Its gradients would be those of one copy; the error has the remedy."""

    def train(rank: int, gradients: Gradients) -> None:
        gradients.expect(6, 12, 1)
        loss_of(gradients.model, range(6)).backward()
        with pytest.raises(RuntimeError, match="call it once a step"):
            loss_of(gradients.model, range(6)).backward()

    in_copies(tmp_path, train)


def test_a_copy_that_leaves_breaks_the_step_of_the_others(tmp_path: Path) -> None:
    """They notice at once, and have no gradients."""

    def train(rank: int, gradients: Gradients) -> None:
        assert gradients.links is not None
        if rank == 2:
            gradients.links.close()
            gradients.last = Exchanged(StepOutcome.BROKEN)
            return
        gradients.expect(6, 12, 1)
        loss_of(gradients.model, range(6)).backward()

    for made, found in in_copies(tmp_path, train, count=3):
        assert found.outcome is StepOutcome.BROKEN
        assert all(each.grad is None for each in made.parameters())


def test_a_copy_that_gives_no_sign_of_life_is_not_waited_for(tmp_path: Path) -> None:
    """A machine that is gone closes no connection."""
    keys, there, kept = tmp_path / "keys", [True], []

    def one(rank: int) -> str:
        links = Links(keys, rank, ["here"] * 2, lambda: there[0])
        kept.append(links)
        if rank:
            there[0] = False
            return ""
        with pytest.raises(LinkError, match="no sign of life"):
            links.sum(torch.ones(3))
        return "noticed"

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(one, range(2))) == ["noticed", ""]


def test_nothing_can_be_sent(tmp_path: Path) -> None:
    """An interval whose end could not be written: the others are told so."""

    def one(rank: int) -> bytes:
        return send_bytes(Links(tmp_path / "keys", rank, ["here"] * 2, lambda: True), b"", 0)

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(one, range(2))) == [b"", b""]


def test_a_group_without_its_other_copies_is_not_formed(tmp_path: Path) -> None:
    """A copy that is gone by then is not waited for."""
    with pytest.raises(LinkError, match=r"no group of 2 copies: .*has not come"):
        Links(tmp_path / "keys", 0, ["here"] * 2, lambda: False)
