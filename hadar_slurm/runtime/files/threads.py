"""Averaging computes with one thread.

It works on blocks of a megabyte. For these, threads of an operation cost more than they save, and
on cores that training keeps busy many times as much: each waits for the slowest.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

import torch

_Function = TypeVar("_Function", bound=Callable[..., Any])


def on_one_thread(function: _Function) -> _Function:
    """Return a function that computes with one thread, in the thread that calls it."""

    @wraps(function)
    def run(*words: Any, **named: Any) -> Any:
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return function(*words, **named)
        finally:
            torch.set_num_threads(before)

    return cast("_Function", run)
