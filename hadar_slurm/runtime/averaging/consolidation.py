"""How the parameters of several copies become one.

A step-weighted mean: copies that trained more steps count for more (algorithms of HadarE,
arXiv 2503.10918, as reconstructed: whether the paper weights by steps is not known). In fp32 at the
least, tensor by tensor, on any device. Copies that agree stay exactly as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from hadar_slurm.older_python import TextEnum


class OptimiserRule(TextEnum):
    """What becomes of the copies' optimiser states: momenta, second moments, their step counts.

    By `AVERAGE` and `KEEP` when it is contributed, which large ones are not in each interval;
    between such intervals each copy goes on with its own.
    """

    AVERAGE = "average"
    KEEP = "keep"  # that of the copy with most steps
    LOCAL = "local"  # each copy its own; that of the copy with most steps is written for restarts
    RESET = "reset"


@dataclass(frozen=True)
class Outer:
    """A Nesterov momentum step on the mean, as in DiLoCo (arXiv 2311.08105, algorithm 1).

    The mean itself is `Outer(rate=1, momentum=0)`, which needs no state.
    """

    rate: float = 0.7
    momentum: float = 0.9

    def step(
        self, base: torch.Tensor, mean: torch.Tensor, velocity: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the new parameters and the new velocity, in the type of `base` and in fp32."""
        wide = wide_type(base)
        moved = difference(base.to(wide), mean.to(wide))
        now = moved if velocity is None else self.momentum * velocity.to(wide) + moved
        step = self.rate * (moved + self.momentum * now)
        return _moved(base, -step), now


def mean(parts: Sequence[tuple[int, torch.Tensor]]) -> torch.Tensor:
    """Return the step-weighted mean of (steps, tensor) pairs, of which there is one at least.

    Whole numbers and booleans, such as BatchNorm's count of batches, are taken from the copy with
    most steps; of equals from the first.
    """
    total = sum(steps for steps, _ in parts)
    _, most = max(parts, key=lambda part: part[0])
    if (not most.is_floating_point() and not most.is_complex()) or total <= 0:
        return most
    # As differences from one of them: equal parts then give that very part, without rounding.
    wide = wide_type(most)
    anchor = most.to(wide)
    moved = torch.zeros_like(anchor)
    for steps, tensor in parts:
        moved += (steps / total) * difference(tensor.to(wide), anchor)
    return _moved(most, moved)


def difference(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return `one - other`; 0 where they are equal, infinities too."""
    return torch.where(one == other, torch.zeros_like(one), one - other)


def _moved(tensor: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
    """Return `tensor + by`, and `tensor` exactly where `by` is 0."""
    return torch.where(by == 0, tensor, (tensor.to(by.dtype) + by).to(tensor.dtype))


def check_alike(base: Mapping[str, torch.Size], part: Mapping[str, torch.Size]) -> str:
    """Return why a contribution cannot be averaged, or nothing."""
    if missing := sorted(base.keys() - part.keys()):
        return f"{missing[0]} is missing"
    if strange := sorted(part.keys() - base.keys()):
        return f"{strange[0]} is nothing that the others have"
    wrong = [name for name in sorted(base) if base[name] != part[name]]
    return f"{wrong[0]} has the shape {tuple(part[wrong[0]])}" if wrong else ""


def wide_type(tensor: torch.Tensor) -> torch.dtype:
    """Return the type to compute in: single precision at least."""
    if tensor.dtype in (torch.float64, torch.complex128):
        return tensor.dtype
    return torch.complex64 if tensor.is_complex() else torch.float32
