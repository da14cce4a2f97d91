"""Gains and numbers in words, for all sentences about gains."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from hadar_slurm.lab.study.gains.intervals import Interval


def per_cent(share: float) -> str:
    """Return a share such as 0.12 in per cent."""
    return f"{100 * share:.0f} %"


def between(interval: Interval) -> str:
    """Return a range of ratios as changes: between 7 and 17 %."""
    low, high = 1.0 - interval.high, 1.0 - interval.low
    if low >= 0 or high <= 0:
        least, most = sorted((abs(low), abs(high)))
        return f"between {100 * least:.0f} and {per_cent(most)}"
    return f"between {per_cent(-low)} longer and {per_cent(high)} shorter"


def counted(number: float, one: str) -> str:
    """Return a number of things, `one` of which is given."""
    return (
        f"{number:,.3g} {one}{'' if number == 1 else 's'}"
        if number < 100
        else f"{number:,.0f} {one}s"
    )


def opponents(policies: Iterable[str]) -> str:
    """Return plain Slurms by name, with the numbers of runs where they differ."""
    names = Counter(policies)
    listed = (f"{name} in {n}" if len(names) > 1 else name for name, n in names.items())
    return f"beside the strongest plain Slurm ({', '.join(listed)})"
