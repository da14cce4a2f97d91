"""The policies by name: entry points of the group `hadar_slurm.policies`, a site's own included.

An entry point names a callable that takes `PolicyOptions` and returns a policy
(docs/writing-a-policy.md). hadard imports only the module of the policy that it runs.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points

from hadar_slurm.errors import PolicyError
from hadar_slurm.policies.policy import DEFAULT_USER_SHARES, Policy, PolicyOptions, SolverLimits

GROUP = "hadar_slurm.policies"
DEFAULT_POLICY = "hadar"

POLICY_NAMES = tuple(
    sorted(entry_points(group=GROUP).names, key=lambda name: (not name.startswith("hadar"), name))
)


def make_policy(
    text: str,
    *,
    limits: SolverLimits | None = None,
    user_shares: float = DEFAULT_USER_SHARES,
) -> Policy:
    """Return the policy called `text`: `hadar`, or with words for it `slurm:list:open`.

    `user_shares` is for hadar. Raises PolicyError if no package registers it, or if it cannot be
    loaded or made.
    """
    name, *words = text.split(":")
    entries = entry_points(group=GROUP, name=name)  # read again: installed since, perhaps
    if not entries:
        raise PolicyError(f"policy {name}: no installed package registers it in {GROUP}")
    (entry, *_) = entries
    try:
        make: Callable[[PolicyOptions], Policy] = entry.load()
        made = make(PolicyOptions(limits or SolverLimits(), user_shares, tuple(words)))
        if words and made.name != text:
            raise ValueError("it takes no such words")
    except Exception as error:  # a site's own code
        raise PolicyError(f"policy {text}: {entry.value} cannot be loaded: {error}") from error
    return made
