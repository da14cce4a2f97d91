"""Every policy that the shared properties are proved for.

A policy in the registry is in here; other forms of one are added by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hadar_slurm.core.snapshot import GangRules
from hadar_slurm.policies.hadar_paper.policy import HadarPaper
from hadar_slurm.policies.policy import Policy, SolverLimits
from hadar_slurm.policies.registry import POLICY_NAMES, make_policy

# A solver that may not take any time gives nothing, and the greedy form decides.
NO_TIME = SolverLimits(time_limit_s=0.0)

NAMED: Mapping[str, Callable[[], Policy]] = {
    name: lambda name=name: make_policy(name) for name in POLICY_NAMES
}
CONTENDERS: Mapping[str, Callable[[], Policy]] = {
    **NAMED,
    "hadar-paper jct": lambda: HadarPaper(utility="jct"),
    "hadar-paper ftf": lambda: HadarPaper(utility="ftf"),
    "hadar-paper greedy": lambda: HadarPaper(limits=NO_TIME),
}
# Those that decide without a solver, the same on every machine.
SOLVER_FREE = {
    "srsf", "las", "tiresias", "hare-offline", "hlas", "e-las", "a-srpt", "yarn-cs", "slurm",
    "gavel-fifo",
}  # fmt: skip
# By `Policy.name`: who never stops a job that runs.
NON_PREEMPTIVE = {"yarn-cs", "slurm", "a-srpt"}
# By `Policy.name`: who is not told how long jobs train. e-las knows what share of it is done.
BLIND_TO_LENGTHS = {
    "hlas", "tiresias", "las", "gavel-max-min", "gavel-max-sum", "gavel-fifo", "yarn-cs",
}  # fmt: skip
# By `Policy.name`: who knows uniform gangs only, also where the backend could express others.
UNIFORM_ONLY = {"hadar-paper"}
# By `Policy.name`: who plans for jobs of one copy only and expects to find no others.
RIGID_ONLY = {"hadar-paper"}


def why_gpus_may_idle(policy: Policy, rules: GangRules) -> str | None:
    """Return why a policy's own rule leaves a GPU idle that somebody could use; else None."""
    if policy.name == "yarn-cs":
        return "nobody starts before the head of the queue has its gang"
    if policy.name == "slurm":
        return "GPUs are kept for the first job that waits"
    if policy.name.startswith("gavel-") and not rules.counts_spread:
        return "Gavel's simulator gives none to a job that came since shares were computed"
    return None
