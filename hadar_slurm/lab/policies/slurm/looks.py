"""When Slurm's two schedulers look at the queue, where those times are known. Pure.

Read in Slurm's source (22.05: job_scheduler.c, backfill.c, select_nodes): the main scheduler looks
when a job has ended and at times of its own, and goes on to the first job that cannot start; the
backfill scheduler looks at times of its own. A job that has others stopped starts at a look after
these are gone, and until then nothing else starts on its nodes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto


class Look(Enum):
    """Which scheduler looks at the queue."""

    NONE = auto()
    MAIN = auto()
    BACKFILL = auto()


@dataclass(frozen=True, slots=True)
class Looks:
    """The times of looks, sorted, and how long a stopped job takes to be gone; in seconds."""

    main_s: Sequence[float]
    backfill_s: Sequence[float]
    gone_after_s: float

    def look(self, since_s: float, now_s: float, *, has_ended: bool, stopped_s: float) -> Look:
        """Return which scheduler looks now, if the last plan was made at `since_s`.

        NONE while the jobs are about to go that were stopped last, at `stopped_s`.
        """
        gone_s = stopped_s + self.gone_after_s
        if now_s < gone_s:
            return Look.NONE
        if _is_within(self.backfill_s, since_s, now_s):
            return Look.BACKFILL
        is_main = has_ended or since_s < gone_s or _is_within(self.main_s, since_s, now_s)
        return Look.MAIN if is_main else Look.NONE

    def next_s(self, now_s: float, stopped_s: float) -> float | None:
        """Return when the next look is, if no job ends before."""
        gone_s = stopped_s + self.gone_after_s
        times = [gone_s] if gone_s > now_s else []
        for each in (self.main_s, self.backfill_s):
            times += each[(at := bisect_right(each, now_s)) : at + 1]
        return min(times, default=None)


def _is_within(times: Sequence[float], since_s: float, now_s: float) -> bool:
    return bisect_right(times, now_s) > bisect_right(times, since_s)
