"""The files that hadard and a training job exchange. Standard library, Python 3.9.

A job keeps one report, `REPORTS/u<uid>/<job id>/progress.json`, and replaces it whole, so that a
reader never sees half of one. The directory `u<uid>` belongs to the job's owner and is made with
the first report: from then on no other user can replace it. hadard trusts no report: file and
directories must belong to the job's owner, the file must be plain and small, and its numbers are
checked. What a job itself does with these files is in `handoff.py`.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, Optional

from hadar_slurm import untrusted_files

VERSION = 1
SPOOL_VARIABLE = "HADAR_SPOOL"
DEFAULT_REPORTS = "/var/spool/hadar/reports"
REPORT_NAME = "progress.json"
# Says that the tasks of an array are the copies of one job, and not jobs of their own.
COPIES_VARIABLE = "HADAR_COPIES"
ASSIGNMENTS_VARIABLE = "HADAR_ASSIGNMENTS"
DEFAULT_ASSIGNMENTS = "/var/spool/hadar/assignments"
MAX_REPORT_BYTES = 64 * 1024
MAX_NUMBER = 1e18  # beyond any count of steps or time; keeps what follows out of overflow
STATES = ("running", "saved", "done")
# The numbers that a report may leave out, by type.
_OPTIONAL_NUMBERS: Dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("steps_per_s", "time_s", "aggregation_s", "saved_s"), float),
    **dict.fromkeys(("own_steps", "averages", "version", "saved_steps"), int),
}
# What reading a malformed report or assignment raises.
MALFORMED = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)


class ReportError(ValueError):
    """A report exists and cannot be trusted; gives the reason."""


class SquattedError(ReportError):
    """Another user has made a directory or file in which a job's owner was to report."""


@dataclass(frozen=True)
class ProgressReport:
    """The progress that a job reports."""

    # Slurm's restart count of the run that wrote it (SLURM_RESTART_COUNT, 0 at first), which
    # distinguishes old and new reports.
    restart: int
    state: str
    # Of the whole job; in state `saved`, those in the checkpoint.
    steps_done: int
    # Measured over this run; 0: not yet.
    steps_per_s: float = 0.0
    # In seconds since the epoch by the job's clock.
    time_s: float = 0.0
    # Of a forked job's copy: the part of `steps_done` that it has trained since the parameters were
    # last averaged, which no other copy counts.
    own_steps: int = 0
    # How long averaging the parameters of copies took; 0: not yet measured.
    aggregation_s: float = 0.0
    # How often two copies or more have been averaged since the training began.
    averages: int = 0
    # Of a forked job's copy: that copies share every step, and nothing is averaged.
    synchronous: bool = False
    # Promises that USR1 makes this run save and ends none of its processes (`listens_now`). A
    # report without it promises that too: it follows the protocol.
    listens: bool = True
    # When the newest checkpoint was written, by the job's clock, and its steps; 0: not told.
    saved_s: float = 0.0
    saved_steps: int = 0
    version: int = VERSION


def user_reports(reports: Path, uid: int) -> Path:
    """Return a user's directory of reports, made by the user: `reports` is open to all, as /tmp."""
    return reports / f"u{uid}"


def report_path(own: Path, job_id: str) -> Path:
    """Return where a job's report lies in its user's directory."""
    return own / job_id / REPORT_NAME


def read_report(reports: Path, job_id: str, *, owner_uid: int) -> Optional[ProgressReport]:
    """Return the job's report, or None where there is none yet.

    Raises SquattedError where another user has taken the directory of the job's owner, and
    ReportError for anything else that the owner cannot have written in good faith.
    """
    return read_own_report(user_reports(reports, owner_uid), job_id, owner_uid)


def read_own_report(
    own: Path, job_id: str, owner_uid: Optional[int] = None
) -> Optional[ProgressReport]:
    """Return the report of a job that reports in `own`, like `read_report`; None: this user's."""
    path, owner_uid = report_path(own, job_id), os.geteuid() if owner_uid is None else owner_uid
    try:
        with (
            untrusted_files.directory(own, owner_uid=owner_uid) as user_fd,
            untrusted_files.directory(job_id, owner_uid=owner_uid, dir_fd=user_fd) as job_fd,
        ):
            text = untrusted_files.read(
                REPORT_NAME, max_bytes=MAX_REPORT_BYTES, owner_uid=owner_uid, dir_fd=job_fd
            )
    except FileNotFoundError:
        return None
    except untrusted_files.WrongOwner as error:
        place = own if error.filename == str(own) else path
        raise SquattedError(f"{place}: {error.strerror}; remove it") from error
    except OSError as error:
        raise ReportError(f"{path}: {error.strerror}") from error
    return parse_report(text, str(path))


def parse_report(text: bytes, origin: str) -> ProgressReport:
    """Return the report in `text`; `origin` names it in errors."""
    try:
        tree = json.loads(text)
        report = ProgressReport(
            restart=int(tree["restart"]),
            state=str(tree["state"]),
            steps_done=int(tree["steps_done"]),
            **{name: kind(tree.get(name, 0)) for name, kind in _OPTIONAL_NUMBERS.items()},
            listens=tree.get("listens", True) is True,
            synchronous=tree.get("synchronous", False) is True,
        )
    except MALFORMED as error:
        raise ReportError(f"{origin}: not a progress report: {error!r:.200}") from error
    numbers = (getattr(report, name) for name in ("restart", "steps_done", *_OPTIONAL_NUMBERS))
    if report.version != VERSION:
        raise ReportError(of_version(origin, report.version))
    if report.state not in STATES:
        raise ReportError(f"{origin}: state {report.state!r:.40}, not one of {', '.join(STATES)}")
    if not all(0 <= number <= MAX_NUMBER for number in numbers):
        raise ReportError(f"{origin}: a number is negative, not finite or above {MAX_NUMBER:g}")
    return report


def of_version(origin: object, version: int) -> str:
    """Return that a file has another version, and the remedy."""
    remedy = "the job needs the hadar_slurm or hadar-runtime of hadard's version"
    return f"{origin}: version {version}, this reads {VERSION}: {remedy}"
