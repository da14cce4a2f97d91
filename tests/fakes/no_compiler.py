"""Keeps torch from loading its compiler, which none of these trainings uses.

Creating the first optimiser loads `torch._dynamo`, which takes a second of CPU time per program.
"""

from __future__ import annotations

import sys
from types import ModuleType

import torch


class NoCompiler(ModuleType):
    """Replaces `torch._dynamo`; nothing is compiled."""

    @staticmethod
    def disable(function: object, *_: object, **__: object) -> object:
        """Return the function unchanged."""
        return function

    def graph_break(self) -> None:
        """Do nothing."""


torch._dynamo = sys.modules["torch._dynamo"] = NoCompiler("torch._dynamo")
