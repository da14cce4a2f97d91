"""Whether what was trained is finite: one NaN in a mean spoils the parameters of all copies."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from hadar_slurm.runtime.files.tensors import TensorFile

# Training stops after this number of averaging intervals in a row without a finite contribution.
# Dropout and the dealing of steps differ each time: a random fault does not come three times.
MOST_SPOILT = 3


class NotFiniteError(RuntimeError):
    """What all copies train is not finite, in several slots; says where, and the remedy."""


def fault_in(
    tensors: Iterable[tuple[str, torch.Tensor]], facts: Any, base: TensorFile | None
) -> str:
    """Return which tensor has NaN or infinite values where `base` has none (a mask), or nothing."""
    for name, tensor in tensors:
        if not (tensor.is_floating_point() or tensor.is_complex()):
            continue
        if is_finite(tensor):
            continue
        wrong = ~_finite(tensor).cpu()
        if base is not None and name in base.names and base.shapes[name] == wrong.shape:
            wrong &= _finite(base.tensor(name))
        if count := int(wrong.sum()):
            return f"{name} has {count} of {tensor.numel()} values that are NaN or infinite"
    known = base.facts["facts"].get("state", {}) if base is not None else {}
    for index, values in facts["state"].items():
        for key, value in values.items():
            if _is_wrong(value) and not _is_wrong(known.get(index, {}).get(key)):
                return f"the optimiser's {key} of parameter {index} is {value}"
    return ""


def nan_in(tensors: Mapping[str, torch.Tensor]) -> str:
    """Return the name of the first tensor that has NaN, or nothing."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and bool(torch.isnan(_plain(tensor)).any()):
            return name
    return ""


def is_finite(tensor: torch.Tensor) -> bool:
    """Return whether a sum of all values is finite: one pass, without a mask of each.

    False says little: the sum of finite values may be too large for their type.
    """
    narrow = tensor.is_floating_point() and tensor.element_size() < 4
    return bool(torch.isfinite(tensor.sum(dtype=torch.float32 if narrow else None)))


def _finite(tensor: torch.Tensor) -> torch.Tensor:
    return torch.isfinite(_plain(tensor))


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of a type that has all operations: those of 8 bits lack most."""
    narrow = tensor.is_floating_point() and tensor.element_size() == 1
    return tensor.to(torch.float32) if narrow else tensor


def _is_wrong(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)
