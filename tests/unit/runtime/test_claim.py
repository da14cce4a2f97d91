"""A copy is one process: a second process is refused, and a dead one causes no delay."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch", reason="needs PyTorch")

from fakes.alone import Alone  # noqa: E402
from fakes.trainings import Training, until  # noqa: E402

from hadar_slurm.runtime.membership.claim import (  # noqa: E402
    ClaimedRun,
    HeldError,
    Membership,
    RunState,
    run_path,
)
from hadar_slurm.runtime.membership.presence import Presence  # noqa: E402
from hadar_slurm.runtime.membership.surroundings import Surroundings  # noqa: E402

HOLDER = """
import sys, time, multiprocessing
from pathlib import Path
from hadar_slurm.runtime.membership.claim import ClaimedRun, Membership
from hadar_slurm.runtime.membership.surroundings import Surroundings
where = Surroundings(copy=0, directory=Path(sys.argv[1]), job="42", restart=int(sys.argv[2]))
claim = Membership(where.directory, 0, ClaimedRun.of(where, ("a",), 1), 0.5, 0.01)
claim.take()
claim.note()
if sys.argv[3:]:
    worker = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    worker.start()
    print(worker.pid, end=" ")
print("holds", flush=True)
sys.stdin.read()
"""


@contextmanager
def holder(directory: Path, restart: int, *more: str) -> Iterator[subprocess.Popen[str]]:
    """Run a process that is copy 0; with `more`, it also forks a child process."""
    words = [sys.executable, "-c", HOLDER, str(directory), str(restart), *more]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def a_claim(
    directory: Path, restart: int = 0, gone_after_s: float = 0.5, **other: object
) -> Membership:
    """Return a claim to be copy 0 of job 42, on this machine or another."""
    where = Surroundings(copy=0, directory=directory, job="42", restart=restart)
    run = replace(ClaimedRun.of(where, ("a",), 1), **other)  # type: ignore[arg-type]
    return Membership(directory, 0, run, gone_after_s, poll_s=0.01)


def noted(directory: Path, run: ClaimedRun) -> None:
    """Write the note of a run that has not ended."""
    path = run_path(directory, 0)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asdict(run)))


def test_a_second_process_is_refused(alone: Alone) -> None:
    """The first of two processes in one directory continues; the error of the second names it."""
    first = alone.start("a", 100_000, "--step-s=0.02")
    until(lambda: len(alone.steps("a")) > 5)
    said = alone.run("b", 100_000, "--step-s=0.02", status=1)
    assert f"{alone.place / 'hadar-job'}: copy 0 is trained by process {first.pid} on " in said
    assert "give this training a directory of its own (HADAR_JOB_DIR)" in said
    count = len(alone.steps("a"))
    until(lambda: len(alone.steps("a")) > count)
    assert alone.steps("b") == []


def test_a_copy_number_that_is_there_twice_is_refused(training: Callable[..., Training]) -> None:
    """Among several copies, too, a second process with the same number is refused."""
    job = training(100_000, "--step-s=0.02", "--slot-s=1")
    job.start_together(0, 1)
    until(lambda: bool(job.steps(0) and job.steps(1)))
    first = job.copies.pop(1)
    job.start(1, "--restart=0")
    assert f"copy 1 is trained by process {first.pid}" in job.end(1, 1)
    job.copies[1] = first
    count = len(job.steps(1))
    until(lambda: len(job.steps(1)) > count)


@pytest.mark.slow
def test_a_later_run_takes_over_from_one_that_does_not_end(
    training: Callable[..., Training],
) -> None:
    """The old process, as on a node that lost its network, stops training once it continues."""
    job = training(400, "--step-s=0.02")
    job.start(0)
    until(lambda: job.has_ended(2))
    job.kill(0, signal.SIGSTOP)
    before = job.copies.pop(0)
    job.start(0)
    until(lambda: len(job.steps(0)) > 0 and "restart 1" in (job.directory / "job.log").read_text())
    before.send_signal(signal.SIGCONT)
    _, said = before.communicate(timeout=300)
    assert before.returncode == 1
    assert "it has taken over from this process" in said
    job.end(0)
    job.check(0)


@pytest.mark.parametrize("forked", [(), ("forked",)])
def test_a_process_that_is_killed_holds_nothing(tmp_path: Path, forked: tuple[str, ...]) -> None:
    """Its lock ends with it, even if a child process, such as a loader's worker, still runs."""
    with holder(tmp_path, 0, *forked) as process:
        assert process.stdout is not None
        words = process.stdout.readline().split()
        with pytest.raises(HeldError, match=f"process {process.pid}"):
            a_claim(tmp_path).take()
        process.kill()
        process.wait()
        begun_s = time.monotonic()
        before = a_claim(tmp_path, gone_after_s=60).take()
        assert time.monotonic() - begun_s < 30
        assert before is not None
        assert before.pid == process.pid
        if forked:
            os.kill(int(words[0]), signal.SIGKILL)


def test_a_lock_that_outlives_its_node_is_replaced(tmp_path: Path) -> None:
    """The lock is replaced if its node gives no signs of life, or at once by a later run."""
    away = a_claim(tmp_path, host="away", boot="x").mine
    for restart in (0, 1):
        with holder(tmp_path, 0) as process:
            assert process.stdout is not None
            process.stdout.readline()
            noted(tmp_path, away)
            claim = a_claim(tmp_path, restart=restart)
            assert claim.take() == away
            claim.leave(RunState.LEFT)
            run_path(tmp_path, 0).unlink()


def test_signs_of_life_tell_of_a_process_on_another_node(tmp_path: Path) -> None:
    """They are used where locks have no effect between nodes."""
    noted(tmp_path, a_claim(tmp_path, host="away", boot="x").mine)
    other = Presence(tmp_path, 0, 60.0)
    other.join(0.05)
    try:
        with pytest.raises(HeldError, match="on away"):
            a_claim(tmp_path).take()
    finally:
        other.leave()
    claim = a_claim(tmp_path)
    assert claim.take() is not None
    claim.leave(RunState.LEFT)
    # Its note says that it has left, so there is no wait for signs of life.
    noted(tmp_path, a_claim(tmp_path, host="away", boot="x", state=RunState.LEFT).mine)
    begun_s = time.monotonic()
    again = a_claim(tmp_path, gone_after_s=60)
    assert again.take() is not None
    assert time.monotonic() - begun_s < 30
    again.leave(RunState.LEFT)


def test_one_process_is_not_two_copies_of_one_number(tmp_path: Path) -> None:
    """A lock does not exclude a second claim in the same process, so this is checked separately."""
    first = a_claim(tmp_path)
    first.take()
    with pytest.raises(HeldError):
        a_claim(tmp_path).take()
    first.leave(RunState.LEFT)
    second = a_claim(tmp_path)
    second.take()
    second.leave(RunState.LEFT)
