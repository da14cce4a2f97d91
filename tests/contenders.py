"""The policies that the shared property tests cover.

Every policy of the registry is included; variants are added by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hadar_slurm.core.snapshot import GangRules
from hadar_slurm.policies.hadar_paper.policy import HadarPaper
from hadar_slurm.policies.policy import Policy, SolverLimits
from hadar_slurm.policies.registry import POLICY_NAMES, make_policy

# With a time limit of 0 the solver finds nothing, and the policy decides greedily.
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
# Policies that decide without a solver; their plans are the same on every machine.
SOLVER_FREE = {
    "srsf", "las", "tiresias", "hare-offline", "hlas", "e-las", "a-srpt", "yarn-cs", "slurm",
    "gavel-fifo",
}  # fmt: skip
# By `Policy.name`: policies that never preempt a running job.
NON_PREEMPTIVE = {"yarn-cs", "slurm", "a-srpt"}
# By `Policy.name`: policies that do not use the length of jobs. e-las uses the share done.
BLIND_TO_LENGTHS = {
    "hlas", "tiresias", "las", "gavel-max-min", "gavel-max-sum", "gavel-fifo", "yarn-cs",
}  # fmt: skip
# By `Policy.name`: policies that plan uniform gangs only, even where the backend allows others.
UNIFORM_ONLY = {"hadar-paper"}
# By `Policy.name`: policies that only support jobs with one copy.
RIGID_ONLY = {"hadar-paper"}


def why_gpus_may_idle(policy: Policy, rules: GangRules) -> str | None:
    """Return why a policy's rule may leave a usable GPU idle; None if it may not."""
    if policy.name == "yarn-cs":
        return "nobody starts before the head of the queue has its gang"
    if policy.name == "slurm":
        return "GPUs are kept for the first job that waits"
    if policy.name.startswith("gavel-") and not rules.counts_spread:
        return "Gavel's simulator gives none to a job that came since shares were computed"
    return None
