"""Text of commands in files and pipes."""

from __future__ import annotations

import io
import re
import sys

import pytest
from rich.table import Table
from rich.text import Text

from hadar_slurm.status.words import output_console, table_of


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


@pytest.mark.parametrize("is_terminal", [True, False])
def test_texts_of_users_give_no_commands_to_terminals(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *, is_terminal: bool
) -> None:
    """A workload may be named by a job's owner, and an operator prints it."""
    monkeypatch.setenv("FORCE_COLOR", "1" if is_terminal else "")
    monkeypatch.setenv("TERM", "dumb" if is_terminal else "xterm")
    name = "A\x1b]0;title\x07\r\x9b31mé B"
    table = table_of("workload")
    table.add_row(Text(name))
    for part in (name, Text(name), table):
        output_console().print(part)
    shown = capsys.readouterr().out
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", shown)
    assert len(re.findall(r"A\]0;title31mé B", shown)) == 3
