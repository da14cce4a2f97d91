"""Tasks of an array are one row where they are alike."""

from __future__ import annotations

import pytest

from hadar_slurm.status.arrays import array_of, as_rows, common_text, row_name


@pytest.mark.parametrize(
    ("jobs", "name"),
    [
        (["82"], "82"),
        (["7_3"], "7_3"),
        (["7_4", "7_0", "7_1", "7_2"], "7_[0-2,4]"),
        (["7_10", "7_9", "7_12"], "7_[9-10,12]"),
        ([f"7_{2 * n}" for n in range(40)], "7_[0,2,4,6,8,10,12,14,16,18,20,22,24,26,28,...]"),
    ],
)
def test_rows_are_named_as_squeue_names_them(jobs: list[str], name: str) -> None:
    """In whatever order; a long list is cut."""
    assert row_name(jobs) == name


def test_only_alike_tasks_of_one_array_are_one_row() -> None:
    """In the order of the first ones; two jobs with equal properties stay two rows."""
    states = {"1": "a", "2": "a", "7_1": "a", "7_2": "b", "8_1": "a", "7_3": "a", "x_1": "a"}
    assert as_rows(states, states.__getitem__) == [
        ("1",), ("2",), ("7_1", "7_3"), ("7_2",), ("8_1",), ("x_1",),
    ]  # fmt: skip
    assert [array_of(job) for job in ("7_3", "7", "x_1", "7_3_1")] == ["7", "", "", ""]


def test_what_many_say_comes_first() -> None:
    """One text is shown as it is, and of many those that are said most."""
    assert common_text([]) == common_text([""]) == ""
    assert common_text(["b", "b", ""]) == "b"
    assert common_text(["a", "b", "b", "c", "c", "c"]) == "c (3); b (2); and 1 more"
