"""The users who adopt a policy, the jobs that can move and those left out, drawn from a seed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from random import Random

from hadar_slurm.core.job import JobSpec


def drawn(count: int, percent: float, seed: int) -> frozenset[int]:
    """Return `percent` of the numbers below `count`, rounded.

    A larger share with the same seed contains every smaller one, so that shares differ by few.
    """
    order = list(range(count))
    Random(f"adoption {seed}").shuffle(order)
    return frozenset(order[: round(count * percent / 100)])


def as_movable(specs: Sequence[JobSpec], percent: float, *, seed: int) -> list[JobSpec]:
    """Return the jobs, of which `percent` can save and be migrated as before, and no others."""
    chosen = drawn(len(specs), percent, seed)
    return [
        spec if number in chosen else replace(spec, can_checkpoint=False)
        for number, spec in enumerate(specs)
    ]


def without_some(specs: Sequence[JobSpec], percent: float, *, seed: int) -> list[JobSpec]:
    """Return the jobs without `percent` of them, rounded; one stays at least.

    They are drawn independently of those that can move.
    """
    order = list(range(len(specs)))
    Random(f"left out {seed}").shuffle(order)
    kept = frozenset(order[min(round(len(specs) * percent / 100), len(specs) - 1) :])
    return [spec for number, spec in enumerate(specs) if number in kept]


def users_drawn(users: Iterable[str], percent: float, *, seed: int) -> frozenset[str]:
    """Return `percent` of the users, one at least if it is above 0; "" is none."""
    names = sorted(set(users) - {""})
    least = 100 / len(names) if percent > 0 and names else 0.0
    return frozenset(names[place] for place in drawn(len(names), max(percent, least), seed))


def as_submitted(specs: Sequence[JobSpec], adopters: frozenset[str]) -> list[JobSpec]:
    """Return the jobs, those of other users than `adopters` as plain Slurm has them: unmovable."""
    return [
        spec if spec.user in adopters else replace(spec, can_checkpoint=False) for spec in specs
    ]
