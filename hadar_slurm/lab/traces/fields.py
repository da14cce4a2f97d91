"""Parsers of the fields of a trace; errors have the place and the values accepted.

Above the limits, floating point loses the seconds of times and the steps of sums.
"""

from __future__ import annotations

import re

from hadar_slurm.errors import UsageError
from hadar_slurm.jobspec.units import parse_count, parse_number

MAX_GANG = 100_000
MAX_STEPS = 2**53
MAX_TIME_S = 1e10

# Up to this many digits a number is within all limits; above _MAX_DIGITS it is invalid.
_FEW_DIGITS = 9
_MAX_DIGITS = 40
_MAX_SHOWN = 60


class TraceError(UsageError):
    """A workload trace is wrong: names file, line and value."""


def split_lines(text: str) -> list[str]:
    """Return the lines of a text as editors number them, without a byte order mark."""
    return re.split(r"\r\n|\n|\r", text.removeprefix("\ufeff"))


def shown(text: str) -> str:
    """Return a text quoted for an error, truncated if long."""
    return repr(text) if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]!r}..."


def gang_size(text: str, place: str, what: str = "gang size") -> int:
    """Return a number of GPUs, 1 or more."""
    return _count(text, place, what, MAX_GANG, "GPUs")


def steps(text: str, place: str, what: str = "total steps") -> int:
    """Return a number of training steps, 1 or more."""
    return _count(text, place, what, MAX_STEPS, "steps")


def seconds(text: str, place: str, what: str) -> float:
    """Return a time in seconds, 0 or more."""
    if len(text) <= _FEW_DIGITS and text.isdecimal():
        return float(text)
    what = f"{place}: {what}"
    _check_length(text, what, "a number, 0 or more")
    value = parse_number(text, what, TraceError)
    if value > MAX_TIME_S:
        limit = f"expected seconds, at most {MAX_TIME_S:g}; are these milliseconds?"
        raise TraceError(f"{what} {text!r}: {limit}")
    return value


def _count(text: str, place: str, what: str, most: int, unit: str) -> int:
    if len(text) <= _FEW_DIGITS and text.isdecimal() and 1 <= int(text) <= most:
        return int(text)
    what = f"{place}: {what}"
    _check_length(text, what, "a whole number, 1 or more")
    value = parse_count(text, what, TraceError)
    if value > most:
        raise TraceError(f"{what} {text!r}: expected at most {most} {unit}")
    return value


def _check_length(text: str, what: str, expected: str) -> None:
    if len(text) > _MAX_DIGITS:
        raise TraceError(f"{what} {shown(text)}: expected {expected}")
