"""What a round does with the actions of its plan: a strategy for each mode, of one signature.

`steer` limits what Slurm may start, and does as `hold` where that is not enough. In which order:
docs/architecture.md, "What hadard does to a waiting job".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from hadar_slurm.engine.actions import Action, Outcome


class Strategy(Protocol):
    """How one round is carried out."""

    def carry_out(self, actions: Sequence[Action]) -> Mapping[Action, Outcome]:
        """Carry out actions whose jobs are Slurm's; those without an outcome need nothing."""
