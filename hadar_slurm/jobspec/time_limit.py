"""Parses and formats sbatch's time limits."""

from __future__ import annotations

from operator import mul

_DAY_S, _HOUR_S, _MINUTE_S = 86_400, 3_600, 60


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


def format_time_limit(limit_s: float) -> str:
    """Return a time limit as Slurm prints it, `8:00:00` or `2-12:00:00`."""
    minutes, seconds = divmod(round(limit_s), _MINUTE_S)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"{f'{days}-' if days else ''}{hours}:{minutes:02}:{seconds:02}"
