"""What a backend is told to do, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.gang import Gang


@dataclass(frozen=True, slots=True)
class Stop:
    """Take `gang` from a copy of a job: checkpoint, requeue, hold."""

    job_id: JobId
    copy: int
    gang: Gang


@dataclass(frozen=True, slots=True)
class Renew:
    """Leave a copy on `gang` for another round."""

    job_id: JobId
    copy: int
    gang: Gang


@dataclass(frozen=True, slots=True)
class Start:
    """Give `gang` to a copy of a job."""

    job_id: JobId
    copy: int
    gang: Gang


Action = Stop | Renew | Start


class Status(StrEnum):
    """How an action ended."""

    DONE = "done"
    # Its moment had passed or not yet come; the next round decides again.
    DEFERRED = "deferred"
    REFUSED = "refused"
    # A dry run: `detail` tells what would have been done.
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one action; `detail` is for people."""

    action: Action
    status: Status
    detail: str = ""
