"""The processes that torchrun starts on a node are one copy."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch", reason="needs PyTorch")

from fakes import train_copy  # noqa: E402
from fakes.trainings import Training, until  # noqa: E402

from hadar_slurm.handoff import read_report  # noqa: E402
from hadar_slurm.runtime.copy import Copy  # noqa: E402
from hadar_slurm.runtime.membership.surroundings import Surroundings  # noqa: E402

EXACT = ("--dropout=0", "--no-batch-norm")


def test_two_processes_come_to_what_one_does(training: Callable[..., Training]) -> None:
    """Each process trains its half of each batch, and both end with the same parameters."""
    alone = training(40, *EXACT, name="alone")
    alone.start(0)
    alone.end(0)
    job = training(40, *EXACT)
    job.start(0, ranks=2)
    job.end(0)
    job.check(0, "0.1")
    assert job.steps("0.1") == job.steps(0) == list(range(40))
    one, two = alone.final(0), job.final(0)
    assert list(one) == list(two)
    assert all(torch.allclose(one[name], two[name], atol=1e-5) for name in one)


def test_a_copy_of_two_processes_trains_with_a_copy_of_one(
    training: Callable[..., Training], tmp_path: Path
) -> None:
    """After USR1 it contributes what both processes have trained, and continues after a requeue."""
    spool = tmp_path / "spool"
    job = training(240, "--step-s=0.02", "--slot-s=1", f"--spool={spool}")
    job.start(1, ranks=2)
    until(lambda: job.has_ended(2))
    job.start(0)
    pids = workers(job.copies[1].pid)
    assert len(pids) == 2
    # As a batch script does, to the processes that train; torchrun ignores it.
    for pid in (job.copies[1].pid, *pids):
        os.kill(pid, signal.SIGUSR1)

    def has_saved() -> bool:
        report = read_report(spool, "71", owner_uid=os.getuid())
        return report is not None and report.state == "saved"

    until(has_saved)
    assert job.steps(1) == job.steps("1.1")
    job.kill(1, signal.SIGTERM)
    job.end(1, None)  # the status is torchrun's own
    job.start(1, ranks=2)
    job.end(0)
    job.end(1)
    job.check(0, 1, "1.1")
    assert job.steps(1) == job.steps("1.1")
    assert sorted(job.steps(0) + job.steps(1)) == list(range(240))


def workers(parent: int) -> list[int]:
    """Return the process ids of the ranks."""
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(parent)], capture_output=True)
    return [int(word) for word in found.stdout.split()]


def test_each_process_has_its_own_part_of_a_batch(tmp_path: Path) -> None:
    """The parts of all processes are the batch, with gradient accumulation or without."""

    def samples(rank: int, ranks: int, **parts: int) -> list[int]:
        model, optimiser, _ = train_copy.make(0)
        where = Surroundings(copy=0, directory=tmp_path, rank=rank, ranks=ranks)
        copy = Copy(model, optimiser, total_steps=9, surroundings=where)
        return copy.samples(7, batch_size=10, size=32, **parts)

    whole = samples(0, 1)
    assert [each for rank in range(3) for each in samples(rank, 3)] == whole
    cut = [samples(rank, 2, part=part, parts=3) for part in range(3) for rank in range(2)]
    assert [each for part in cut for each in part] == whole
    with pytest.raises(ValueError, match="part must be 0 to 2"):
        samples(0, 1, part=3, parts=3)


def test_processes_on_several_nodes_are_refused() -> None:
    """The processes of one node get their rank and their number."""
    with pytest.raises(ValueError, match="a copy is on one node"):
        Surroundings.of({"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"})
    with pytest.raises(ValueError, match="start its processes with torchrun"):
        Surroundings.of({"WORLD_SIZE": "2"})
    where = Surroundings.of({"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "RANK": "1"})
    assert (where.rank, where.ranks) == (1, 2)


def test_processes_that_have_not_met_are_told_how_to(tmp_path: Path) -> None:
    """The error has the missing call, and is raised before anything is written."""
    model, optimiser, _ = train_copy.make(0)
    where = Surroundings(copy=0, directory=tmp_path / "job", rank=0, ranks=2)
    copy = Copy(model, optimiser, total_steps=9, surroundings=where)
    with pytest.raises(RuntimeError, match="2 processes: call"):
        copy.__enter__()
    assert not (tmp_path / "job").exists()
