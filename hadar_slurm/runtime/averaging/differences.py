"""What a copy has changed of its parameters, in half of their size.

A contribution has each parameter in float32 as its difference from the start of the interval, in
bfloat16. What rounding leaves out is kept, and added to the next difference, so that over many
intervals nothing is lost, however small (error feedback: arXiv 1901.09847). Everything else is
small, or has to stay valid, as variances do: it is contributed as it is.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import torch

from hadar_slurm.older_python import zip_equal
from hadar_slurm.runtime.averaging import state
from hadar_slurm.runtime.averaging.finite import is_finite
from hadar_slurm.runtime.files.tensors import BLOCK, TensorFile


@dataclass
class Differences:
    """Makes differences; `left` is what rounding has left out, by parameter."""

    left: dict[str, torch.Tensor] = field(default_factory=dict)
    # The newest differences: their memory is used again, as new memory takes longer to get.
    _rounded: dict[str, torch.Tensor] = field(default_factory=dict)

    def of(
        self,
        tensors: Mapping[str, torch.Tensor],
        parameters: Collection[str],
        base: TensorFile,
        *,
        is_exact: bool,
    ) -> dict[str, torch.Tensor]:
        """Return tensors with differences from `base` in place of parameters.

        Those that have none, such as infinite values, are as they are; all of them are if it
        `is_exact`, with what was left out. Raises TensorFileError and OSError.
        """
        found: dict[str, torch.Tensor] = {}
        for name, tensor in tensors.items():
            is_wide = name in parameters and tensor.dtype == torch.float32
            can_differ = is_wide and not is_exact and has_like(base, name, tensor)
            if can_differ and self._has_rounded(tensor, base, name):
                found[state.DIFFERENCE + name] = self._rounded[name].view(tensor.shape)
                continue
            left = self.left.pop(name, None)
            found[name] = tensor if left is None else tensor + left.view_as(tensor).to(tensor)
        return found

    def _has_rounded(self, tensor: torch.Tensor, base: TensorFile, name: str) -> bool:
        """Round a difference, and keep what that leaves out; return False where one is infinite."""
        flat, has_left = tensor.detach().reshape(-1), name in self.left
        for kept in (self._rounded, self.left):
            if name not in kept:
                kept[name] = torch.empty(len(flat), dtype=torch.bfloat16)
        rounded, left = self._rounded[name], self.left[name]
        exact = torch.empty(min(len(flat), BLOCK))
        for first, old in zip_equal(range(0, len(flat), BLOCK), base.blocks(name)):
            here = slice(first, first + len(old))
            each = torch.sub(flat[here].cpu(), old, out=exact[: len(old)])
            if has_left:
                each.add_(left[here])
            if not is_finite(each):
                del self.left[name]
                return False
            rounded[here].copy_(each)
            left[here].copy_(each.sub_(rounded[here]))
        return True


def has_like(base: TensorFile, name: str, tensor: torch.Tensor) -> bool:
    """Return whether a file has such a tensor of this type and shape."""
    is_alike = name in base.shapes and base.shapes[name] == tensor.shape
    return is_alike and base.dtype(name) == tensor.dtype and math.prod(tensor.shape) > 0
