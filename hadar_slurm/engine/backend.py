"""What the loop needs from a world: a real Slurm or a simulated cluster."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

from hadar_slurm.core.snapshot import Snapshot
from hadar_slurm.engine.actions import Action, Outcome


class Wake(StrEnum):
    """Why a wait ended."""

    ROUND_END = "round end"
    # A job came or ended, a node changed: what was planned is no longer all that can be done.
    CHANGE = "change"
    # Asked to end, or nothing is left to do.
    STOP = "stop"


class Backend(Protocol):
    """A world the loop can look at and act on. Its promises, checked by the contract tests:

    * `observe` tells all that is true at one instant and changes nothing.
    * `apply` attempts every action in order and returns one outcome for each, in order; an action
      that fails does not keep others from being tried. A start takes effect only on GPUs that are
      free; a start whose GPUs are not free yet is deferred. After a `Status.DONE` the next
      `observe` shows its effect.
    * `wait` returns at `until_s` at the latest.
    """

    def observe(self) -> Snapshot:
        """Return what is; raises SlurmUnavailable when it cannot be seen."""
        ...

    def apply(self, actions: Sequence[Action]) -> Sequence[Outcome]:
        """Attempt `actions`, stops before starts, and return what came of each."""
        ...

    def wait(self, until_s: float) -> Wake:
        """Wait until `until_s` or until something calls for a new plan."""
        ...
