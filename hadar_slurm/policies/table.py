"""The policies by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hadar_slurm.policies.base import Policy
from hadar_slurm.policies.hadar_paper import HadarPaper
from hadar_slurm.policies.lp import SolverLimits

DEFAULT_POLICY = "hadar-paper"

_MAKERS: Mapping[str, Callable[[str, SolverLimits], Policy]] = {
    "hadar-paper": lambda utility, limits: HadarPaper(utility=utility, limits=limits),
}

POLICY_NAMES = tuple(_MAKERS)


def make_policy(
    name: str, *, utility: str = "throughput", limits: SolverLimits | None = None
) -> Policy:
    """Return the policy called `name`; raises KeyError for a name not in `POLICY_NAMES`.

    `utility` is for hadar-paper alone; others have their objective in their name.
    """
    return _MAKERS[name](utility, limits or SolverLimits())
