"""Time limits as Slurm writes them, and the limit that a job has on each GPU type. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from operator import mul
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hadar_slurm.core.throughput import Throughputs

_DAY_S, _HOUR_S, _MINUTE_S = 86_400, 3_600, 60
_UNITS_S = {"s": 1, "m": _MINUTE_S, "h": _HOUR_S, "d": _DAY_S}
# Relative: steps are whole numbers, and limits whole minutes.
_ROUNDING = 0.001


@lru_cache(maxsize=1024)
def parse_time_limit(text: str) -> float | None:
    """Return a time limit in seconds; None for no limit or an invalid text.

    `90` is minutes, `90:30` minutes and seconds, `1:30:00` begins with hours, `2-12` with days and
    hours (sbatch's manual page, --time). 0 means no limit.
    """
    days, dash, clock = text.strip().rpartition("-")
    parts = [days if dash else "0", *clock.split(":")]
    if len(parts) > 4 or not all(len(p) < 10 and p.isascii() and p.isdigit() for p in parts):
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


def limits_by_type(
    throughputs: Throughputs,
    num_gpus: int,
    own_s: float,
    *,
    measured_on: str = "",
    most_s: float = math.inf,
) -> dict[str, float]:
    """Return the time limit in seconds that a job gets on each GPU type where it runs.

    `own_s` is its owner's, which holds for the type `measured_on`: on a slower one the job gets so
    much more, in whole minutes, up to `most_s`. A limit is never less than the owner's.
    """
    reference = throughputs.on(measured_on, num_gpus) if measured_on else 0.0
    found = {}
    for gpu_type in throughputs.gpu_types:
        if (speed := throughputs.on(gpu_type, num_gpus)) > 0:
            minutes = math.ceil(own_s * reference / speed / _MINUTE_S - _ROUNDING)
            found[gpu_type] = max(own_s, min(float(minutes * _MINUTE_S), most_s))
    return found


def late_types(
    throughputs: Throughputs,
    num_gpus: int,
    steps: float,
    limits_s: Mapping[str, float],
    present: Iterable[str],
    held: Collection[str] = (),
) -> dict[str, float]:
    """Return the GPU types, of those `present`, on which `steps` last longer than the limit there.

    With the seconds that they last. Types that the job holds or on which it does not run are none
    of them, and none is if it ends in time on no type: nothing is gained by waiting then.
    """
    known = {name.lower() for name in present} & limits_s.keys()
    lasts_s = {n: steps / speed for n in known if (speed := throughputs.on(n, num_gpus)) > 0}
    late = {name: s for name, s in lasts_s.items() if s > limits_s[name] * (1 + _ROUNDING)}
    on_held = {name.lower() for name in held}
    return {n: s for n, s in late.items() if n not in on_held and len(late) < len(lasts_s)}


def new_time_limit_s(
    by_type: Mapping[str, float], gpu_types: Iterable[str], shown_s: float
) -> int | None:
    """Return the time limit in seconds of a job that may start on these types; None: unchanged."""
    wanted = max((by_type.get(name.lower(), 0.0) for name in gpu_types), default=0.0)
    return round(wanted) if wanted and wanted != shown_s else None
