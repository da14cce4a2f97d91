"""What a policy is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from hadar_slurm.core.cluster import GpuType
from hadar_slurm.core.plan import Plan
from hadar_slurm.core.snapshot import Round, Snapshot


@dataclass(frozen=True, slots=True)
class SolverLimits:
    """How long a solve may take, in seconds, and how far from the optimum it may stop."""

    time_limit_s: float = 5.0
    gap: float = 1e-3


# How strictly users share under `hadar`, unless the operator says otherwise.
DEFAULT_USER_SHARES = 0.2


@dataclass(frozen=True, slots=True)
class PolicyOptions:
    """Settings of a policy; each policy reads those that apply to it."""

    # Limits of each program that the policy solves.
    limits: SolverLimits = field(default_factory=SolverLimits)
    # How strictly users share under hadar: 0 not at all, 1 by shares alone.
    user_shares: float = DEFAULT_USER_SHARES
    # `list` and `open` of `slurm:list:open`, the utility of `hadar-paper:jct`.
    words: tuple[str, ...] = ()


class Policy(Protocol):
    """Decides which jobs hold which GPUs during a round.

    A policy is a pure function of the snapshot and the round: no I/O, no clock, no random source,
    nothing kept in the object. History, such as steps done, is in the snapshot. What else it needs
    of earlier rounds goes into `Plan.memory` and comes back in `Round.memory`; it may be lost.
    """

    @property
    def name(self) -> str:
        """Return the policy's name on the command line and in the journal."""

    def plan(self, snapshot: Snapshot, round_: Round) -> Plan:
        """Return the plan for `round_`: an allocation or a reason to wait for every job."""


def heeds_gangs(policy: Policy) -> bool:
    """Return whether a policy gives copies other numbers of GPUs by type: its `sizes_by_type`."""
    return bool(getattr(policy, "sizes_by_type", False))


def open_gpus(snapshot: Snapshot, gpu_types: Sequence[GpuType]) -> tuple[int, ...]:
    """Return, by type, the GPUs on schedulable nodes that managed jobs hold or may use."""
    nodes = snapshot.cluster.by_name
    gpus: Counter[GpuType] = Counter()
    for slot, count in snapshot.plannable_capacity.items():
        if nodes[slot.node].is_schedulable:
            gpus[slot.gpu_type] += count
    return tuple(gpus[gpu_type] for gpu_type in gpu_types)
