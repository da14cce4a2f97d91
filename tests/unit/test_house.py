"""The size of the code, its words and its settings: figures that may fall, and never rise.

A commit that lowers a figure lowers its limit too; one that would raise a figure makes room
elsewhere.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "hadar_slurm"
LARGEST_FUNCTION, LARGEST_FILE = 45, 400  # lines
MOST_PARAMETERS, MOST_POSITIONAL = 6, 4

LIMITS = {
    "names of public classes that several modules define": 1,
    "functions of more than 45 lines": 6,
    "functions of more than 6 parameters": 8,
    "files of more than 400 lines": 1,
    "calls with more than 4 positional arguments": 94,
    "keys of hadar.yaml": 37,
    "modules that hadard loads": 115,
    "lines that hadard loads": 15_615,
    "lines that hadard has loaded after a round of steer": 17_864,
}
MOST_LINES_OF_SLURM = 8_042

TESTS = Path(__file__).parents[1]
ONE_ROUND = [sys.executable, str(TESTS / "fakes" / "one_round.py")]


@pytest.fixture(scope="module")
def figures() -> dict[str, int]:
    """Return what is measured, by the names of LIMITS."""
    parts = [part for path in sorted(PACKAGE.rglob("*.py")) for part in ast.walk(tree(path))]
    classes = Counter(part.name for part in parts if isinstance(part, ast.ClassDef))
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    done = subprocess.run(ONE_ROUND, capture_output=True, check=True, env=environment)
    hadard = json.loads(done.stdout)
    loaded = {name: [Path(file) for file in files] for name, files in hadard["files"].items()}
    measured = (
        sum(count > 1 for name, count in classes.items() if not name.startswith("_")),
        sum(size > LARGEST_FUNCTION for size, _ in functions(parts)),
        sum(parameters > MOST_PARAMETERS for _, parameters in functions(parts)),
        sum(lines(path) > LARGEST_FILE for path in PACKAGE.rglob("*.py")),
        sum(isinstance(part, ast.Call) and len(part.args) > MOST_POSITIONAL for part in parts),
        hadard["keys"],
        len(loaded["start"]),
        *(sum(map(lines, loaded[when])) for when in ("start", "steer")),
    )
    return dict(zip(LIMITS, measured, strict=True))


@cache
def tree(path: Path) -> ast.Module:
    """Return the syntax of a module."""
    return ast.parse(path.read_text(encoding="utf-8"))


def lines(path: Path) -> int:
    """Return the number of lines of a file."""
    return len(path.read_text(encoding="utf-8").splitlines())


def functions(parts: list[ast.AST]) -> Iterator[tuple[int, int]]:
    """Yield the lines of each function and the number of its parameters."""
    for part in parts:
        if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
            given = [*part.args.posonlyargs, *part.args.args, *part.args.kwonlyargs]
            own = [each for each in given if each.arg not in ("self", "cls")]
            yield (part.end_lineno or part.lineno) - part.lineno + 1, len(own)


@pytest.mark.parametrize("name", LIMITS)
def test_each_figure_is_at_its_limit(figures: dict[str, int], name: str) -> None:
    """No figure is above its limit, and no limit has been left above its figure."""
    assert figures[name] == LIMITS[name]


def test_the_part_that_knows_slurm_does_not_grow() -> None:
    """`hadar_slurm/slurm` has at most as many lines as when one reading of a job was introduced."""
    assert sum(map(lines, (PACKAGE / "slurm").rglob("*.py"))) <= MOST_LINES_OF_SLURM
