"""Changes of one node in slurm.conf and gres.conf. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Change:
    """What becomes of `node`: another name (empty: it is removed), another GPU type, or none.

    `gpu_type` is renamed to `new_type`, an empty one for GPUs without a type.
    """

    node: str
    name: str = ""
    gpu_type: str = ""
    new_type: str = ""

    @property
    def slurmd(self) -> str:
        """Return the node's name afterwards, empty if it is gone."""
        return self.node if self.gpu_type else self.name

    def in_slurm_conf(self, text: str) -> str:
        """Return slurm.conf with the change."""
        if not self.gpu_type:
            return self._with_name(text)
        new = f"gpu:{self.new_type}:" if self.new_type else "gpu:"
        return self._in_lines(text, rf"gpu:{re.escape(self.gpu_type)}:", new)

    def in_gres_conf(self, text: str) -> str:
        """Return gres.conf with the change."""
        if not self.gpu_type:
            return self._with_name(text)
        new = f"Type={self.new_type} " if self.new_type else ""
        return self._in_lines(text, rf"Type={re.escape(self.gpu_type)} ", new)

    def _with_name(self, text: str) -> str:
        if self.name:
            return self._in_lines(
                text, rf"^NodeName={re.escape(self.node)} ", f"NodeName={self.name} "
            )
        return "".join(line for line in text.splitlines(keepends=True) if not self._is_of(line))

    def _in_lines(self, text: str, pattern: str, new: str) -> str:
        return "".join(
            re.sub(pattern, new, line) if self._is_of(line) else line
            for line in text.splitlines(keepends=True)
        )

    def _is_of(self, line: str) -> bool:
        return line.startswith(f"NodeName={self.node} ")
