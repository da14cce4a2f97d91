"""Text of commands in files and pipes."""

from __future__ import annotations

import io
import sys

import pytest
from rich.table import Table

from hadar_slurm.status.words import output_console


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
