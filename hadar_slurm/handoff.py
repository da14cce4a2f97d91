"""The files that hadard and a training job exchange. Standard library, Python 3.9.

A job keeps one report, `SPOOL/<job id>/progress.json`, and replaces it whole, so that a reader
never sees half of one. hadard reads it as the word of a stranger: the file must belong to the
job's owner, be a plain file and be small; its numbers are checked.

How a job is asked to move (docs/adr/0005): hadard sends USR1 to the batch script. The job saves a
checkpoint, reports state `saved` with the steps that the checkpoint holds, and waits; hadard then
requeues it. If nobody comes, because the signal was not hadard's, the job reports `running` and
goes on.
"""

from __future__ import annotations

import json
import os
import stat
import time
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Dict, Mapping, Optional

VERSION = 1
SPOOL_VARIABLE = "HADAR_SPOOL"
DEFAULT_SPOOL = "/var/spool/hadar"
# Says that the tasks of an array are the copies of one job, and not jobs of their own.
COPIES_VARIABLE = "HADAR_COPIES"
ASSIGNMENTS_VARIABLE = "HADAR_ASSIGNMENTS"
DEFAULT_ASSIGNMENTS = "/var/spool/hadar/assignments"
MAX_REPORT_BYTES = 64 * 1024
MAX_NUMBER = 1e18  # beyond any count of steps or time; keeps what follows out of overflow

STATES = ("running", "saved", "done")


class ReportError(ValueError):
    """A report is there and cannot be trusted; says why."""


class AssignmentError(ValueError):
    """An assignment is there and cannot be read; says why."""


@dataclass(frozen=True)
class ProgressReport:
    """What a job says of itself.

    `restart` is Slurm's restart count of the run that wrote it (SLURM_RESTART_COUNT, 0 at
    first), which tells an old report from a new one. `steps_done` counts the steps of the whole
    job; in state `saved`, those in the checkpoint. `steps_per_s` is measured over this run (0: not
    yet). `time_s` is seconds since the epoch by the job's clock.

    Of a forked job's copy `own_steps` are those of `steps_done` that it has trained since the
    parameters were last made one, which no other copy counts; `aggregation_s` is how long that
    took (0: not yet measured), and `averages` how often two copies or more have been made one since
    the training began.
    """

    restart: int
    state: str
    steps_done: int
    steps_per_s: float = 0.0
    time_s: float = 0.0
    own_steps: int = 0
    aggregation_s: float = 0.0
    averages: int = 0
    version: int = VERSION


def report_path(spool: Path, job_id: str) -> Path:
    """Return where a job's report lies."""
    return spool / job_id / "progress.json"


def write_report(spool: Path, job_id: str, report: ProgressReport) -> None:
    """Replace the job's report in one step, readable by all whatever the job's umask is."""
    path = report_path(spool, job_id)
    if not path.parent.is_dir():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.parent.chmod(0o755)
    draft = path.with_name(f".progress.{os.getpid()}")
    # In a spool that all may write to, someone else may have made the directory and put a link
    # in the draft's place: O_EXCL follows none.
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    with open(descriptor, "w", encoding="utf-8") as file:
        os.fchmod(descriptor, 0o644)
        file.write(json.dumps(asdict(report)) + "\n")
    os.replace(draft, path)


def tell(state: str, steps_done: int, steps_per_s: float = 0.0) -> None:
    """Report on the job that this process belongs to; outside of Slurm there is none.

    A report that cannot be written must not stop training: it is a warning.
    """
    job = os.environ.get("SLURM_JOB_ID")
    if job is None:
        return
    spool = Path(os.environ.get(SPOOL_VARIABLE) or DEFAULT_SPOOL)
    restart = int(os.environ.get("SLURM_RESTART_COUNT") or 0)
    try:
        report = ProgressReport(restart, state, steps_done, steps_per_s, time.time())
        write_report(spool, job, report)
    except OSError as error:
        warnings.warn(f"no progress report: {error}", stacklevel=2)  # prints each text once


def read_report(spool: Path, job_id: str, *, owner_uid: int) -> Optional[ProgressReport]:
    """Return the job's report, or None where there is none yet.

    Raises ReportError for anything that the job's owner cannot have written in good faith.
    """
    path = report_path(spool, job_id)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ReportError(f"{path}: {error.strerror}") from error
    try:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode):
            raise ReportError(f"{path}: not a plain file")
        if facts.st_uid != owner_uid:
            raise ReportError(f"{path}: owned by user {facts.st_uid}, not by {owner_uid}")
        with open(descriptor, "rb", closefd=False) as file:
            text = file.read(MAX_REPORT_BYTES + 1)
    except OSError as error:
        raise ReportError(f"{path}: {error.strerror}") from error
    finally:
        os.close(descriptor)
    if len(text) > MAX_REPORT_BYTES:
        raise ReportError(f"{path}: larger than {MAX_REPORT_BYTES} bytes")
    return parse_report(text, str(path))


def parse_report(text: bytes, origin: str) -> ProgressReport:
    """Return the report in `text`; `origin` names it in errors."""
    try:
        tree = json.loads(text)
        report = ProgressReport(
            restart=int(tree["restart"]),
            state=str(tree["state"]),
            steps_done=int(tree["steps_done"]),
            steps_per_s=float(tree.get("steps_per_s", 0.0)),
            time_s=float(tree.get("time_s", 0.0)),
            own_steps=int(tree.get("own_steps", 0)),
            aggregation_s=float(tree.get("aggregation_s", 0.0)),
            averages=int(tree.get("averages", 0)),
            version=int(tree.get("version", 0)),
        )
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise ReportError(f"{origin}: not a progress report: {error!r}") from error
    numbers = (
        report.restart,
        report.steps_done,
        report.steps_per_s,
        report.time_s,
        report.own_steps,
        report.aggregation_s,
        report.averages,
    )
    if report.version != VERSION:
        raise ReportError(f"{origin}: version {report.version}, this reads {VERSION}")
    if report.state not in STATES:
        raise ReportError(f"{origin}: state {report.state!r}, expected one of {', '.join(STATES)}")
    if not all(0 <= number <= MAX_NUMBER for number in numbers):
        raise ReportError(f"{origin}: a number is negative, not finite or above {MAX_NUMBER:g}")
    return report


@dataclass(frozen=True)
class Assignment:
    """What hadard asks of a forked job's copies, until it asks for something else.

    `number` grows with each; `quotas` are the steps of each copy in one slot, in proportion to its
    speed, so that all end together; `slot_s` is how long a slot is to last.
    """

    number: int
    quotas: Mapping[int, int]
    slot_s: float
    version: int = VERSION


def assignment_path(directory: Path, parent_id: str) -> Path:
    """Return where the assignment of a forked job lies."""
    return directory / parent_id / "assignment.json"


def write_assignment(path: Path, assignment: Assignment) -> None:
    """Replace an assignment in one step."""
    draft = path.with_name(f".assignment.{os.getpid()}")
    draft.write_text(assignment_text(assignment), encoding="utf-8")
    os.replace(draft, path)


def assignment_text(assignment: Assignment) -> str:
    """Return what the file of an assignment says."""
    return json.dumps({**asdict(assignment), "quotas": dict(assignment.quotas)}) + "\n"


def read_assignment(path: Path) -> Optional[Assignment]:
    """Return the assignment, or None where there is none; raises AssignmentError."""
    try:
        with open(path, "rb") as file:
            text = file.read(MAX_REPORT_BYTES + 1)
        tree = json.loads(text)
        assignment = Assignment(
            number=int(tree["number"]),
            quotas={int(copy): int(steps) for copy, steps in tree["quotas"].items()},
            slot_s=float(tree["slot_s"]),
            version=int(tree["version"]),
        )
    except FileNotFoundError:
        return None
    except OSError as error:
        raise AssignmentError(f"{path}: {error.strerror}") from error
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        OverflowError,
        RecursionError,
    ) as error:
        raise AssignmentError(f"{path}: not an assignment: {error!r}") from error
    if assignment.version != VERSION:
        raise AssignmentError(f"{path}: version {assignment.version}, this reads {VERSION}")
    numbers = (assignment.slot_s, *assignment.quotas, *assignment.quotas.values())
    if not all(0 <= number <= MAX_NUMBER for number in numbers):
        raise AssignmentError(f"{path}: a number is negative, not finite or above {MAX_NUMBER:g}")
    return assignment


def shares(budget: int, speeds: Mapping[int, float]) -> Dict[int, int]:
    """Split `budget` steps among copies in proportion to their speeds, by largest remainder.

    All copies then end at the same time, to within a step of each. Speeds are in steps/s; a copy
    without speed gets nothing, and of equal remainders the lower copy's comes first. HadarE
    (arXiv 2503.10918), job tracker, as reconstructed; how it rounds is not known.
    """
    known = {copy: speed for copy, speed in speeds.items() if speed > 0}
    total = sum(known.values())
    exact = {copy: budget * speed / total for copy, speed in known.items()}
    quotas = {copy: int(share) for copy, share in exact.items()}
    order = sorted(known, key=lambda copy: (quotas[copy] - exact[copy], copy))
    for copy in order[: budget - sum(quotas.values())]:
        quotas[copy] += 1
    return {copy: quotas.get(copy, 0) for copy in speeds}
