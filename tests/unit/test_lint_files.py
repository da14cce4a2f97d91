"""The lint that refuses access by path to other users' files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

LINT = Path(__file__).parents[2] / ".ci" / "lint-files"


def run(*files: Path) -> subprocess.CompletedProcess[str]:
    """Run the lint on these files, or on the package."""
    return subprocess.run(
        [sys.executable, str(LINT), *map(str, files)], capture_output=True, text=True, check=False
    )


def test_the_package_is_clean() -> None:
    """The lint finds no fault in the package."""
    done = run()
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize(
    "line",
    [
        "for path in directory.iterdir(): path.unlink()",
        "import os; os.listdir(place)",
        "import shutil; shutil.rmtree(place)",
        "import os; os.replace(draft, place)",
        "text = (config.spool_dir / job).read_text()",
        "open(settings.spool / name)",
        "import os; os.makedirs(reports / user)",
    ],
)
def test_a_way_by_path_is_refused(line: str, tmp_path: Path) -> None:
    """The lint names the file and the line of each access by path."""
    module = tmp_path / "module.py"
    module.write_text(f"# a comment\n{line}\n")
    done = run(module)
    assert done.returncode == 1
    assert f"{module}:2: " in done.stdout


@pytest.mark.parametrize(
    "line",
    [
        "names.remove(name); text.replace('a', 'b'); replace(entry, is_held=True)",
        "untrusted_files.replace('x', b'', mode=0o600, dir_fd=spool)",
        "table = (directory / 'throughputs.json').read_text()",
    ],
)
def test_what_only_looks_like_one_is_not(line: str, tmp_path: Path) -> None:
    """Similar calls that reach no other user's file by path pass the lint."""
    module = tmp_path / "module.py"
    module.write_text(f"{line}\n")
    assert run(module).returncode == 0
