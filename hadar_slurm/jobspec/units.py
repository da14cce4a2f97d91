"""Numbers that people wrote: on a command line, in a trace."""

from __future__ import annotations

import math
import re

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


_GB = {"": 1.0, "g": 1.0, "gb": 1.0, "m": 1e-3, "mb": 1e-3, "t": 1e3, "tb": 1e3}


def parse_memory_gb(text: str) -> float | None:
    """Return GB from `40`, `40G`, `40GB` or `40000M`; None for anything else."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)", text.strip().lower())
    unit = _GB.get(found[2].replace("ib", "b")) if found else None
    return float(found[1]) * unit if found and unit else None
