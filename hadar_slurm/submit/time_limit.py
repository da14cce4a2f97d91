"""Parses and formats sbatch's time limits, and other durations."""

from __future__ import annotations

import re
from operator import mul

_DAY_S, _HOUR_S, _MINUTE_S = 86_400, 3_600, 60
_UNITS_S = {"s": 1, "m": _MINUTE_S, "h": _HOUR_S, "d": _DAY_S}


def parse_time_limit(text: str) -> float | None:
    """Return a time limit in seconds; None for no limit or an invalid text.

    `90` is minutes, `90:30` minutes and seconds, `1:30:00` begins with hours, `2-12` with days and
    hours (sbatch's manual page, --time). 0 means no limit.
    """
    days, dash, clock = text.strip().rpartition("-")
    parts = [days if dash else "0", *clock.split(":")]
    if len(parts) > 4 or not all(part.isascii() and part.isdigit() for part in parts):
        return None
    days_given, *numbers = map(int, parts)
    units_s = (_HOUR_S, _MINUTE_S, 1) if dash or len(numbers) == 3 else (_MINUTE_S, 1)
    found = days_given * _DAY_S + sum(map(mul, numbers, units_s))
    return float(found) or None


def parse_duration(text: str) -> float | None:
    """Return `90s`, `20m`, `1.5h`, `1d` or a time limit of sbatch's in seconds; None if invalid."""
    if found := re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([smhd])", text.strip().lower()):
        return float(found[1]) * _UNITS_S[found[2]]
    return parse_time_limit(text)


def format_time_limit(limit_s: float) -> str:
    """Return a time limit as Slurm prints it, `8:00:00` or `2-12:00:00`."""
    minutes, seconds = divmod(round(limit_s), _MINUTE_S)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"{f'{days}-' if days else ''}{hours}:{minutes:02}:{seconds:02}"
