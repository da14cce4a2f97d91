"""Faults of a disk: failed writes, failed reads, and files of another version."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch", reason="needs PyTorch")

from fakes import train_copy  # noqa: E402

from hadar_slurm.handoff import read_report, user_reports  # noqa: E402
from hadar_slurm.runtime.copy import Copy  # noqa: E402
from hadar_slurm.runtime.files import slots as slots_module  # noqa: E402
from hadar_slurm.runtime.files.ranges import Ranges  # noqa: E402
from hadar_slurm.runtime.files.records import Contribution, OtherVersionError, SlotEnd  # noqa: E402
from hadar_slurm.runtime.files.slots import Slots  # noqa: E402
from hadar_slurm.runtime.files.tensors import TensorFile  # noqa: E402
from hadar_slurm.runtime.files.writing import write_tensors  # noqa: E402
from hadar_slurm.runtime.membership.presence import Doing, Presence  # noqa: E402
from hadar_slurm.runtime.membership.surroundings import Surroundings  # noqa: E402
from hadar_slurm.runtime.settings import Settings  # noqa: E402

SETTINGS = Settings(slot_s=0.05, cost_part=1.0, gone_after_s=0.5, poll_s=0.01, report_every_s=0.01)


def a_copy(
    directory: Path, total_steps: int = 40, settings: Settings = SETTINGS
) -> tuple[Copy, Callable[[Copy, int], None]]:
    """Return the only copy of a job, and a function that trains one step."""
    model, optimiser, train = train_copy.make(0)
    where = Surroundings(copy=0, directory=directory)
    return Copy(
        model, optimiser, total_steps=total_steps, settings=settings, surroundings=where
    ), train


def run(copy: Copy, train: Callable[[Copy, int], None]) -> list[int]:
    """Train to the end of the job, and return the steps."""
    steps = []
    with copy:
        for step in copy.steps():
            train(copy, step)
            time.sleep(0.002)
            steps.append(step)
    return steps


def failing(times: int, at: int, real: Callable[..., Any]) -> Callable[..., Any]:
    """Return `real`, which fails in this number of calls, starting with call number `at`."""
    calls = 0

    def call(*args: Any, **known: Any) -> Any:
        nonlocal calls
        calls += 1
        if at <= calls < at + times:
            raise OSError(28, "No space left on device")
        return real(*args, **known)

    return call


@pytest.mark.parametrize("name", ["contribute", "end", "newest"])
@pytest.mark.parametrize("at", [1, 3])
def test_what_fails_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, at: int
) -> None:
    """After a full disk or a stale handle, every step is trained once."""
    monkeypatch.setattr(Slots, name, failing(4, at, getattr(Slots, name)))
    copy, train = a_copy(tmp_path)
    assert run(copy, train) == list(range(40))
    newest = copy.member.slots.newest()
    assert newest is not None
    assert newest[0].done == Ranges.of([(0, 40)])


@pytest.mark.parametrize("others_train", [False, True])
def test_a_copy_that_was_killed_does_not_begin_anew_while_all_wait_for_it(
    tmp_path: Path, others_train: bool
) -> None:
    """If all others wait, the interval ends first: its share could come too late to be averaged."""
    copy, _ = a_copy(tmp_path)
    dealt = {1: Ranges.of([(0, 10)]), 0: Ranges.of([(10, 20)])}
    if others_train:
        dealt[2] = Ranges.of([(20, 30)])
        Presence(tmp_path, 2, 60.0).say(Doing.TRAINS)
    copy.member.slots.end(
        SlotEnd(slot=0, total_steps=40, dealt=dealt, length_s=60.0), *copy.member.named()
    )
    end, _ = copy.member.slots.read(0)
    copy.member.slots.contribute(Contribution(1, 1, end.id, dealt[1], 1.0), *copy.member.named())
    Presence(tmp_path, 1, 60.0).say(Doing.WAITS)
    with copy:
        assert next(copy.steps()) == 10
        assert copy.member.slots.newest_slot() == (0 if others_train else 1)
        assert copy.member.slots.read(copy.member.slots.newest_slot())[0].done == Ranges.of(
            [] if others_train else [(0, 10)]
        )


def test_what_several_copies_trained_is_counted_as_an_average(tmp_path: Path) -> None:
    """The number is reported; intervals with one usable contribution do not count."""
    copy, _ = a_copy(tmp_path)
    copy.member.reports.where = replace(
        copy.member.where, job="7", spool=user_reports(tmp_path / "spool", os.getuid())
    )
    copy.member.ending.begin(40, {0: 1.0, 1: 1.0}, copy.member.named())

    def slot(*wrong: int) -> int:
        """End an interval with unusable contributions of `wrong`; return the number of averages."""
        end, _ = copy.member.newest()
        for one, other in ((0, 1), (1, 0)):
            steps = end.dealt[other if one in wrong else one]
            part = Contribution(one, end.slot + 1, end.id, steps, 1.0)
            copy.member.slots.contribute(part, *copy.member.named())
        assert copy.member.ending.end(end, {0, 1}, {0, 1})
        after, _ = copy.member.newest()
        assert after.slot == end.slot + 1
        copy.member.reports.tell("running", after)
        report = read_report(tmp_path / "spool", "7", owner_uid=os.getuid())
        assert report is not None
        assert report.averages == after.averages
        return after.averages

    assert [slot(), slot(1), slot()] == [1, 1, 2]


def test_an_end_that_breaks_while_it_is_trained_from_gives_way(tmp_path: Path) -> None:
    """The slot end before it is used, as no copy can read the broken one."""
    copy, train = a_copy(tmp_path)
    broken = 0
    with copy:
        for step in copy.steps():
            train(copy, step)
            newest = copy.member.slots.newest_slot()
            if newest > 0 and not broken:
                broken = newest
                copy.member.slots.end_path(newest).write_bytes(b"nonsense")
    end, _ = copy.member.newest()
    assert broken
    assert end.done == Ranges.of([(0, 40)])


def test_saved_is_said_once_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An earlier requeue would lose what was trained."""
    told: list[tuple[str, bool]] = []
    copy, train = a_copy(tmp_path)

    def report(what: str, *_: object) -> None:
        told.append((what, copy.leading.contributing.is_saved))

    monkeypatch.setattr(copy.member.reports, "tell", report)
    monkeypatch.setattr(Slots, "contribute", failing(5, 1, Slots.contribute))
    monkeypatch.setattr(copy.leading.waiting, "pause", lambda: _end_once_saved(copy, told))

    def train_until_moved() -> None:
        with copy:
            for step in copy.steps():
                train(copy, step)
                copy.requests.asked.add(signal.SIGUSR1)

    with pytest.raises(SystemExit):
        train_until_moved()
    assert ("saved", True) in told
    assert ("saved", False) not in told


def _end_once_saved(copy: Copy, told: list[tuple[str, bool]]) -> None:
    if ("saved", True) in told:
        copy.requests.asked.add(signal.SIGTERM)  # as in a requeue


def test_a_file_of_another_version_is_not_put_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older release must not restart the training from step 0."""
    run(*a_copy(tmp_path))
    before = sorted(path.name for path in (tmp_path / "slots").iterdir())
    monkeypatch.setattr(slots_module, "VERSION", 2)
    monkeypatch.setattr(slots_module, "OLDER_VERSIONS", (1,))
    with pytest.raises(OtherVersionError, match="version 3, this reads 2 and older: go on with"):
        run(*a_copy(tmp_path))
    assert sorted(path.name for path in (tmp_path / "slots").iterdir()) == before


def test_files_of_an_older_release_are_gone_on_with(tmp_path: Path) -> None:
    """They lack the training's identity, and there is no `begun.json`."""
    copy, train = a_copy(tmp_path)
    tensors, facts = copy.member.named()
    told = {
        "version": 1,
        "slot": 3,
        "total_steps": 40,
        "done": [[0, 30]],
        "dealt": [[0, [[30, 40]]]],
        "length_s": 60.0,
        "id": "abcd0123",
        "facts": facts,
    }
    write_tensors(copy.member.slots.end_path(3), tensors, told)
    assert run(copy, train) == list(range(30, 40))
    assert (tmp_path / "begun.json").exists()


def test_nothing_of_slots_that_have_ended_is_left(tmp_path: Path) -> None:
    """Drafts of copies that were killed while they wrote are removed, too."""
    (tmp_path / "slots").mkdir()
    draft = tmp_path / "slots" / ".slot-00000001.abcd.copy-00001.safetensors.vm.77"
    draft.write_bytes(b"half")
    # On a slow machine there are more than ten slots, and the end of the tenth would be kept.
    copy, train = a_copy(tmp_path, settings=replace(SETTINGS, keep_every=0, optimiser_every=1))
    run(copy, train)
    left = sorted(path.name for path in (tmp_path / "slots").iterdir())
    newest = copy.member.slots.newest()
    assert newest is not None
    slot = newest[0].slot
    assert left == [f"slot-{number:08}.safetensors" for number in (slot - 1, slot)]


def test_a_contribution_of_another_base_does_not_count(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The slot end that it is based on was unreadable and has been replaced."""
    caplog.set_level(logging.WARNING)
    copy, train = a_copy(tmp_path, total_steps=5)
    run(copy, train)
    newest = copy.member.slots.newest()
    assert newest is not None
    end, file = newest
    other = copy.member.slots.part_path(end.slot + 1, "00000000", 0)
    other.write_bytes(copy.member.slots.end_path(end.slot).read_bytes())
    assert copy.member.slots.contributors(end) == set()
    assert TensorFile(other).names == file.names


def test_the_tasks_of_an_ordinary_array_are_jobs_of_their_own() -> None:
    """Only tasks that are declared as copies share a directory."""
    array = {"SLURM_JOB_ID": "9", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "2"}
    alone, copy = Surroundings.of(array), Surroundings.of(array | {"HADAR_COPIES": "4"})
    assert (alone.copy, alone.directory) == (0, Path("hadar-9"))
    assert (copy.copy, copy.directory) == (2, Path("hadar-7"))
