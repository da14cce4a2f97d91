"""Text of commands in files and pipes."""

from __future__ import annotations

import io
import sys

import pytest
from rich.table import Table
from rich.text import Text

from hadar_slurm.status.words import legible, output_console, table_of


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_a_table_in_a_file_has_only_letters_of_its_encoding(
    monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    """Lines of a table that the encoding lacks would end the command."""
    kept = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(kept, encoding=encoding))
    table = Table("job", "where it runs")
    table.add_row("7", "n1")
    output_console().print(table)
    sys.stdout.flush()
    lines = kept.getvalue().decode(encoding).splitlines()
    assert any("where it runs" in line for line in lines)
    assert [line for line in lines if line != line.rstrip()] == []


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
@pytest.mark.parametrize("is_terminal", [True, False])
def test_texts_of_users_are_one_line_of_letters(
    monkeypatch: pytest.MonkeyPatch, encoding: str, *, is_terminal: bool
) -> None:
    """A workload may be named by a job's owner: a comment holds any character, also half a pair.

    It gives no commands to an operator's terminal, makes no lines, hides and reverses nothing
    beside it, and ends no command.
    """
    monkeypatch.setenv("FORCE_COLOR", "1" if is_terminal else "")
    monkeypatch.setenv("TERM", "dumb" if is_terminal else "xterm")
    kept = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(kept, encoding=encoding))
    name = "A\x1b]0;title\n\x9b31m\u202e\u200b\udc80 B"
    table = table_of("workload", "user")
    table.add_row(Text(name), "eve")
    console = output_console()
    for part in (name, Text(name), table):
        console.print(part)
    console.print(f"workload: {name} \u65e5", markup=False)
    sys.stdout.flush()
    shown = kept.getvalue().decode(encoding)
    assert [sign for sign in shown if not (sign.isprintable() or sign == "\n")] == []
    assert shown.count(r"A\x1b]0;title\n\x9b31m\u202e\u200b\udc80 B") == 4
    assert ("\u65e5" if encoding == "utf-8" else r"\u65e5") in shown
    assert len(shown.splitlines()) == 5


def test_a_long_text_of_a_user_is_cut() -> None:
    assert len(legible("x" * 1_000_000)) < 5000
