"""Numbers that people wrote: on a command line, in a trace."""

from __future__ import annotations

import math

from hadar_slurm.errors import UsageError


def parse_number(text: str, what: str, fault: type[UsageError]) -> float:
    """Return a finite number, 0 or more; else raise `fault` naming `what` and the text."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise fault(f"{what} {text!r}: expected a number, 0 or more")
    return value


def parse_count(text: str, what: str, fault: type[UsageError]) -> int:
    """Return a whole number, 1 or more; else raise `fault` naming `what` and the text."""
    try:
        # Traces may write 1e6; beyond 2**53 only int() is exact.
        value = int(text) if text.strip().isdigit() else float(text)
    except ValueError:
        value = math.nan
    if not (1 <= value < math.inf and value == int(value)):
        raise fault(f"{what} {text!r}: expected a whole number, 1 or more")
    return int(value)
