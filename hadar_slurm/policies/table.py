"""The policies by name."""

from __future__ import annotations

from hadar_slurm.policies.base import Policy
from hadar_slurm.policies.hadar_paper import HadarPaper
from hadar_slurm.policies.lp import SolverLimits

POLICY_NAMES = ("hadar-paper",)


def make_policy(name: str, *, utility: str, limits: SolverLimits) -> Policy:
    """Return the policy called `name`; raises KeyError for a name not in `POLICY_NAMES`."""
    return {"hadar-paper": HadarPaper(utility=utility, limits=limits)}[name]
