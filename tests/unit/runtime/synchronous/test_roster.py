"""Copies agree by files which of them form a group."""

from __future__ import annotations

import errno
import json
import os
import stat
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.torch
pytest.importorskip("torch", reason="needs PyTorch")

from hadar_slurm.runtime.synchronous.roster import Group, Roster, Version  # noqa: E402

END = Version("abcd", 0, 0)
LIMIT_S = 60.0


def roster(directory: Path, copy: int, here: set[int], gather_s: float = 30.0) -> Roster:
    """Return the roster of a copy that is able."""
    made = Roster(directory, copy, lambda: here, gather_s, 0.01)
    assert made.open()
    return made


def formed(rosters: list[Roster], versions: list[Version]) -> list[Group | None]:
    """Return the groups that copies come to which wait at the same time."""
    until_s = time.monotonic() + LIMIT_S
    with ThreadPoolExecutor(len(rosters)) as pool:
        futures: list[Future[Group | None]] = [
            pool.submit(one.form, version, lambda: time.monotonic() > until_s)
            for one, version in zip(rosters, versions, strict=True)
        ]
        return [future.result() for future in futures]


def test_all_that_are_present_form_one_group(tmp_path: Path) -> None:
    """The next group has the next number, and nothing is left of those before the last."""
    here = {0, 1, 2}
    rosters = [roster(tmp_path, copy, here) for copy in here]
    for number in range(4):
        groups = formed(rosters, [END] * 3)
        assert {group.number for group in groups if group} == {number}
        assert {group.copies for group in groups if group} == {(0, 1, 2)}
    kept = {path.name for path in (tmp_path / "together").iterdir()}
    assert kept == {"able-0", "able-1", "able-2", "group-2.json", "group-3.json"}


def test_a_copy_that_is_gone_is_waited_for_a_moment(tmp_path: Path) -> None:
    """A killed copy seems present as long as its last sign of life is new."""
    here = {0, 1, 2}
    rosters = [roster(tmp_path, copy, here, gather_s=0.2) for copy in (0, 1, 2)]
    formed(rosters, [END] * 3)
    (group, same) = formed(rosters[:2], [END] * 2)
    assert group == same
    assert group is not None
    assert group.copies == (0, 1)


def test_a_newcomer_waits_for_the_group_that_trains(tmp_path: Path) -> None:
    """It forms no group of its own beside one of which a copy is present."""
    here = {0, 1}
    rosters = [roster(tmp_path, copy, here) for copy in (0, 1)]
    assert formed(rosters[:2], [END] * 2)[0] is not None
    here.add(2)
    rosters.append(roster(tmp_path, 2, here))
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(1))
        late = pool.submit(rosters[2].form, END, lambda: False)
        while not rosters[0].waiting(1):
            assert not late.done()
        assert rosters[0].waiting(1) == {2: END}
        groups = formed(rosters[:2], [END] * 2)
        assert late.result(60) == groups[0] == groups[1]


def test_where_the_former_group_is_gone_others_go_on(tmp_path: Path) -> None:
    """A job of which all copies were replaced trains on."""
    here = {0, 1}
    formed([roster(tmp_path, copy, here) for copy in here], [END] * 2)
    there = {5}
    (group,) = formed([roster(tmp_path, 5, there)], [END])
    assert group is not None
    assert group.copies == (5,)


def test_a_copy_with_another_end_is_left_out(tmp_path: Path) -> None:
    """It has to read the newest end first; the others wait `gather_s` for it."""
    here = {0, 1}
    one, other = roster(tmp_path, 0, here, gather_s=0.2), roster(tmp_path, 1, here)
    is_over = [False]
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(2))
        stack.callback(is_over.append, True)  # also where the test fails
        late = pool.submit(other.form, Version("dcba", 0, 0), lambda: is_over[-1])
        group = pool.submit(one.form, END, lambda: is_over[-1]).result(60)
        assert not late.done()
    assert late.result() is None
    assert group is not None
    assert group.copies == (0,)


def test_what_an_earlier_process_waited_for_does_not_count(tmp_path: Path) -> None:
    """A copy that was killed while it waited is started again: it does not wait yet."""
    here = {0, 1}
    killed = roster(tmp_path, 1, here)
    (killed.room / "ready-0-1").write_text(json.dumps({"end": END.end, "group": 0, "steps": 0}))
    assert killed.waiting(0) == {1: END}
    roster(tmp_path, 1, here)
    assert killed.waiting(0) == {}


def test_a_group_whose_file_is_lost_is_replaced(tmp_path: Path) -> None:
    """After a crash of the file server a new file may be empty."""
    here = {0, 1}
    rosters = [roster(tmp_path, copy, here) for copy in here]
    (rosters[0].room / "group-6.json").write_text("")
    assert {group.number for group in formed(rosters, [END] * 2) if group} == {7}


def test_a_copy_that_can_no_longer_train_so_is_not_waited_for(tmp_path: Path) -> None:
    """It was in the last group, was started again by another script, and forms no group."""
    here = {0, 1}
    first = [roster(tmp_path, copy, here) for copy in here]
    formed(first, [END] * 2)
    first[0].leave()
    here -= {1}
    (group,) = formed([roster(tmp_path, 2, {*here, 2}, gather_s=0.2)], [END])
    assert group is not None
    assert group.copies == (2,)


def test_a_full_disk_is_waited_for(tmp_path: Path) -> None:
    """A copy that comes while the disk is full trains with the others once it has room."""
    left = [errno.ENOSPC, errno.ENOSPC, errno.EDQUOT]

    class Full(Roster):
        def _write(self, name: str, facts: Mapping[str, Any]) -> None:
            if left:
                raise OSError(left.pop(), "no room")
            super()._write(name, facts)

    assert Full(tmp_path, 0, lambda: {0}, 1.0, 0.01).open()
    left.append(errno.ENOSPC)
    assert not Full(tmp_path, 0, lambda: {0}, 1.0, 0.01).open(lambda: True)
    left.append(errno.EACCES)
    assert not Full(tmp_path, 0, lambda: {0}, 1.0, 0.01).open()


def test_the_files_are_closed_to_other_users(tmp_path: Path) -> None:
    """What decides with whom copies exchange parameters is the owner's alone."""
    (tmp_path / "together").mkdir(mode=0o777)
    made = roster(tmp_path, 0, {0})
    assert stat.S_IMODE(os.stat(made.room).st_mode) == 0o700
    (tmp_path / "elsewhere").write_text(json.dumps({"host": "stranger"}))
    (made.room / "able-7").symlink_to(tmp_path / "elsewhere")
    assert made.able().keys() == {0}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a directory away")
def test_a_directory_of_another_user_is_not_used(tmp_path: Path) -> None:
    """The copy then averages."""
    room = tmp_path / "together"
    room.mkdir(mode=0o700)
    os.chown(room, 12345, 12345)
    made = Roster(tmp_path, 0, lambda: {0}, 1.0, 0.01)
    assert not made.open()
    assert not made.is_open
