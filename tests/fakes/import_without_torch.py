"""Imports every module of hadar_slurm.runtime with a stand-in for torch, safetensors and trainers.

    python3.9 import_without_torch.py ROOT

For interpreters for which no PyTorch is at hand: what a module needs of Python as it is imported.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import pkgutil
import sys
import types
from typing import Any

PARTS = ("torch", "safetensors", "lightning", "pytorch_lightning", "transformers", "accelerate")


class Anything(type):
    """A class of which each attribute is a class like it."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything(name, (), {})

    def __call__(cls, *values: Any, **named: Any) -> Any:
        # As a decorator it returns what it decorates.
        return values[0] if len(values) == 1 and callable(values[0]) else cls


class StandIn(types.ModuleType):
    """A module in which every name is found."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything(name, (), {})


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds a stand-in for each module of PARTS."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name.partition(".")[0] not in PARTS:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: Any) -> Any:
        return StandIn(spec.name)

    def exec_module(self, module: Any) -> None:
        pass


def main() -> None:
    """Import all modules, and print their number."""
    sys.path.insert(0, sys.argv[1])
    sys.meta_path.insert(0, Finder())
    import hadar_slurm.runtime as package

    names = [m.name for m in pkgutil.walk_packages(package.__path__, package.__name__ + ".")]
    for name in ("hadar_slurm.handoff", *names):
        importlib.import_module(name)
    print(len(names))


if __name__ == "__main__":
    main()
