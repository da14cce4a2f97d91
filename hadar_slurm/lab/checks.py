"""Checks of the values of options; each error names the option, the value, what is expected."""

from __future__ import annotations

from collections.abc import Sequence

from hadar_slurm.errors import UsageError
from hadar_slurm.policies.registry import POLICY_NAMES, make_policy


def check_choice(option: str, value: str, known: Sequence[str]) -> None:
    """Raise UsageError unless a value is one of `known`."""
    if value not in known:
        raise UsageError(f"{option} {value!r}: expected one of {', '.join(known)}")


def choices_of(option: str, text: str, known: Sequence[str]) -> tuple[str, ...]:
    """Return the names in a comma-separated list, each once."""
    names = _listed(text)
    for name in names:
        check_choice(option, name, known)
    return names


def policies_of(option: str, text: str) -> tuple[str, ...]:
    """Return the policies in a comma-separated list, each once, `slurm:list:open` among them.

    Raises UsageError for an unknown one, and PolicyError where it does not take what follows `:`.
    """
    names = _listed(text)
    for name in names:
        check_choice(option, name.partition(":")[0], POLICY_NAMES)
        if ":" in name:
            make_policy(name)
    return names


def _listed(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.strip() for part in text.split(",")))


def at_least_one(option: str, value: int | None) -> int | None:
    """Return a whole number, 1 or more, or None if it is not given."""
    if value is not None and value < 1:
        raise UsageError(f"{option} {value}: expected a whole number, 1 or more")
    return value


def number_of(option: str, value: float, *, above: bool = False) -> float:
    """Return a finite number, 0 or more, or with `above` a number above 0."""
    if not 0 <= value < float("inf") or (above and value == 0):
        expected = "a number above 0" if above else "a number, 0 or more"
        raise UsageError(f"{option} {value:g}: expected {expected}")
    return value
