"""The commit that a version names: from a checkout's files, from the build, or none."""

from __future__ import annotations

import runpy
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from hadar_slurm import __version__, built_from

ROOT = Path(__file__).parents[2]
COMMIT, OTHER = "1179f28c" * 5, "0123abcd" * 5


def a_checkout(place: Path, files: dict[str, str]) -> Path:
    """Write files of git, and return the path of `.git`."""
    for name, text in files.items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return place / ".git"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({".git/HEAD": "ref: refs/heads/main\n", ".git/refs/heads/main": f"{COMMIT}\n"}, COMMIT),
        ({".git/HEAD": f"{COMMIT}\n"}, COMMIT),
        (
            {
                ".git/HEAD": "ref: refs/heads/main\n",
                ".git/packed-refs": f"#\n{OTHER} refs/heads/a\n{COMMIT} refs/heads/main\n",
            },
            COMMIT,
        ),
        (
            {
                ".git": "gitdir: main/.git/worktrees/w\n",
                "main/.git/worktrees/w/HEAD": "ref: refs/heads/w\n",
                "main/.git/worktrees/w/commondir": "../..\n",
                "main/.git/refs/heads/w": f"{COMMIT}\n",
            },
            COMMIT,
        ),
        ({".git/HEAD": "ref: refs/heads/unborn\n"}, ""),
        ({".git/HEAD": "nonsense\n"}, ""),
        ({".git/HEAD": ""}, ""),
        ({}, ""),
    ],
)
def test_a_checkout_names_its_commit_without_git(
    tmp_path: Path, files: dict[str, str], expected: str
) -> None:
    assert built_from._checked_out(a_checkout(tmp_path, files)) == expected


@pytest.mark.parametrize("written", [COMMIT, "", "v1; rm -rf", None])
def test_what_the_build_has_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str | None
) -> None:
    """Anything else than a commit counts as none; then it is the version alone."""
    monkeypatch.setattr(built_from, "_PACKAGE", tmp_path / "hadar_slurm")
    (tmp_path / "hadar_slurm").mkdir()
    if written is not None:
        (tmp_path / "hadar_slurm" / "_commit").write_text(f"{written}\n")
    expected = f"{__version__} (1179f28c1179)" if written == COMMIT else __version__
    assert built_from.version() == expected


def build(root: Path, kind: str, place: Path) -> Path:
    """Build a package of a directory, and return its path."""
    words = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(place)]
    subprocess.run(words, cwd=root, check=True, capture_output=True, timeout=120)
    (package,) = place.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return package


@pytest.mark.parametrize("by_sdist", [False, True])
def test_a_wheel_knows_its_commit(tmp_path: Path, *, by_sdist: bool) -> None:
    """It is that of the checkout, also by way of an sdist; without git it is built without it."""
    root = ROOT
    if by_sdist:
        sdist = build(ROOT, "sdist", tmp_path)
        subprocess.run(["tar", "-xzf", sdist, "-C", tmp_path], check=True, timeout=300)
        (root,) = (path.parent for path in tmp_path.glob("*/pyproject.toml"))
    with zipfile.ZipFile(build(root, "wheel", tmp_path)) as files:
        names = [name for name in files.namelist() if name == "hadar_slurm/_commit"]
        found = [files.read(name).decode().strip() for name in names]
    there = built_from._checked_out(ROOT / ".git") if shutil.which("git") else ""
    assert found == ([there] if there else [])


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
@pytest.mark.parametrize("is_own", [True, False])
def test_a_build_names_no_commit_of_a_repository_around_it(tmp_path: Path, *, is_own: bool) -> None:
    """As of an sdist that a site has unpacked into its own repository."""
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@localhost"]
    for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "theirs"]):
        subprocess.run([*git, *words], check=True, timeout=300)
    root = tmp_path if is_own else tmp_path / "hadar_slurm-0.2.0"
    root.mkdir(exist_ok=True)
    code = runpy.run_path(str(ROOT / "packaging" / "build_commit.py"))
    hook = code["CommitHook"](str(root), {}, None, None, "", "wheel")
    build_data: dict[str, dict[str, str]] = {"force_include": {}}
    hook.initialize("standard", build_data)
    hook.finalize("standard", build_data, "")
    assert len(build_data["force_include"]) == is_own
