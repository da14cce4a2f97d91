"""Keeps torch from loading its compiler, which none of these trainings uses.

The first optimiser loads `torch._dynamo`, which takes a second of a processor in every program.
"""

from __future__ import annotations

import sys
from types import ModuleType

import torch


class NoCompiler(ModuleType):
    """Stands in for `torch._dynamo`: nothing is compiled, so nothing has to be kept from it."""

    @staticmethod
    def disable(function: object, *_: object, **__: object) -> object:
        """Return the function as it is."""
        return function

    def graph_break(self) -> None:
        """Do nothing."""


torch._dynamo = sys.modules["torch._dynamo"] = NoCompiler("torch._dynamo")
