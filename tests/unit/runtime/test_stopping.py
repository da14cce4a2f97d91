"""A script may end the training of all copies before all steps are done."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch", reason="needs PyTorch")

from fakes.trainings import Training  # noqa: E402
from unit.runtime.test_faults import a_copy  # noqa: E402

from hadar_slurm.handoff import read_report  # noqa: E402
from hadar_slurm.runtime.files.records import SlotEnd  # noqa: E402
from hadar_slurm.runtime.files.slots import Slots  # noqa: E402

REASON = "the loss rises"


def check_stopped(job: Training, total_steps: int) -> SlotEnd:
    """Check that a job was stopped with steps left, and return its last end."""
    end = job.newest()
    assert end.stopped == REASON
    assert end.is_complete
    assert 0 < len(end.done) < total_steps
    assert (job.directory / "done").exists()
    assert f"steps: {REASON}" in (job.directory / "job.log").read_text()
    return end


def test_all_copies_stop_with_the_same_parameters(
    training: Callable[..., Training], tmp_path: Path
) -> None:
    """The job counts as done; a copy that starts later has nothing to train."""
    spool = tmp_path / "spool"
    job = training(5000, "--step-s=0.01", f"--spool={spool}")
    go = job.hold(0)
    held = job.hold(1, options=("--ask-to-stop-after=40",))
    go.touch()
    held.touch()
    said = job.end(0) + job.end(1)
    assert said.count(f"stopped: {REASON!r}") == 2
    check_stopped(job, 5000)
    one, other = job.final(0), job.final(1)
    assert all(torch.equal(one[name], other[name]) for name in one)
    for name in ("70", "71"):
        report = read_report(spool, name, owner_uid=tmp_path.stat().st_uid)
        assert report is not None
        assert report.state == "done"
    job.start(2)
    said = job.end(2)
    assert "nothing to train" in said
    assert REASON in said
    assert all(torch.equal(one[name], job.final(2)[name]) for name in one)


def test_any_process_of_a_copy_may_stop_the_job(training: Callable[..., Training]) -> None:
    """All processes end after the same step, and know the reason."""
    job = training(5000, "--step-s=0.01", "--ask-to-stop-after=20", "--stopping-rank=1")
    job.start(0, ranks=2)
    assert job.end(0).count(f"stopped: {REASON!r}") == 2
    check_stopped(job, 5000)
    assert job.steps(0) == job.steps("0.1")


def test_the_reason_is_written_although_the_disk_was_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed write of the request is repeated."""
    left = [2]
    ask = Slots.ask_to_stop

    def full(slots: Slots, reason: str) -> None:
        left[0] -= 1
        if left[0] >= 0:
            raise OSError("no space left on device")
        ask(slots, reason)

    monkeypatch.setattr(Slots, "ask_to_stop", full)
    copy, train = a_copy(tmp_path / "job", total_steps=4000)
    with copy:
        for step in copy.steps():
            train(copy, step)
            if step == 5:
                copy.stop(REASON)
    newest = copy.member.slots.newest()
    assert newest is not None
    assert (newest[0].stopped, copy.stopped) == (REASON, REASON)


def test_a_stopped_job_may_go_on(tmp_path: Path) -> None:
    """Without its last end it trains the steps that are left."""
    copy, train = a_copy(tmp_path, total_steps=400)
    with copy:
        for step in copy.steps():
            train(copy, step)
            if step == 5:
                copy.stop(REASON)
    slots = copy.member.slots
    assert 0 < len(slots.read(slots.newest_slot())[0].done) < 400
    for path in (tmp_path / "stop", tmp_path / "done", slots.end_path(slots.newest_slot())):
        path.unlink()
    again, train = a_copy(tmp_path, total_steps=400)
    with again:
        for step in again.steps():
            train(again, step)
    newest = slots.newest()
    assert newest is not None
    assert (newest[0].stopped, len(newest[0].done)) == ("", 400)


def test_the_first_reason_counts(tmp_path: Path) -> None:
    """A reason may be empty, or of any length."""
    slots = Slots(tmp_path)
    assert slots.stop_reason() == ""
    slots.ask_to_stop("x" * 5000)
    slots.ask_to_stop("another")
    assert set(slots.stop_reason()) == {"x"}
    (tmp_path / "stop").write_text("")
    assert slots.stop_reason() == "no reason was given"
    assert [path.name for path in tmp_path.iterdir()] == ["stop"]
