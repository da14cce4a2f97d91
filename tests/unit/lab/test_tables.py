"""The tables of a comparison in a terminal: nothing is cut, however narrow it is."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console
from studies import a_record

from hadar_slurm.lab.study.summary import Note, groups
from hadar_slurm.lab.study.tables import show

NAMES = ("slurm:list:open", "hadar (sizes learned, 0 % movable)", "srsf (sizes limit)")


def some_records() -> list[dict[str, Any]]:
    """Return three policies with a figure in each column, each of other digits."""
    seconds = ("mean_jct_s", "p95_jct_s", "p50_jct_s", "p99_jct_s", "mean_queueing_s", "max_wait_s")
    others = ("ttd_over_bound", "mean_jct_over_bound", "mean_ftf", "max_ftf", "mean_slowdown")
    return [
        a_record(
            policy,
            ttd_h=1234.5 + number,
            off=0.123 * number,
            **{name: 3600.0 * (135.91 + 7 * number + n) for n, name in enumerate(seconds)},
            **{name: 1.23456 + number + n for n, name in enumerate(others)},
            killed=3 + number,
            killed_share=0.1 * number + 0.0123,
            moves=12_345 + number,
            decision_ms_p50=1.25 + number,
        )
        for number, policy in enumerate(NAMES)
    ]


def printed(width: int, *notes: Note) -> list[str]:
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    show(groups(some_records()), notes, (), console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [60, 80, 100, 200, 400])
def test_no_cell_is_cut_and_no_line_is_too_long(width: int) -> None:
    """Each figure stands whole in the line of its row; in 80 columns the names do too."""
    (group,) = groups(some_records())
    text = printed(width)
    assert all(len(line.rstrip()) <= width for line in text[1:])
    assert not any("\N{HORIZONTAL ELLIPSIS}" in line for line in text)
    figures: dict[str, list[str]] = {name: [] for name in NAMES}
    for line in text:
        for name in NAMES:
            if line.strip().startswith(name):
                figures[name] += line.strip().removeprefix(name).split()
    if width < 80:
        return
    few = {"ttd_h", "mean_jct_h", "mean_jct_over_bound", "moves", "off", "killed", "killed_share"}
    for entry in group.entries:
        expected = [c.text(entry.mean(c)) for c in group.columns if width >= 200 or c.name in few]
        for figure in expected:
            assert figure in figures[entry.policy]


def test_a_table_of_a_note_goes_on_below_where_it_is_too_wide() -> None:
    """With the names of its rows again, and all of its cells in their order."""
    head = ("setting", *(f"column {n}" for n in range(20)))
    rows = [(f"row {r}", *(f"{r}.{n:04}" for n in range(20))) for r in range(3)]
    text = printed(80, Note("N", (), (head, *rows)))
    for name, *cells in rows:
        lines = [line.strip() for line in text if line.strip().startswith(f"{name} ")]
        assert len(lines) > 1
        assert [cell for line in lines for cell in line.removeprefix(name).split()] == cells


def test_in_a_file_no_sentence_is_broken_and_no_line_padded(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Sentences, notes and tables: each a line of its own, as wide as it is."""
    words = "A sentence of several words, " * 20 + "and its end."
    table = (("setting", "name"), ("row", "a"), ("row 2", "a long name"))
    show(groups(some_records()), [Note("Heading", (words,), table)], (words,))
    lines = capsys.readouterr().out.splitlines()
    assert lines.count(words) == 2
    assert not [line for line in lines if line != line.rstrip()]
    for name in NAMES:
        (row,) = [line for line in lines if line.strip().startswith(name)]
        assert len(row) > 200


def test_a_failed_policy_keeps_its_row_in_the_table() -> None:
    console = Console(file=io.StringIO(), width=80)
    failed = {**some_records()[1], "status": "failed", "policy": "las"}
    show(groups([some_records()[0], failed]), [], (), console)
    assert isinstance(console.file, io.StringIO)
    assert "las (failed)" in console.file.getvalue()
