"""What a policy is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from hadar_slurm.core.plan import Plan
from hadar_slurm.core.snapshot import Round, Snapshot


@dataclass(frozen=True, slots=True)
class SolverLimits:
    """How long a solve may take, in seconds, and how far from the optimum it may stop."""

    time_limit_s: float = 5.0
    gap: float = 1e-3


@dataclass(frozen=True, slots=True)
class PolicyOptions:
    """What a policy is made with; each takes what it has a use for."""

    # The objective of hadar-paper: `throughput`, `jct` or `ftf`.
    utility: str = "throughput"
    # Of each program that the policy solves.
    limits: SolverLimits = field(default_factory=SolverLimits)


class Policy(Protocol):
    """Decides who holds which GPUs during a round.

    A policy is a pure function of the snapshot: no I/O, no clock, no random source, no memory of
    earlier rounds. What it needs from history, such as steps done, is in the snapshot.
    """

    @property
    def name(self) -> str:
        """Return the policy's name on the command line and in the journal."""
        ...

    def plan(self, snapshot: Snapshot, round_: Round) -> Plan:
        """Return the plan for `round_`: an allocation or a reason to wait for every job."""
        ...
