"""The entry point of a policy that has no options; hadard's own policies have some."""

from __future__ import annotations

from collections.abc import Callable

from hadar_slurm.policies.policy import Policy, PolicyOptions


def without_options(make: Callable[[], Policy]) -> Callable[[PolicyOptions], Policy]:
    """Return the entry point of a policy that has no options."""
    return lambda _: make()
