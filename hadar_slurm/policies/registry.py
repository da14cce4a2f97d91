"""The policies by name: entry points of the group `hadar_slurm.policies`, ours and a site's own.

An entry point names a callable that takes `PolicyOptions` and returns a policy
(docs/writing-a-policy.md). A policy's module is imported when the policy is made, so that hadard
loads the one it runs and no other.
"""

from __future__ import annotations

from importlib.metadata import entry_points

from hadar_slurm.errors import PolicyError
from hadar_slurm.policies.policy import Policy, PolicyOptions, SolverLimits

GROUP = "hadar_slurm.policies"
DEFAULT_POLICY = "hadar"

_ENTRIES = {entry.name: entry for entry in entry_points(group=GROUP)}

# Hadar's own first.
POLICY_NAMES = tuple(sorted(_ENTRIES, key=lambda name: (not name.startswith("hadar"), name)))


def make_policy(
    name: str, *, utility: str = "throughput", limits: SolverLimits | None = None
) -> Policy:
    """Return the policy called `name`; `utility` is for hadar-paper alone.

    Raises KeyError for a name not in `POLICY_NAMES`, PolicyError where its package cannot be
    imported.
    """
    entry = _ENTRIES[name]
    try:
        make = entry.load()
    except (ImportError, AttributeError) as error:
        raise PolicyError(f"policy {name}: {entry.value} cannot be loaded: {error}") from error
    policy: Policy = make(PolicyOptions(utility, limits or SolverLimits()))
    return policy
