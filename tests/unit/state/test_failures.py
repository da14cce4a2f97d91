"""hadar-sbatch reads from hadard's file on which GPU types a workload has failed."""

from __future__ import annotations

from pathlib import Path

import pytest

from hadar_slurm.core.throughput_model import Workload
from hadar_slurm.core.type_failures import TypeRecord, Work
from hadar_slurm.state import failures
from hadar_slurm.state.failures import FILE_NAME, read_failures, write_failures

ADAS = Work(Workload("ada", "job:train.sh"), 2)
RECORDS = {
    "v100": TypeRecord(failed_s=50.0, lasted_s=12.0, failing_since_s=50.0),
    "a100": TypeRecord(ran_s=60.0),
}


def test_what_is_written_is_read_by_those_who_know_the_names(tmp_path: Path) -> None:
    """By user, workload and number of GPUs; the file shows none of them, and all may read it."""
    write_failures(tmp_path, {ADAS: RECORDS})
    assert read_failures(tmp_path, ADAS) == RECORDS
    for other in (
        Work(Workload("ben", "job:train.sh"), 2),
        Work(Workload("ada", "job:other.sh"), 2),
        Work(ADAS.workload, 1),
    ):
        assert read_failures(tmp_path, other) == {}
    text = (tmp_path / FILE_NAME).read_text(encoding="utf-8")
    assert "ada" not in text
    assert "train" not in text
    assert (tmp_path / FILE_NAME).stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"version": 1}', '{"version": 2, "failures": {}}', "[" * 100_000],
)
def test_a_file_that_is_wrong_says_nothing(tmp_path: Path, text: str) -> None:
    """Nor does a missing one, and a number that cannot be."""
    assert read_failures(tmp_path / "nowhere", ADAS) == {}
    (tmp_path / FILE_NAME).write_text(text, encoding="utf-8")
    assert read_failures(tmp_path, ADAS) == {}
    write_failures(tmp_path, {ADAS: {"v100": TypeRecord(failed_s=1e300)}})
    assert read_failures(tmp_path, ADAS) == {}


def test_the_latest_failures_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is bounded."""
    monkeypatch.setattr(failures, "MOST", 2)
    works = [Work(Workload("ada", f"job:{n}"), 1) for n in range(3)]
    write_failures(
        tmp_path, {w: {"v100": TypeRecord(failed_s=n + 1.0)} for n, w in enumerate(works)}
    )
    assert [bool(read_failures(tmp_path, work)) for work in works] == [False, True, True]
