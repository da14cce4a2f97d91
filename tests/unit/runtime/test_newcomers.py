"""A copy that joins late soon has a share of the steps, at a limited cost."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch", reason="needs PyTorch")

from fakes.trainings import Training, until  # noqa: E402

from hadar_slurm.handoff import Assignment, write_assignment  # noqa: E402
from hadar_slurm.runtime.averaging import state  # noqa: E402
from hadar_slurm.runtime.averaging.costs import Costs  # noqa: E402
from hadar_slurm.runtime.dealing import Dealer  # noqa: E402
from hadar_slurm.runtime.ending import Ending  # noqa: E402
from hadar_slurm.runtime.files.identity import Identity  # noqa: E402
from hadar_slurm.runtime.files.ranges import Ranges  # noqa: E402
from hadar_slurm.runtime.files.records import Contribution, SlotEnd  # noqa: E402
from hadar_slurm.runtime.files.slots import Slots  # noqa: E402
from hadar_slurm.runtime.membership.presence import Doing, Presence  # noqa: E402
from hadar_slurm.runtime.peers import Peers  # noqa: E402
from hadar_slurm.runtime.settings import Settings  # noqa: E402

EARLY = "ends early for waiting copies"


def test_a_copy_that_comes_late_does_not_wait_for_a_long_slot(
    training: Callable[..., Training],
) -> None:
    """The interval ends early, all trained steps count, and the others are shared."""
    job = training(400, "--step-s=0.02", "--slot-s=60")
    late = job.hold(1)
    job.start(0)
    until(lambda: len(job.steps(0)) > 10)
    late.touch()
    said = job.end(0) + job.end(1)
    job.check(0, 1)
    assert sorted(job.steps(0) + job.steps(1)) == list(range(400))
    assert len(job.steps(1)) > 50
    assert said.count(EARLY) >= 1


@pytest.mark.slow
def test_copies_that_come_together_cost_one_early_end(training: Callable[..., Training]) -> None:
    """The early end is delayed for a moment, so that more copies can join."""
    job = training(600, "--step-s=0.02", "--slot-s=60", "--gather-s=2")
    late = job.hold(1, 2)
    job.start(0)
    until(lambda: len(job.steps(0)) > 10)
    late.touch()
    until(lambda: bool(job.steps(1) and job.steps(2)))
    assert job.newest().slot == 2
    for copy in range(3):
        job.end(copy)
    job.check(0, 1, 2)
    assert sorted(step for copy in range(3) for step in job.steps(copy)) == list(range(600))


def test_a_copy_that_comes_and_goes_does_not_keep_the_others_from_training(
    training: Callable[..., Training],
) -> None:
    """The number of early ends is limited: there is one per gathering time at most."""
    job = training(300, "--step-s=0.02", "--slot-s=60", "--gather-s=0.5", "--gone-s=1")
    late = [job.hold(copy) for copy in (1, 2, 3)]
    begun_s = time.monotonic()
    job.start(0)
    until(lambda: job.has_ended(1))
    for copy, go in enumerate(late, start=1):
        go.touch()
        until(lambda copy=copy: f"{copy}" in job.here())
        slot = job.newest().slot
        until(lambda slot=slot: job.has_ended(slot + 1))
        job.kill(copy)
        job.end(copy, -signal.SIGKILL)
    said = job.end(0)
    job.check(0)
    assert said.count(EARLY) <= (time.monotonic() - begun_s) / 0.5


@pytest.mark.slow
def test_a_copy_that_is_moved_is_back_before_its_slot_ends(
    training: Callable[..., Training],
) -> None:
    """What it had saved counts, and it has a share again in the next interval."""
    job = training(500, "--step-s=0.02", "--slot-s=60")
    back = job.hold(1, options=("--restart=9",))
    again = job.copies.pop(1)
    job.start_together(0, 1)
    until(lambda: len(job.steps(1)) > 30)
    before, job.copies[1] = job.copies[1], again
    slot = job.newest().slot
    before.send_signal(signal.SIGUSR1)
    until(lambda: "asked to save" in (job.directory / "job.log").read_text())
    before.send_signal(signal.SIGTERM)
    before.communicate()
    assert before.returncode == 128 + signal.SIGTERM
    kept = len(job.steps(1))
    back.touch()
    touched_s = time.monotonic()
    until(lambda: len(job.steps(1)) > kept)
    # One interval ends as it leaves, and on a busy machine another as it comes back.
    assert job.newest().slot <= slot + 2
    assert time.monotonic() - touched_s < 60
    job.end(0)
    job.end(1)
    job.check(0, 1)
    assert sorted(job.steps(0) + job.steps(1)) == list(range(500))


def test_the_first_slot_waits_a_moment_for_those_who_are_to_have_a_part(
    training: Callable[..., Training],
) -> None:
    """The first copy to join does not get all steps."""
    job = training(100)
    path = job.directory.with_suffix(".assignment")
    write_assignment(path, Assignment(1, {0: 60, 1: 40}, 60.0))
    job.options = ("--assignment", str(path), "--gather-s=60", "--slot-s=60")
    late = job.hold(1)
    job.start(0)
    until(lambda: "0" in job.here())
    late.touch()
    job.end(0)
    job.end(1)
    job.check(0, 1)
    assert (len(job.steps(0)), len(job.steps(1))) == (60, 40)
    assert job.newest().slot == 1


END = SlotEnd(
    slot=4,
    total_steps=100,
    dealt={0: Ranges.of([(0, 10)]), 1: Ranges.of([(10, 20)])},
    length_s=60.0,
    id="abcd",
)


def peers(directory: Path, cost_s: float = 2.0, assignment: Path | None = None) -> Peers:
    """Return the peers of copy 0: copy 1, which trains, and copy 2, which waits."""
    slots, settings, costs = Slots(directory), Settings(gather_s=0.0), Costs()
    costs.make(4, cost_s)
    (directory / "slots").mkdir()
    for copy, doing in ((1, Doing.TRAINS), (2, Doing.WAITS)):
        Presence(directory, copy, 60.0).say(doing)
    ending = Ending(slots, settings, Dealer(settings, assignment), costs)
    return Peers(slots, ending, Presence(directory, 0, 60.0, Doing.TRAINS), settings, costs)


@pytest.mark.parametrize(
    ("age_s", "left_s", "is_short"),
    [(41.0, 5.0, True), (39.0, 5.0, False), (41.0, 3.0, False)],
)
def test_a_slot_ends_early_if_that_is_worth_it(
    tmp_path: Path, age_s: float, left_s: float, is_short: bool
) -> None:
    """An average takes 2 s from each of two copies: it must be rare, and shorter than the wait."""
    ours = peers(tmp_path)
    assert ours.is_cut_short(END, age_s, left_s) is is_short
    # One copy's decision holds for all.
    assert ours.is_cut_short(END, 0.0, 0.0) is is_short


def test_a_copy_with_few_steps_waits_for_the_others(tmp_path: Path) -> None:
    """It was measured while it stood still; the others train until the interval is over."""
    settings = Settings(gather_s=0.0, gone_after_s=0.1, patience=0.25)
    slots = Slots(tmp_path)
    named = state.tensors_of(model := torch.nn.Linear(1, 1), torch.optim.SGD(model.parameters()))
    assert slots.end(replace(END, length_s=1.5), *named)
    Presence(tmp_path, 1, 60.0).say(Doing.TRAINS)
    ending = Ending(slots, settings, Dealer(settings, None), Costs())
    ours = Peers(slots, ending, Presence(tmp_path, 0, 60.0), settings, Costs())
    begun_s = time.monotonic()
    end, _ = ours.newest(Identity(100, 0), lambda: named)
    part = Contribution(0, 5, end.id, Ranges.of([(0, 10)]), 0.1, is_checked=True)
    slots.contribute(part, *named)
    while not slots.has_ended(5):
        assert ours.end_if_ours(end, time.monotonic())
        time.sleep(0.01)
    assert time.monotonic() - begun_s >= 1.5


def test_a_copy_that_would_be_dealt_nothing_ends_no_slot(tmp_path: Path) -> None:
    """Its assigned quota is 0, or it is leaving."""
    path = tmp_path / "assignment"
    ours = peers(tmp_path, assignment=path)
    write_assignment(path, Assignment(1, {0: 5, 1: 5, 2: 0}, 60.0))
    assert not ours.is_cut_short(END, 50.0, 50.0)
    write_assignment(path, Assignment(2, {0: 5, 1: 5, 2: 5}, 60.0))
    Presence(tmp_path, 2, 60.0).say(Doing.LEAVES)
    assert not ours.is_cut_short(END, 50.0, 50.0)
    Presence(tmp_path, 2, 60.0, _count=1).say(Doing.WAITS)
    assert ours.is_cut_short(END, 50.0, 50.0)
