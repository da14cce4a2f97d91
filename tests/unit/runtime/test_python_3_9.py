"""What trainings import is valid for Python 3.9, the oldest that the wheel hadar-runtime takes."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import hadar_slurm
from hadar_slurm.older_python import TextEnum, zip_equal

ROOT = Path(hadar_slurm.__file__).parents[1]
PACKAGE = ROOT / "hadar_slurm"
BESIDE = ("__init__", "assignment_file", "handoff", "job_files", "older_python", "untrusted_files")
SOURCES = sorted(
    [
        *(PACKAGE / "runtime").rglob("*.py"),
        *(PACKAGE / f"{name}.py" for name in BESIDE),
    ]
)
IMPORTS = ROOT / "tests" / "fakes" / "import_without_torch.py"
# Names of the standard library that came later, by module; and keywords of calls.
LATER = {
    "contextlib": {"aclosing", "chdir"},
    "datetime": {"UTC"},
    "enum": {"StrEnum", "ReprEnum", "member", "nonmember", "verify"},
    "itertools": {"pairwise", "batched"},
    "tomllib": {"load", "loads"},
    "typing": {
        "Concatenate", "LiteralString", "Never", "NotRequired", "ParamSpec", "Required", "Self",
        "TypeAlias", "TypeGuard", "TypeIs", "Unpack", "assert_never", "assert_type", "override",
        "reveal_type",
    },
}  # fmt: skip
KEYWORDS = {"dataclass": {"slots", "kw_only", "weakref_slot"}, "zip": {"strict"}}


def later_parts(source: str) -> list[str]:
    """Return what a module uses that Python 3.9 lacks, as far as its source shows that."""
    found = []
    for node in ast.walk(ast.parse(source, feature_version=(3, 9))):
        if isinstance(node, ast.ImportFrom):
            lacking = LATER.get(node.module or "", set())
            found += [f"{node.module}.{a.name}" for a in node.names if a.name in lacking]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            lacking = KEYWORDS.get(node.func.id, set())
            found += [f"{node.func.id}({k.arg}=)" for k in node.keywords if k.arg in lacking]
            if node.func.id in ("isinstance", "issubclass"):
                unions = (a for a in node.args[1:] if isinstance(a, ast.BinOp))
                found += [f"{node.func.id}(..., {ast.unparse(union)})" for union in unions]
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_sources_use_nothing_later(path: Path) -> None:
    """Neither syntax, nor names, keywords and unions that the table lists."""
    assert later_parts(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "source",
    [
        "from enum import Enum, StrEnum",
        "from datetime import UTC",
        "dataclass(slots=True)",
        "zip(a, b, strict=True)",
        "isinstance(a, int | str)",
    ],
)
def test_what_is_later_is_found(source: str) -> None:
    assert later_parts(source)


@pytest.mark.parametrize("version", ["3.9", "3.10"])
def test_an_old_interpreter_imports_every_module(version: str, tmp_path: Path) -> None:
    """With a stand-in for torch, where the interpreter is installed."""
    python = next(filter(lambda path: _is_version(path, version), _candidates(version)), None)
    if python is None:
        pytest.skip(f"needs Python {version}")
    done = subprocess.run(
        [python, str(IMPORTS), str(ROOT)],
        cwd=tmp_path,
        env={"PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 20


def _candidates(version: str) -> Iterator[str]:
    """Yield programs that may be that interpreter: on the path, or one of pyenv's."""
    name = f"python{version}"
    if found := shutil.which(name):
        yield found
    yield from map(str, Path.home().glob(f".pyenv/versions/{version}.*/bin/{name}"))


def _is_version(python: str, version: str) -> bool:
    """Return whether a program is that interpreter, and not a launcher without one."""
    words = [python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    return done.returncode == 0 and done.stdout.strip() == version


def test_the_stand_in_hides_no_error_of_a_module(tmp_path: Path) -> None:
    """A module that cannot be imported makes the program fail."""
    package = tmp_path / "hadar_slurm" / "runtime"
    package.mkdir(parents=True)
    for name in ("__init__.py", "handoff.py", "runtime/__init__.py"):
        (tmp_path / "hadar_slurm" / name).write_text("")
    (package / "broken.py").write_text("import torch\nfrom enum import NoSuchName\n")
    words = [sys.executable, str(IMPORTS), str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode != 0
    assert "NoSuchName" in done.stderr


def test_an_enumeration_of_texts_prints_as_its_text() -> None:
    """Also in JSON and in an f-string with a width."""

    class Answer(TextEnum):
        YES = "yes"

    assert (str(Answer.YES), f"{Answer.YES:>5}", json.dumps(Answer.YES)) == (
        "yes",
        "  yes",
        '"yes"',
    )
    assert Answer("yes") is Answer.YES
    assert Answer.YES == "yes"


def test_columns_of_different_lengths_are_refused() -> None:
    assert list(zip_equal([1, 2], "ab")) == [(1, "a"), (2, "b")]
    with pytest.raises(ValueError, match="different lengths"):
        list(zip_equal([1, 2], "a"))
