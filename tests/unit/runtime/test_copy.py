"""Copies share a training: every step counts once, and all get the same parameters."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch", reason="needs PyTorch")

from fakes.trainings import Training, until  # noqa: E402

from hadar_slurm.handoff import (  # noqa: E402
    Assignment,
    ProgressReport,
    read_report,
    write_assignment,
)
from hadar_slurm.runtime.files.slots import Slots  # noqa: E402


def test_a_copy_alone_trains_every_step_in_order(training: Callable[..., Training]) -> None:
    """Several intervals are trained; the learning rate falls with the steps of the whole job."""
    job = training(60, "--slot-s=0.1", "--step-s=0.005")
    job.start(0)
    job.end(0)
    assert job.steps(0) == list(range(60))
    job.check(0)
    rates = [
        float(line.split()[1]) for line in (job.directory / "steps-0").read_text().splitlines()
    ]
    assert rates == pytest.approx([1e-2 * (1 - step / 60) for step in range(60)])
    assert (job.directory / "done").exists()
    # A copy that starts after the end of the job reads the final parameters and ends.
    job.start(3)
    job.end(3)
    assert job.steps(3) == []
    job.check(0, 3)


def test_slots_leave_a_copy_alone_as_it_was(training: Callable[..., Training]) -> None:
    """Intervals of any length give the same parameters and batch statistics to the bit."""
    finals = []
    for name, steps in (("whole", 40), ("cut", 7)):
        job = training(40, name=name)
        path = job.directory.with_suffix(".assignment")
        write_assignment(path, Assignment(1, {0: steps}, 0.0))
        # Dropout has a different seed in each interval.
        job.options = ("--assignment", str(path), "--dropout=0")
        job.start(0)
        job.end(0)
        finals.append(job.final(0))
    whole, cut = finals
    assert all(torch.equal(whole[name], cut[name]) for name in whole)


def test_copies_share_the_steps_by_their_quotas(training: Callable[..., Training]) -> None:
    """Each step is trained by one copy, and all copies end with the same parameters."""
    job = training(350)
    path = job.directory.with_suffix(".assignment")
    write_assignment(path, Assignment(1, {0: 20, 1: 10, 2: 5}, 1.0))
    job.options = ("--assignment", str(path), "--step-s=0.01", "--gone-s=20", "--gather-s=60")
    job.start_together(0, 1, 2)
    for copy in range(3):
        job.end(copy)
    job.check(0, 1, 2)
    trained = [job.steps(copy) for copy in range(3)]
    assert sorted(step for steps in trained for step in steps) == list(range(350))
    assert len(trained[0]) > len(trained[1]) > len(trained[2])


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_copy_that_stands_still_for_some_slots_goes_on_with_the_others(
    training: Callable[..., Training], victim: int
) -> None:
    """The slot end that a suspended copy waits for may have been removed when it continues."""
    job = training(400, "--step-s=0.01", "--gone-s=0.5")
    job.start_together(0, 1)
    until(lambda: len(job.steps(victim)) > 20 and job.has_ended(3))
    job.kill(victim, signal.SIGSTOP)
    ended = job.newest().slot
    until(lambda: job.has_ended(ended + 4))
    job.kill(victim, signal.SIGCONT)
    job.end(0)
    job.end(1)
    job.check(0, 1)
    assert set(job.steps(0)) | set(job.steps(1)) == set(range(400))


@pytest.mark.parametrize("victim", [0, 1])
def test_a_copy_that_is_killed_costs_its_slot_alone(
    training: Callable[..., Training], victim: int
) -> None:
    """The other copy continues, and trains the steps that the killed copy lost in the interval."""
    job = training(400, "--step-s=0.01")
    job.start_together(0, 1)
    until(lambda: len(job.steps(victim)) > 30 and job.has_ended(3))
    job.kill(victim)
    job.end(victim, -signal.SIGKILL)
    job.end(1 - victim)
    job.check(1 - victim)
    trained = job.steps(0) + job.steps(1)
    assert set(trained) == set(range(400))


def test_a_job_whose_copies_have_all_been_replaced_goes_on(
    training: Callable[..., Training],
) -> None:
    """A new copy does not wait without limit for dead copies with steps dealt to them."""
    job = training(80, "--step-s=0.01")
    job.start(0)
    until(lambda: job.has_ended(2))
    job.kill(0)
    job.end(0, -signal.SIGKILL)
    job.start(5)
    job.end(5)
    job.check(5)


def test_a_copy_asked_to_save_contributes_what_it_has(
    training: Callable[..., Training], tmp_path: Path
) -> None:
    """After USR1 it reports `saved` and gets no steps; after a requeue it trains again."""
    spool = tmp_path / "spool"
    job = training(150, "--step-s=0.02", "--slot-s=2", f"--spool={spool}")
    job.start_together(0, 1)
    until(lambda: len(job.steps(1)) > 3)

    def said_by_one() -> ProgressReport:
        report = read_report(spool, "71", owner_uid=os.getuid())
        assert report is not None
        return report

    job.kill(1, signal.SIGUSR1)
    until(lambda: said_by_one().state == "saved")
    kept = set(job.steps(1))
    # Steps that are averaged no longer count as the copy's own.
    until(lambda: kept <= set(job.newest().done) and said_by_one().own_steps == 0)
    assert said_by_one().state == "saved"
    assert said_by_one().steps_done >= len(kept)
    job.kill(1, signal.SIGTERM)
    job.end(1, 128 + signal.SIGTERM)
    job.start(1)
    job.end(0)
    job.end(1)
    job.check(0, 1)
    trained = job.steps(0) + job.steps(1)
    assert sorted(trained) == list(range(150))
    assert said_by_one().state == "done"


def test_a_contribution_that_is_damaged_is_left_out_and_said_so(
    training: Callable[..., Training],
) -> None:
    """Its steps are dealt again; a damaged slot end is replaced by the one before."""
    job = training(200, "--step-s=0.01", "--slot-s=1")
    job.start(0)
    until(lambda: job.has_ended(2))
    job.kill(0, signal.SIGSTOP)
    slots = Slots(job.directory)
    end = job.newest()
    for copy in (1, 2):
        slots.part_path(end.slot + 1, end.id, copy).write_bytes(b"nonsense")
    slots.end_path(end.slot + 5).write_bytes(b"nonsense")
    job.kill(0, signal.SIGCONT)
    said = job.end(0)
    assert "left out" in said
    job.check(0)
    assert set(job.steps(0)) == set(range(200))


def test_a_directory_of_another_job_is_refused(training: Callable[..., Training]) -> None:
    """The error has the remedy."""
    job = training(5)
    job.start(0)
    job.end(0)
    job.total_steps = 6
    job.start(0)
    assert "holds a job of 5 steps, not 6: give each job a directory of its own" in job.end(0, 1)


def test_files_can_be_read_without_us(training: Callable[..., Training]) -> None:
    """A slot end is a safetensors file with JSON; parameters have the names of the model."""
    job = training(5)
    job.start(0)
    job.end(0)
    from safetensors import safe_open

    with safe_open(Slots(job.directory).end_path(job.newest().slot), framework="pt") as file:
        facts = json.loads(file.metadata()["hadar"])
        assert facts["done"] == [[0, 5]]
        assert torch.equal(file.get_tensor("model/0.weight"), job.final(0)["0.weight"])
