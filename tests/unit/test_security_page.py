"""Every promise of docs/security.md names an existing test."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
NAMED = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)


def test_each_line_of_a_table_of_promises_names_a_test() -> None:
    """Each row of a table of promises ends with a test."""
    tables = PAGE.split("## Another user's files", 1)[1]
    rows = [line for line in tables.splitlines() if line.startswith("|")]
    promises = [row for row in rows if not re.match(r"\|(---|.*\| test \|$)", row)]
    assert len(promises) >= 20
    for row in promises:
        assert re.search(r"`tests/[\w/]+\.py::\w+` \|$", row), row


def test_each_named_test_is_there() -> None:
    """Each test that the page names exists in its file."""
    missing = [f"{file}::{name}" for file, name in NAMED if name not in functions(ROOT / file)]
    assert missing == []


def functions(path: Path) -> set[str]:
    """Return the names of a file's functions."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
