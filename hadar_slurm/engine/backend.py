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
    # A job arrived or ended, or a node changed.
    CHANGE = "change"
    # A request to end, or nothing is left to do.
    STOP = "stop"


class Backend(Protocol):
    """A world that the loop observes and changes. Its contract, which tests check:

    * `observe` returns one consistent instant and changes nothing.
    * `apply` attempts every action in order and returns one outcome for each, in order; a failed
      action does not stop the rest. A start whose GPUs are not free yet is deferred. After a
      `Status.DONE` the next `observe` shows the effect.
    * `wait` returns at `until_s` at the latest.
    """

    def observe(self) -> Snapshot:
        """Return a snapshot; raises SlurmUnavailable when there is none."""

    def apply(self, actions: Sequence[Action]) -> Sequence[Outcome]:
        """Attempt `actions`, stops before starts, and return their outcomes."""

    def wait(self, until_s: float) -> Wake:
        """Wait until `until_s` or until a new plan is needed."""
