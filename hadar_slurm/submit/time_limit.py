"""Parses and formats sbatch's time limits."""

from __future__ import annotations

import re

_DAY_S, _HOUR_S, _MINUTE_S = 86_400, 3_600, 60
_WITH_DAYS = re.compile(r"(\d+)-(\d+)(?::(\d+)(?::(\d+))?)?", re.ASCII)
_WITHOUT = re.compile(r"(\d+)(?::(\d+)(?::(\d+))?)?", re.ASCII)


def parse_time_limit(text: str) -> float | None:
    """Return a time limit in seconds; None for no limit or an invalid text.

    `90` is minutes, `90:30` minutes and seconds, `1:30:00` begins with hours, `2-12` with days and
    hours (sbatch's manual page, --time). 0 means no limit.
    """
    text = text.strip()
    if match := _WITH_DAYS.fullmatch(text):
        days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    elif match := _WITHOUT.fullmatch(text):
        first, second, third = match.groups()
        days = 0
        # Two numbers are minutes and seconds, three begin with hours.
        parts = (first, second, third) if third else (0, first, second)
        hours, minutes, seconds = (int(part or 0) for part in parts)
    else:
        return None
    found = days * _DAY_S + hours * _HOUR_S + minutes * _MINUTE_S + seconds
    return float(found) or None


def format_time_limit(limit_s: float) -> str:
    """Return a time limit as Slurm prints it, `8:00:00` or `2-12:00:00`."""
    minutes, seconds = divmod(round(limit_s), _MINUTE_S)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"{f'{days}-' if days else ''}{hours}:{minutes:02}:{seconds:02}"
