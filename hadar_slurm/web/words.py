"""Formats text, times, durations and numbers for the page."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, tzinfo

from hadar_slurm.status.words import escaped, legible

_MINUTE_S, _HOUR_S, _DAY_S = 60.0, 3600.0, 86400.0
# Between ticks of an axis, in seconds.
_STEPS_S = [
    *(5.0, 10.0, 30.0),
    *(n * _MINUTE_S for n in (1, 2, 5, 10, 15, 30)),
    *(n * _HOUR_S for n in (1, 2, 3, 6, 12)),
    *(n * _DAY_S for n in (1, 2, 3, 4, 7, 14, 28, 56, 112, 224, 448)),
]


def clean(value: object) -> str:
    """Return a text of others as one line that can be encoded and shown."""
    return legible(str(value))


def encodable(value: object) -> str:
    """Return a text of this program, in which only line breaks are not printed, whole."""
    return "\n".join(map(escaped, str(value).split("\n")))


def count(number: int, one: str, many: str = "") -> str:
    """Return a number of things."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def duration(seconds: float) -> str:
    """Return a time span in its two largest units."""
    if not math.isfinite(seconds):
        return "–"
    seconds = max(0.0, seconds)
    if seconds < _MINUTE_S:
        return f"{seconds:.0f} s"
    minutes = round(seconds / _MINUTE_S)
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60:02} min"
    hours = round(seconds / _HOUR_S)
    return f"{hours // 24} d {hours % 24} h"


def span(hours: int) -> str:
    """Return hours, or days from 48 hours."""
    return f"{hours} h" if hours < 48 else f"{hours // 24} days"


@dataclass(frozen=True, slots=True)
class Clock:
    """Formats the times of a journal: in a zone for a daemon, since the start for a simulation."""

    is_epoch: bool
    # None: the machine's own.
    zone: tzinfo | None = None

    def zone_at(self, time_s: float) -> str:
        """Return the zone's name and distance from UTC at a time, such as `CET, UTC+01:00`."""
        if not self.is_epoch:
            return "since the simulation began"
        local = self._local(time_s)
        distance = local.strftime("%z")
        words = f"UTC{distance[:3]}:{distance[3:5]}"
        short = local.tzname() or ""
        return "UTC" if short == "UTC" else f"{short}, {words}" if short.isalpha() else words

    def axis(self, from_s: float, to_s: float) -> str:
        """Return the caption of a time axis; it names two zones if clocks changed within."""
        if not self.is_epoch:
            return "time since the simulation began"
        zones = dict.fromkeys((self.zone_at(from_s), self.zone_at(to_s)))
        return f"time in {', later '.join(zones)}"

    def moment(self, time_s: float) -> str:
        """Return a point in time."""
        if not self.is_epoch:
            return f"{time_s / _HOUR_S:.2f} h"
        return self._local(time_s).strftime("%d %b %H:%M:%S")

    def day(self, time_s: float) -> str:
        """Return a date."""
        return f"{self._local(time_s):%d %b %Y}"

    def ticks(self, from_s: float, to_s: float, *, most: int) -> Iterator[tuple[float, str]]:
        """Yield at most `most` round points in time, each with its label."""
        lasts_s = to_s - from_s
        step_s = next((step for step in _STEPS_S if lasts_s / step <= most), _STEPS_S[-1])
        if lasts_s / step_s > most:
            step_s *= math.ceil(lasts_s / step_s / most)
        # By the wall clock, so that steps of hours and days begin at midnight.
        ahead = self._local(from_s).utcoffset() if self.is_epoch else None
        ahead_s = ahead.total_seconds() if ahead else 0.0
        time_s = math.ceil((from_s + ahead_s) / step_s) * step_s - ahead_s
        while time_s <= to_s:
            yield time_s, self._label(time_s, step_s)
            time_s += step_s

    def _label(self, time_s: float, step_s: float) -> str:
        if not self.is_epoch:
            unit_s, unit = (_HOUR_S, "h") if step_s >= _HOUR_S else (_MINUTE_S, "min")
            return f"{time_s / unit_s:g} {unit}"
        local = self._local(time_s)
        if step_s >= _DAY_S or (local.hour == local.minute == local.second == 0):
            return f"{local.day} {local:%b}"
        return local.strftime("%H:%M" if step_s >= _MINUTE_S else "%H:%M:%S")

    def _local(self, time_s: float) -> datetime:
        return datetime.fromtimestamp(time_s, self.zone).astimezone(self.zone)
