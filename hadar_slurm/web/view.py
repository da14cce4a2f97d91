"""The request for a page: the journal, the time range, the GPU type, the groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import tzinfo

from hadar_slurm.status.health import is_late
from hadar_slurm.status.use import GROUPS
from hadar_slurm.web.follower import Follower
from hadar_slurm.web.gantt import Window
from hadar_slurm.web.history import JournalView
from hadar_slurm.web.pulse import Pulse
from hadar_slurm.web.words import Clock

# Hours to choose from; 0 shows all that was read.
HOURS = (1, 6, 24, 72, 168, 0)

Query = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class PageRequest:
    """The input of a page: the journal, the current time, and the URL's query."""

    follower: Follower
    now_s: float
    query: Query
    zone: tzinfo | None = None
    pulse: Pulse | None = None

    @property
    def history(self) -> JournalView:
        """Return the journal's history."""
        return self.follower.history

    @property
    def clock(self) -> Clock:
        """Return the format of the journal's times."""
        return Clock(self.history.is_epoch, self.zone)

    @property
    def is_old(self) -> bool:
        """Whether a daemon would have written a round since the last one."""
        now = self.history.now
        return not self.history.is_empty and is_late(self.now_s - now.time_s, now.length_s)

    @property
    def until_s(self) -> float:
        """Return when the picture ends: now, unless the last round is long ago."""
        now = self.history.now
        if not self.history.is_epoch:
            return now.time_s
        return max(now.time_s, min(self.now_s, now.time_s + now.length_s))

    @property
    def hours(self) -> int:
        """Return the hours to show, 0 for all: a day of a daemon's, all of a simulation's."""
        asked = self.query.get("hours", "")
        usual = 24 if self.history.is_epoch else 0
        return int(asked) if asked in map(str, HOURS) else usual

    @property
    def window(self) -> Window | None:
        """Return the time to show; None while there is none."""
        begins_s = self.history.begins_s
        if self.hours:
            begins_s = max(begins_s, self.until_s - 3600.0 * self.hours)
        return Window(begins_s, self.until_s) if self.until_s > begins_s else None

    @property
    def group(self) -> str:
        """Return by what jobs are to be grouped: a key of `GROUPS`."""
        asked = self.query.get("by", "")
        return asked if asked in GROUPS else next(iter(GROUPS))

    @property
    def gpu_type(self) -> str:
        """Return the GPU type that was asked for, "" for all."""
        asked = self.query.get("type", "")
        return asked if asked in self.history.now.gpus else ""
