"""The wheel hadar-runtime: what environments of trainings get, and that it trains there."""

from __future__ import annotations

import ast
import email
import os
import subprocess
import sys
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

import hadar_slurm

torch = pytest.importorskip("torch")
pytest.importorskip("hatchling")
pytestmark = pytest.mark.torch

ROOT = Path(hadar_slurm.__file__).parents[1]
TRAINING = ROOT / "tests" / "fakes" / "train_alone.py"
# What trainings import beside torch only where they use these trainers.
TRAINERS = {"accelerate", "lightning", "pytorch_lightning", "transformers"}
LIMIT_S = 300.0


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from this tree without a network."""
    place = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-build-isolation", "--no-deps"]
    run([*pip, "--no-index", "--wheel-dir", str(place), str(ROOT / "packaging" / "runtime")])
    (built,) = place.glob("hadar_runtime-*.whl")
    return built


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a new environment with the wheel and the torch of this one."""
    place = tmp_path_factory.mktemp("environment")
    venv.create(place, symlinks=True)
    found = place / "bin" / "python"
    run([sys.executable, "-m", "pip", "--python", str(found), "install", "--quiet", "--no-index",
         "--no-deps", str(wheel)])  # fmt: skip
    (packages,) = place.glob("lib/python*/site-packages")
    # Its .pth files are not read: an editable hadar_slurm is not found there.
    (packages / "zzz_torch.pth").write_text(f"{Path(torch.__file__).parents[1]}\n")
    return found


def run(argv: Sequence[str], *, cwd: Path | None = None) -> str:
    """Run a command without this tree on its path, and return its output."""
    dropped = ("PYTHONPATH", "HADAR_", "SLURM_")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(dropped)}
    done = subprocess.run(
        argv, cwd=cwd, env=kept, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_wheel_needs_torch_only(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        (name,) = (n for n in opened.namelist() if n.endswith("METADATA"))
        told = email.message_from_bytes(opened.read(name))
    needed = told.get_all("Requires-Dist") or []
    assert sorted(text.split(">")[0] for text in needed) == ["torch"]
    assert told["Version"] == hadar_slurm.__version__


def test_the_wheel_holds_all_that_it_imports(wheel: Path) -> None:
    """And no file where an installed hadar_slurm has its own."""
    root = "hadar_runtime/path/"
    with zipfile.ZipFile(wheel) as opened:
        names = set(opened.namelist())
        sources = {n: opened.read(n).decode() for n in names if n.endswith(".py")}
    assert not [name for name in names if name.startswith("hadar_slurm/")]
    assert opened_path(wheel) == "hadar_runtime/path"
    allowed = {*sys.stdlib_module_names, *TRAINERS, "torch"}
    missing = set()
    for source in sources.values():
        for module in imported(source):
            first, path = module.split(".")[0], module.replace(".", "/")
            inside = {f"{root}{path}.py", f"{root}{path}/__init__.py"}
            if first not in allowed and not (first == "hadar_slurm" and inside & names):
                missing.add(module)
    assert missing == set()


def opened_path(wheel: Path) -> str:
    """Return the line of the wheel's .pth file."""
    with zipfile.ZipFile(wheel) as opened:
        return opened.read("zz_hadar_runtime.pth").decode().strip()


def imported(source: str) -> set[str]:
    """Return the modules that a module imports; of `from hadar_slurm import x`, that one."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            is_top = node.module == "hadar_slurm"
            found |= {f"hadar_slurm.{a.name}" for a in node.names} if is_top else {node.module}
    return found


@pytest.mark.slow
def test_it_trains_where_hadar_slurm_is_not_installed(python: Path, tmp_path: Path) -> None:
    """In a new environment with the wheel and torch a script trains all steps."""
    place = "import hadar_slurm; print(hadar_slurm.__file__)"
    found = Path(run([str(python), "-c", place], cwd=tmp_path).strip())
    assert found.parts[-4:-1] == ("hadar_runtime", "path", "hadar_slurm")
    lacks = "import importlib.util as u; print(u.find_spec('hadar_slurm.cli'))"
    assert run([str(python), "-c", lacks], cwd=tmp_path).strip() == "None"
    run([str(python), str(TRAINING), "it", "20"], cwd=tmp_path)
    lines = (tmp_path / "steps-it").read_text().splitlines()
    assert [int(line.split()[1]) for line in lines] == list(range(20))
    assert (tmp_path / "final-it-0.1.safetensors").exists()


@pytest.mark.slow
def test_a_whole_hadar_slurm_comes_first(python: Path, tmp_path: Path) -> None:
    """Where both are installed, all is that of the whole package."""
    (packages,) = python.parents[1].glob("lib/python*/site-packages")
    editable = packages / "hadar_slurm.pth"
    editable.write_text(f"{ROOT}\n")
    try:
        text = "import hadar_slurm.handoff as h; print(h.__file__)"
        assert Path(run([str(python), "-c", text], cwd=tmp_path).strip()).is_relative_to(
            ROOT / "hadar_slurm"
        )
    finally:
        editable.unlink()


@pytest.mark.slow
def test_a_directory_that_python_does_not_search_needs_one_import(
    wheel: Path, tmp_path: Path
) -> None:
    """There `import hadar_runtime` makes the runtime importable."""
    with zipfile.ZipFile(wheel) as opened:
        opened.extractall(tmp_path)
    text = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import hadar_runtime; "
        "from hadar_slurm import handoff; print(handoff.__file__)"
    )
    shown = run([sys.executable, "-I", "-S", "-c", text], cwd=tmp_path).strip()
    assert Path(shown).is_relative_to(tmp_path / "hadar_runtime")
