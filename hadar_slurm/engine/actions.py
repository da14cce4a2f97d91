"""Actions for a backend, and their outcomes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.gang import Gang


@dataclass(frozen=True, slots=True)
class _CopyAction:
    job_id: JobId
    copy: int
    gang: Gang


class Stop(_CopyAction):
    """Take `gang` from a copy of a job: checkpoint, requeue, hold."""


class Renew(_CopyAction):
    """Leave a copy on `gang` for another round."""


class Start(_CopyAction):
    """Give `gang` to a copy of a job."""


Action = Stop | Renew | Start


class Status(StrEnum):
    """How an action ended."""

    DONE = "done"
    # Too early or too late; the next round decides again.
    DEFERRED = "deferred"
    REFUSED = "refused"
    # A dry run: `detail` says what would have been done.
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one action; `detail` is for people."""

    action: Action
    status: Status
    detail: str = ""
