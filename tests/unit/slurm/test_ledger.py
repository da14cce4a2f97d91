"""What hadard has done to jobs is on disk before it is done, or it is not done."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from hadar_slurm.core.cluster import JobId, NodeName
from hadar_slurm.errors import LedgerError
from hadar_slurm.slurm.changes import Request
from hadar_slurm.slurm.ledger import FILE_NAME, Entry, Ledger

ONE, TWO, TASK = JobId("1"), JobId("2"), JobId("3_4")
PINNED = Entry(
    is_held=True,
    before=Request(num_nodes="1-4", per_job="gres/gpu:v100:2", nodes=(NodeName("n1"),)),
    preferred="v100",
    asked_when_held=(),
)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """Give a ledger without a file."""
    return Ledger(tmp_path / FILE_NAME)


def test_the_next_daemon_reads_what_was_written(ledger: Ledger) -> None:
    """Every part of every entry."""
    ledger.note({ONE: PINNED, TASK: Entry()})
    ledger.expect_holds({TWO: (), ONE: ()})
    again = Ledger(ledger.path)
    assert again.is_whole
    assert {job: again[job] for job in again} == {
        ONE: PINNED,
        TASK: Entry(),
        TWO: Entry(is_held=True, asked_when_held=()),
    }


def test_who_has_no_entry_was_left_alone(ledger: Ledger) -> None:
    """An entry that says nothing is not the same as none."""
    ledger.note({ONE: Entry()})
    assert ledger[TWO] == Entry()
    assert ONE in ledger
    assert TWO not in ledger


def test_what_is_gone_is_forgotten_on_disk_too(ledger: Ledger) -> None:
    """And only that."""
    ledger.note({ONE: PINNED, TWO: Entry(is_held=True)})
    ledger.keep({TWO, TASK})
    assert list(Ledger(ledger.path)) == [TWO]


def test_the_file_is_replaced_in_one_step_and_is_nobodys_to_write(ledger: Ledger) -> None:
    """No half of one is ever there, and no draft is left."""
    ledger.note({ONE: PINNED})
    before = ledger.path.stat().st_ino
    ledger.note({TWO: PINNED})
    assert ledger.path.stat().st_ino != before
    assert ledger.path.stat().st_mode & 0o777 == 0o640 & ~_umask()
    assert list(ledger.path.parent.iterdir()) == [ledger.path]


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_nothing_is_written_where_nothing_changes(ledger: Ledger) -> None:
    """A round in which nothing happens costs no disk."""
    ledger.note({ONE: PINNED})
    before = ledger.path.stat().st_mtime_ns, ledger.path.stat().st_ino
    ledger.note({ONE: PINNED})
    ledger.expect_holds({ONE: ()})
    ledger.keep({ONE, TWO})
    assert (ledger.path.stat().st_mtime_ns, ledger.path.stat().st_ino) == before


def test_what_cannot_be_written_is_not_believed_either(ledger: Ledger) -> None:
    """The entries stay as they are on disk, the fault names the file, and no draft is left."""
    ledger.path.mkdir()
    with pytest.raises(LedgerError, match=FILE_NAME):
        ledger.note({ONE: PINNED})
    assert ONE not in ledger
    with pytest.raises(LedgerError):
        ledger.expect_holds({ONE: ()})
    assert list(ledger.path.parent.iterdir()) == [ledger.path]


def test_a_missing_directory_is_a_fault_and_no_crash(tmp_path: Path) -> None:
    """As when somebody removed it while hadard runs."""
    with pytest.raises(LedgerError):
        Ledger(tmp_path / "gone" / FILE_NAME).note({ONE: PINNED})


def test_a_draft_that_is_a_link_is_not_followed(ledger: Ledger) -> None:
    """Whoever may write to the directory cannot have another file written."""
    other = ledger.path.parent / "other"
    other.write_text("kept")
    ledger.path.with_name(f".{FILE_NAME}.{os.getpid()}").symlink_to(other)
    with pytest.raises(LedgerError):
        ledger.note({ONE: PINNED})
    assert other.read_text() == "kept"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no json",
        "[]",
        '{"version": 1}',
        '{"version": 2, "jobs": {}}',
        '{"version": 1, "jobs": {"1": 7}}',
        '{"version": 1, "jobs": {"1": {"before": {"colour": "red"}}}}',
    ],
)
def test_a_file_that_cannot_be_read_is_as_good_as_none(tmp_path: Path, text: str) -> None:
    """It says so, since a hold may then be anybody's."""
    (tmp_path / FILE_NAME).write_text(text)
    ledger = Ledger(tmp_path / FILE_NAME)
    assert not ledger.is_whole
    assert list(ledger) == []


def test_a_ledger_becomes_whole_by_what_is_found(ledger: Ledger) -> None:
    """Written down at once, though it be nothing, and kept beside what is known."""
    ledger.note({ONE: PINNED})
    ledger.adopt({TWO: Entry(is_held=True)})
    again = Ledger(ledger.path)
    assert again.is_whole
    assert {job: again[job] for job in again} == {ONE: PINNED, TWO: Entry(is_held=True)}


def test_the_file_can_be_read_by_people(ledger: Ledger) -> None:
    """Jobs by id; what is not so is not listed."""
    ledger.note({ONE: Entry(is_held=True)})
    assert json.loads(ledger.path.read_text()) == {"version": 1, "jobs": {"1": {"is_held": True}}}
