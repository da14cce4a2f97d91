"""The policies by name: entry points of the group `hadar_slurm.policies`, a site's own included.

An entry point names a callable that takes `PolicyOptions` and returns a policy
(docs/writing-a-policy.md). hadard imports only the module of the policy that it runs.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points

from hadar_slurm.errors import PolicyError
from hadar_slurm.policies.policy import Policy, PolicyOptions, SolverLimits

GROUP = "hadar_slurm.policies"
DEFAULT_POLICY = "hadar"

_ENTRIES = {entry.name: entry for entry in entry_points(group=GROUP)}

POLICY_NAMES = tuple(sorted(_ENTRIES, key=lambda name: (not name.startswith("hadar"), name)))


def make_policy(
    name: str, *, utility: str = "throughput", limits: SolverLimits | None = None
) -> Policy:
    """Return the policy called `name`; `utility` is for hadar-paper alone.

    Raises KeyError for a name not in `POLICY_NAMES`, PolicyError if it cannot be imported.
    """
    entry = _ENTRIES[name]
    try:
        make: Callable[[PolicyOptions], Policy] = entry.load()
    except (ImportError, AttributeError) as error:
        raise PolicyError(f"policy {name}: {entry.value} cannot be loaded: {error}") from error
    return make(PolicyOptions(utility, limits or SolverLimits()))
