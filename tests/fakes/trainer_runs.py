"""Checks of a training in copies that every trainer must pass (train_by_trainer.py)."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from fakes.train_by_trainer import falling
from fakes.trainings import Training, until

from hadar_slurm.handoff import Assignment, write_assignment

PROGRAM = Path(__file__).with_name("train_by_trainer.py")
MakeTraining = Callable[..., Training]


def lines(job: Training, copy: int) -> list[tuple[int, float, int]]:
    """Return each step of a copy: its number, its learning rate, and the job's steps by then."""
    words = [line.split() for line in (job.directory / f"steps-{copy}").read_text().splitlines()]
    return [(int(step), float(rate), int(parent)) for step, rate, parent in words]


def check_alone(training: MakeTraining, by: str, *options: str) -> None:
    """Check that a single copy gives the parameters and rates of the plain loop, bit for bit."""
    finals, told = [], []
    for each in ("plain", by):
        job = training(40, name=each)
        path = job.directory.with_suffix(".assignment")
        write_assignment(path, Assignment(1, {0: 7}, 0.0))
        job.program = PROGRAM
        job.options = ("--by", each, "--assignment", str(path), *options)
        job.start(0)
        job.end(0)
        job.check(0)
        finals.append(job.final(0))
        told.append(lines(job, 0))
    plain, other = finals
    assert all(torch.equal(plain[name], other[name]) for name in plain)
    assert told[0] == told[1]
    assert [step for step, _, _ in told[0]] == list(range(40))
    # A copy that starts after the end gets the final parameters and ends.
    job.start(5)
    job.end(5)
    assert job.steps(5) == []
    job.check(0, 5)


def check_together(training: MakeTraining, by: str, *options: str) -> list[tuple[int, float, int]]:
    """Check that two copies share the steps and end with equal parameters; return their steps."""
    job = training(120, "--by", by, *options)
    path = job.directory.with_suffix(".assignment")
    write_assignment(path, Assignment(1, {0: 10, 1: 5}, 1.0))
    job.program = PROGRAM
    job.options += ("--assignment", str(path), "--step-s=0.02", "--gone-s=20", "--gather-s=60")
    job.start_together(0, 1)
    for copy in range(2):
        job.end(copy)
    job.check(0, 1)
    assert sorted(job.steps(0) + job.steps(1)) == list(range(120))
    assert len(job.steps(0)) > len(job.steps(1)) > 20
    return lines(job, 0) + lines(job, 1)


def check_falling(told: list[tuple[int, float, int]], total_steps: int) -> None:
    """Check that the learning rate falls with the steps of the whole job, not with a copy's own."""
    rates = [rate for _, rate, _ in told]
    factor = falling(total_steps)
    assert rates == pytest.approx([1e-2 * factor(parent) for _, _, parent in told])
    assert min(rates) < 1e-2 * 0.15


def check_asked_to_save(training: MakeTraining, by: str) -> None:
    """Check that a copy contributes its steps on USR1 and ends by SIGTERM, without lost steps."""
    job = training(120, "--by", by, "--step-s=0.03", "--slot-s=2", "--gone-s=5", "--gather-s=60")
    job.program = PROGRAM
    job.start_together(0, 1)
    until(lambda: len(job.steps(1)) > 3)
    job.kill(1, signal.SIGUSR1)
    until(
        lambda: (job.directory / "slots").is_dir() and set(job.steps(1)) <= set(job.newest().done)
    )
    job.kill(1, signal.SIGTERM)
    job.end(1, 128 + signal.SIGTERM)
    assert "1" not in job.here()
    job.end(0)
    job.check(0)
    assert sorted(job.steps(0) + job.steps(1)) == list(range(120))
