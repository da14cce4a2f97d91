"""`copy.loader`: an ordinary data loader's batches, each sample once an epoch over all copies."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch", reason="needs PyTorch")

from fakes import by_loader, ranks_by_loader, train_copy  # noqa: E402
from fakes.by_loader import Job, is_close  # noqa: E402
from torch.utils.data import DataLoader, DistributedSampler  # noqa: E402

from hadar_slurm.runtime.copy import Copy  # noqa: E402
from hadar_slurm.runtime.membership.surroundings import Surroundings  # noqa: E402


def a_copy(path: Path, total_steps: int, **where: int) -> Copy:
    """Return a copy that has not joined."""
    model, optimiser, _ = train_copy.make(0)
    surroundings = Surroundings(copy=0, directory=path / "job", **where)  # type: ignore[arg-type]
    return Copy(model, optimiser, total_steps=total_steps, surroundings=surroundings)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("drop_last", [True, False])
def test_a_copy_alone_has_the_batches_of_the_loader(
    tmp_path: Path, workers: int, drop_last: bool
) -> None:
    """Without shuffling they are the same, epoch by epoch, the short last one too."""
    loader: Any = DataLoader(range(23), 5, drop_last=drop_last, num_workers=workers)
    copy = a_copy(tmp_path, 3 * len(loader))
    for _ in range(3):
        assert len(copy.loader(loader)) == len(loader)
        found = [batch.tolist() for batch in copy.loader(loader)]
        assert found == [batch.tolist() for batch in loader]
    assert list(copy.loader(loader)) == []
    assert "left" in (tmp_path / "job" / "job.log").read_text()


def test_each_epoch_has_its_own_order(tmp_path: Path) -> None:
    """With `shuffle=True` an epoch has each sample once; `seed` decides the order."""
    loader: Any = DataLoader(range(23), 5, shuffle=True)
    copy = a_copy(tmp_path, 2 * len(loader))
    epochs = [[batch.tolist() for batch in copy.loader(loader)] for _ in range(2)]
    for epoch in epochs:
        assert [len(batch) for batch in epoch] == [5, 5, 5, 5, 3]
        assert sorted(chain(*epoch)) == list(range(23))
    assert epochs[0] != epochs[1]


def test_a_step_has_several_batches(tmp_path: Path) -> None:
    """With `parts` an epoch ends with the step that has its last batch."""
    loader: Any = DataLoader(range(20), 4)
    copy = a_copy(tmp_path, 5)  # of 2 epochs of 5 batches
    first = [batch.tolist() for batch in copy.loader(loader, parts=2)]
    second = [batch.tolist() for batch in copy.loader(loader, parts=2)]
    plain = [batch.tolist() for batch in loader]
    assert first + second == plain + plain
    assert len(first) == 6


def test_a_loop_that_ends_early_leaves_its_job(tmp_path: Path) -> None:
    """An epoch that `break` has cut short goes on in the next one."""
    loader: Any = DataLoader(range(20), 4)
    copy = a_copy(tmp_path, 10)
    seen = []
    for batch in copy.loader(loader):
        seen.append(batch.tolist())
        if len(seen) == 3:
            break
    seen += [batch.tolist() for _ in range(2) for batch in copy.loader(loader)]
    assert seen == [batch.tolist() for _ in range(2) for batch in loader]


@pytest.mark.parametrize("ranks", [2, 3])
def test_the_processes_of_a_copy_share_each_batch(tmp_path: Path, ranks: int) -> None:
    """Without a DistributedSampler a batch is that of the copy; with one, each process has one."""
    numbers: Any = range(24)

    def parts(loader: Callable[[int], Any]) -> list[list[int]]:
        found = []
        for rank in range(ranks):
            copy = a_copy(tmp_path, 4, rank=rank, ranks=ranks)
            epochs = copy.loader(loader(rank))
            positions = epochs._order.positions(1)
            found.append(epochs._part(positions, copy.sharing.of, 0))
        return found

    plain = parts(lambda rank: DataLoader(numbers, 6))
    assert list(chain(*plain)) == list(range(6, 12))
    spread = parts(
        lambda rank: DataLoader(
            numbers, 4, sampler=DistributedSampler(numbers, ranks, rank, shuffle=False)
        )
    )
    assert [len(part) for part in spread] == [4] * ranks
    assert list(chain(*spread)) == list(range(4 * ranks, 8 * ranks))


def test_torchrun_s_processes_train_by_one_loader(tmp_path: Path) -> None:
    """Together they see each sample once an epoch, and end with the same parameters."""
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [*words, ranks_by_loader.__file__, str(tmp_path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            _, said = process.communicate(timeout=by_loader.LIMIT_S)
        finally:
            process.terminate()  # torchrun ends its processes
    assert process.returncode == 0, said
    lines = [(tmp_path / f"rank-{rank}").read_text().splitlines() for rank in range(2)]
    for epoch in range(ranks_by_loader.EPOCHS):
        seen = [int(word) for rank in range(2) for word in lines[rank][epoch].split()]
        assert sorted(seen) == list(range(ranks_by_loader.SIZE))
    one, other = (torch.load(tmp_path / f"final-{rank}") for rank in range(2))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_loader_of_other_batches_is_refused(tmp_path: Path) -> None:
    """A loader may be made again for each epoch, but only the same one; copies share a seed."""
    copy = a_copy(tmp_path, 10)
    copy.loader(DataLoader(range(20), 4))  # type: ignore[arg-type]
    copy.loader(DataLoader(range(20), 4))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a job's steps have one order of samples"):
        copy.loader(DataLoader(range(20), 5))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="this copy has 1 processes"):
        copy.loader(DataLoader(range(20), 4, sampler=DistributedSampler(range(20), 2, 0)))  # type: ignore[arg-type]

    with pytest.raises(ValueError, match="no generator=: give Copy"):
        copy.loader(DataLoader(range(20), 4, shuffle=True, generator=torch.Generator()))  # type: ignore[arg-type]


@pytest.mark.parametrize(("parts", "workers"), [(1, 2), (2, 0)])
def test_averaged_copies_see_each_sample_once_an_epoch(
    job: Callable[..., Job], parts: int, workers: int
) -> None:
    """Also with a short last batch, workers that load ahead, and gradient accumulation."""
    made = job(
        copies=2,
        epochs=4,
        size=46,
        parts=parts,
        slow=(0.002, 0.004),
        options={"shuffle": True, "num_workers": workers},
    )
    made.run()
    assert made.seen() == dict.fromkeys(range(46), 4)
    assert [made.epochs(copy) for copy in range(2)] == [4, 4]
    assert all(made.batches(copy) for copy in range(2))
    assert is_close(made.final(0), made.final(1))


@pytest.mark.parametrize(("parts", "workers"), [(1, 2), (2, 1)])
def test_synchronous_copies_come_to_what_one_node_does(
    job: Callable[..., Job], parts: int, workers: int
) -> None:
    """Shares of a batch change as speeds are measured, after workers have loaded other ones."""
    made = job(
        copies=2,
        epochs=4,
        size=92,
        batch_size=16,
        mode="synchronous",
        parts=parts,
        slow=(0.002, 0.012),
        options={"num_workers": workers},
    )
    made.run()
    assert made.seen() == dict.fromkeys(range(92), 4)
    fast, slow = (sum(map(len, made.batches(copy))) for copy in range(2))
    assert slow < 0.8 * fast, (fast, slow)
    if parts == 1:  # else a step may reach into the next epoch, and its parts are of equal size
        assert is_close(made.final(0), by_loader.ordinary(made.plan))
    assert is_close(made.final(0), made.final(1))
