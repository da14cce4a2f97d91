"""What a training job reports to hadard, and reads of it. Standard library, Python 3.9.

How a job is asked to move (docs/adr/0005): hadard sends USR1 to the batch script. The job saves a
checkpoint, reports state `saved` with the steps that the checkpoint holds, and waits; hadard then
requeues it. Without a requeue the signal was not hadard's: the job reports `running` and
continues. A job is sent USR1 only if its report of this run says that it `listens`. A job that may
be requeued without a signal only reports its checkpoints (`tell_checkpoint`).
"""

from __future__ import annotations

import json
import os
import signal
import stat
import sys
import time
import warnings
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Dict, Mapping, Optional, Sequence, Set, Tuple

from hadar_slurm import untrusted_files
from hadar_slurm.assignment_file import (
    Assignment,
    AssignmentError,
    assignment_path,
    assignment_text,
    shares,
)
from hadar_slurm.job_files import (
    ASSIGNMENTS_VARIABLE,
    COPIES_VARIABLE,
    DEFAULT_ASSIGNMENTS,
    DEFAULT_REPORTS,
    MALFORMED,
    MAX_NUMBER,
    MAX_REPORT_BYTES,
    REPORT_NAME,
    SPOOL_VARIABLE,
    STATES,
    VERSION,
    ProgressReport,
    ReportError,
    SquattedError,
    of_version,
    parse_report,
    read_own_report,
    read_report,
    report_path,
    user_reports,
)

__all__ = [
    "ASSIGNMENTS_VARIABLE",
    "COPIES_VARIABLE",
    "DEFAULT_ASSIGNMENTS",
    "DEFAULT_REPORTS",
    "REPORT_NAME",
    "SPOOL_VARIABLE",
    "STATES",
    "VERSION",
    "Assignment",
    "AssignmentError",
    "ProgressReport",
    "ReportError",
    "SquattedError",
    "assignment_path",
    "listens_now",
    "own_reports",
    "parse_report",
    "read_assignment",
    "read_own_report",
    "read_report",
    "report_path",
    "shares",
    "tell",
    "tell_checkpoint",
    "user_reports",
    "warn_of_unsaved_run",
    "write_assignment",
    "write_report",
]

# A job removes what its user's jobs reported longer ago than this.
_KEPT_S = 30 * 86_400.0
# A file in a user's directory, written when a job last looked for such reports.
_SWEPT, _SWEPT_EVERY_S = ".swept", 86_400.0


def write_report(own: Path, job_id: str, report: ProgressReport) -> None:
    """Replace the job's report in one step, for all to read whom `own` lets in, at any umask.

    `own` is the user's directory, made where it is missing. Raises OSError, and WrongOwner where
    another user has made it. Old reports of other jobs are removed once a day.
    """
    _make_own(own)
    if not (own / job_id).is_dir():
        _remove_old_reports(own)
    with untrusted_files.directory(own, owner_uid=os.geteuid()) as user_fd:
        untrusted_files.make_directory(job_id, 0o755, dir_fd=user_fd)
        with untrusted_files.directory(job_id, owner_uid=os.geteuid(), dir_fd=user_fd) as job_fd:
            content = json.dumps(asdict(report)).encode() + b"\n"
            untrusted_files.replace(REPORT_NAME, content, mode=0o644, dir_fd=job_fd)


def _remove_old_reports(own: Path) -> None:
    """Remove what the user's jobs reported last long ago, by the day's first job that reports."""
    now_s, swept_s = time.time(), 0.0
    with suppress(OSError), untrusted_files.directory(own, owner_uid=os.geteuid()) as user_fd:
        with suppress(OSError):
            swept_s = os.stat(_SWEPT, dir_fd=user_fd, follow_symlinks=False).st_mtime
        if 0 <= now_s - swept_s < _SWEPT_EVERY_S:
            return
        untrusted_files.replace(_SWEPT, b"", mode=0o644, dir_fd=user_fd)
    untrusted_files.remove_directories(own, now_s - _KEPT_S, REPORT_NAME)


def _make_own(own: Path) -> None:
    """Make a user's directory of reports: open to all or, below one that is closed, to its owner.

    hadard closes the directory of all users' reports to listing where Slurm hides jobs. Where that
    file system keeps no access lists, and hadard is not root, hadard could not read either: there
    reports stay open to all.
    """
    own.parent.mkdir(parents=True, exist_ok=True)
    place, me = os.stat(own.parent), os.geteuid()
    if place.st_mode & stat.S_IROTH:
        untrusted_files.make_directory(own, 0o755)
    elif place.st_uid in (0, me):
        untrusted_files.make_directory(own, 0o700)
    elif not own.is_dir() or stat.S_IMODE(own.stat().st_mode) != 0o750:
        if not own.is_dir():
            untrusted_files.make_directory(own, 0o700)
        try:
            with untrusted_files.directory(own, owner_uid=me) as descriptor:
                untrusted_files.share(descriptor, place.st_uid, own=7, shared=5)
        except OSError:
            untrusted_files.make_directory(own, 0o755)


def tell(
    state: str,
    steps_done: int,
    steps_per_s: float = 0.0,
    *,
    listens: Optional[bool] = None,
    is_saved: bool = False,
) -> None:
    """Report on the job that this process belongs to; outside of Slurm there is none.

    `listens` is for programs that report for others: by default this process must have a handler
    for USR1 (`listens_now`). `is_saved`: a checkpoint with these steps is written, as in state
    `saved`; later reports repeat that. A report that cannot be written must not stop training: it
    is a warning.
    """
    job = os.environ.get("SLURM_JOB_ID")
    if job is None:
        return
    restart = int(os.environ.get("SLURM_RESTART_COUNT") or 0)
    listens = listens_now() if listens is None else listens
    own = own_reports(os.environ)
    warn_of_unsaved_run(own, job, restart)
    now_s = time.time()
    if is_saved or state == "saved":
        _SAVED[job] = (now_s, steps_done)
    saved_s, saved_steps = _SAVED[job] if job in _SAVED else _saved_before(own, job)
    report = ProgressReport(
        restart=restart,
        state=state,
        steps_done=steps_done,
        steps_per_s=steps_per_s,
        time_s=now_s,
        listens=listens,
        saved_s=saved_s,
        saved_steps=saved_steps,
    )
    try:
        write_report(own, job, report)
    except OSError as error:
        warnings.warn(f"no progress report: {error}", stacklevel=2)  # prints each text once


def tell_checkpoint(steps_done: int, steps_per_s: float = 0.0) -> None:
    """Report that a checkpoint with `steps_done` steps is written; needs no handler of USR1."""
    tell("running", steps_done, steps_per_s, is_saved=True)


# The time and the steps of the newest checkpoint of a job that this process reports on.
_SAVED: Dict[str, Tuple[float, int]] = {}


def _saved_before(own: Path, job: str) -> Tuple[float, int]:
    """Return the checkpoint in the last report, by another process or run; (0, 0): none."""
    try:
        before = read_own_report(own, job)
    except ReportError:
        before = None
    _SAVED[job] = (before.saved_s, before.saved_steps) if before is not None else (0.0, 0)
    return _SAVED[job]


def own_reports(variables: Mapping[str, str]) -> Path:
    """Return where this user's jobs report, as the environment says or by default."""
    named = variables.get(SPOOL_VARIABLE)
    return Path(named) if named else user_reports(Path(DEFAULT_REPORTS), os.geteuid())


def listens_now() -> bool:
    """Return whether USR1 to the job's batch script would make this process save and end none.

    This process must have a handler of its own: one that ignores USR1, be it because its parent
    did, does not save. Outside of a job step the batch script must not die of USR1 either; where
    Linux does not show it, this process alone decides.
    """
    handler = signal.getsignal(signal.SIGUSR1)
    if handler is None or handler in (signal.SIG_DFL, signal.SIG_IGN):
        return False
    batch_script = _batch_script()
    facts = _status(batch_script) if batch_script is not None else {}
    bit = 1 << (signal.SIGUSR1 - 1)
    return not facts or bool((facts.get("SigCgt", 0) | facts.get("SigIgn", 0)) & bit)


def _batch_script() -> Optional[int]:
    """Return the process that `scancel --batch` signals, if this one descends from it.

    That is the ancestor whose parent is the slurmstepd of the batch script. The variables of a step
    are no proof: a job submitted from within a step inherits them.
    """
    process = os.getpid()
    while True:
        parent = _status(process).get("PPid", 0)
        if parent <= 1:
            return None  # not below slurmstepd, or in a container that hides it
        try:
            with open(f"/proc/{parent}/cmdline", "rb") as file:
                title = file.read(64).rstrip(b"\0 ")
        except OSError:
            # Processes of other users are hidden here, slurmstepd is root's.
            return None if "SLURM_STEP_ID" in os.environ else process
        if title.startswith(b"slurmstepd:"):
            return process if title.endswith(b".batch]") else None
        process = parent


def _status(process: int) -> Dict[str, int]:
    """Return the parent and the masks of signals of a process; nothing where they are hidden."""
    bases = {"PPid": 10, "SigCgt": 16, "SigIgn": 16}
    try:
        with open(f"/proc/{process}/status", "rb") as file:
            text = file.read().decode("ascii", "replace")
        pairs = [line.partition(":") for line in text.split("\n")]
        return {name: int(value, bases[name]) for name, _, value in pairs if name in bases}
    except (OSError, ValueError):
        return {}


# The runs, by job and restart, whose previous run this process has checked.
_WARNED: Set[Tuple[str, int]] = set()


def warn_of_unsaved_run(own: Path, job_id: str, restart: int) -> None:
    """Print one line in the job's output where the run before this one ended without saving.

    Its last report, which the first one of this run replaces, then says `running`.
    """
    if restart == 0 or (job_id, restart) in _WARNED:
        return
    _WARNED.add((job_id, restart))
    try:
        before = read_own_report(own, job_id)
    except ReportError:
        return
    is_unsaved = before is not None and before.state == "running" and before.saved_s == 0
    if before is not None and is_unsaved and before.restart < restart:
        text = f"hadar: run {before.restart + 1} of job {job_id} ended before it reported a saved "
        text += f"checkpoint (at step {before.steps_done}); this is run {restart + 1}"
        print(text, file=sys.stderr, flush=True)


def write_assignment(path: Path, assignment: Assignment) -> None:
    """Replace an assignment in one step."""
    with untrusted_files.directory(path.parent) as folder:
        content = assignment_text(assignment).encode()
        untrusted_files.replace(path.name, content, mode=0o644, dir_fd=folder)


def read_assignment(path: Path) -> Optional[Assignment]:
    """Return the assignment, or None where there is none; raises AssignmentError."""
    try:
        with open(path, "rb") as file:
            tree = json.loads(file.read(MAX_REPORT_BYTES + 1))
        version = int(tree["version"])
        if version != VERSION:
            tree = {"number": 0, "quotas": {}, "slot_s": 0.0}  # its form is not known
        assignment = Assignment(
            number=int(tree["number"]),
            quotas={int(copy): int(steps) for copy, steps in tree["quotas"].items()},
            slot_s=float(tree["slot_s"]),
            version=version,
        )
    except FileNotFoundError:
        return None
    except OSError as error:
        raise AssignmentError(f"{path}: {error.strerror}") from error
    except MALFORMED as error:
        raise AssignmentError(f"{path}: not an assignment: {error!r}") from error
    if assignment.version != VERSION:
        raise AssignmentError(of_version(path, version))
    numbers = (assignment.slot_s, *assignment.quotas, *assignment.quotas.values())
    if not all(0 <= number <= MAX_NUMBER for number in numbers):
        raise AssignmentError(f"{path}: a number is negative, not finite or above {MAX_NUMBER:g}")
    return assignment


def main(words: Sequence[str]) -> int:
    """Report a checkpoint, for scripts in other languages: `handoff checkpoint STEPS`."""
    if len(words) != 2 or words[0] != "checkpoint" or not words[1].isdigit():
        usage = "python -m hadar_slurm.handoff checkpoint STEPS"
        print(f"usage: {usage}, where STEPS are those in the checkpoint", file=sys.stderr)
        return 2
    tell_checkpoint(int(words[1]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
