"""The count of jobs that the reaper has restored, kept over its runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from hadar_slurm.cli.release import add_expired
from hadar_slurm.state.reaper_count import FILE_NAME, read_expired


def test_counts_add_up(tmp_path: Path) -> None:
    """Counts are added over runs, from 0."""
    assert read_expired(tmp_path) == 0
    add_expired(tmp_path, 3)
    add_expired(tmp_path, 2)
    assert read_expired(tmp_path) == 5
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]


def test_who_gave_nothing_back_writes_nothing(tmp_path: Path) -> None:
    """A run that restored no job writes no file."""
    add_expired(tmp_path, 0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "text",
    ["", "[[", "{}", '{"version": 9, "released": 3}', '{"version": 1, "released": -1}']
    + [f'{{"version": 1, "released": {n}}}' for n in ("true", '"3"', "1e3", "NaN", 10**12)],
)
def test_a_damaged_count_is_not_told_and_begins_anew(tmp_path: Path, text: str) -> None:
    """A damaged count is unknown, and the next run restarts it."""
    (tmp_path / FILE_NAME).write_text(text)
    assert read_expired(tmp_path) is None
    add_expired(tmp_path, 2)
    assert read_expired(tmp_path) == 2


def test_a_count_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    """A failed write raises OSError, leaves no temporary file, and keeps the count."""
    add_expired(tmp_path, 3)
    with pytest.raises(OSError, match=r"state-of-yesterday"):
        add_expired(tmp_path / "state-of-yesterday", 1)
    (tmp_path / "other" / FILE_NAME).mkdir(parents=True)
    with pytest.raises(OSError, match=FILE_NAME):
        add_expired(tmp_path / "other", 1)
    assert [path.name for path in (tmp_path / "other").iterdir()] == [FILE_NAME]
    assert read_expired(tmp_path / "other") is None
