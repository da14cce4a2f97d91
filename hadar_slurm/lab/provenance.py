"""Provenance of a result: a digest of its code, versions, and the machine."""

from __future__ import annotations

import ast
import hashlib
import os
import platform
from collections.abc import Iterable
from functools import cache
from importlib import metadata, util
from pathlib import Path

import hadar_slurm

_PACKAGE = "hadar_slurm"
# Another version of these packages may break ties differently.
_SOLVERS = ("highspy", "pulp", "numpy")


def versions() -> dict[str, str]:
    """Return the versions that a result depends on, by name."""
    return {_PACKAGE: hadar_slurm.__version__} | {name: metadata.version(name) for name in _SOLVERS}


def machine() -> str:
    """Return a description of this machine: processor, cores, Python."""
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
        names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
        name = next(names, name)
    return f"{name}, {os.cpu_count()} cores, Python {platform.python_version()}"


def code_digest(modules: Iterable[str]) -> str:
    """Return a digest of `modules` and of all modules of this package that they import.

    It ignores comments, docstrings and layout, which do not change results.
    """
    seen: dict[str, str] = {}
    todo = list(modules)
    while todo:
        if (name := todo.pop()) not in seen:
            seen[name], imported = _module(name)
            todo += imported
    return hashlib.sha256(repr(sorted(seen.items())).encode()).hexdigest()[:16]


@cache
def _module(name: str) -> tuple[str, tuple[str, ...]]:
    """Return the digest of a module's syntax tree, and the package's modules it imports."""
    spec = util.find_spec(name)
    if spec is None or spec.origin is None:
        return "", ()
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    imported: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            node.body = node.body[1:] if ast.get_docstring(node, clean=False) else node.body
        if isinstance(node, ast.Import):
            imported.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            # `from package import module` and `from module import name` look the same.
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            imported.update([node.module, *filter(_is_module, names)])
    own = tuple(sorted(n for n in imported if n.split(".")[0] == _PACKAGE))
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest(), own


def _is_module(name: str) -> bool:
    try:
        return name.startswith(_PACKAGE + ".") and util.find_spec(name) is not None
    except ModuleNotFoundError:
        # The parent is a module, not a package: this is a name in it.
        return False
