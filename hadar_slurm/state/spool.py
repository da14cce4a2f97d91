"""The directories below `spool_dir`, which hadard owns and all nodes see.

`reports` is open to all, with the sticky bit: each user makes one directory there. Where Slurm
hides jobs from other users, no other user can list it, and jobs close their directories too
(handoff.py). In `assignments` only hadard writes. `spool_dir` itself is closed to others, so that
neither can be squatted.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path

from hadar_slurm import untrusted_files

_REPORTS_MODE, _HIDING_MODE = 0o1777, 0o1733
# Of `assignments`, owned by hadard: users may enter directories whose name they know.
ASSIGNMENTS_MODE = 0o711
_OPEN_TO_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def make_spool(
    spool: Path, reports: Path, assignments: Path, *, hides_jobs: bool = False
) -> tuple[str, str, str]:
    """Make the missing directories; return the fault of each, or an empty text."""
    # Jobs run without reports and without assignments, so hadard goes on after a fault.
    mode = _HIDING_MODE if hides_jobs else _REPORTS_MODE
    return _fault(spool, None), _fault(reports, mode), _fault(assignments, ASSIGNMENTS_MODE)


def has_assignments(directory: Path) -> bool:
    """Return whether hadard's directory of assignments has any."""
    with suppress(OSError), untrusted_files.directory(directory, owner_uid=os.geteuid()) as place:
        return bool(os.listdir(place))
    return False


def _fault(path: Path, mode: int | None) -> str:
    try:
        if mode is None:
            _close_to_others(path)
        else:
            untrusted_files.make_directory(path, mode)
    except untrusted_files.WrongOwner as error:
        # Made by a hadard that ran as root, or by an administrator: users can report there.
        is_for_reports = mode in (_REPORTS_MODE, _HIDING_MODE)
        if (
            error.uid == 0
            and is_for_reports
            and stat.S_IMODE(path.lstat().st_mode) == _REPORTS_MODE
        ):
            return ""
        return f"{path}: {error.strerror}: make it a directory of uid {os.geteuid()}"
    except OSError as error:
        return f"{path}: {error.strerror}: make it a directory of uid {os.geteuid()}, mode 755"
    return ""


def _close_to_others(path: Path) -> None:
    """Make `spool_dir`, or close one of hadard's own that earlier releases left open to all.

    Root closes nothing: it also owns /tmp. Raises OSError where others may write.
    """
    path.mkdir(mode=0o755, parents=True, exist_ok=True)
    with untrusted_files.directory(path) as descriptor:
        facts = os.fstat(descriptor)
        if not facts.st_mode & _OPEN_TO_OTHERS:
            return
        if facts.st_uid != os.geteuid() or os.geteuid() == 0:
            raise PermissionError(errno.EPERM, "others may write to it", str(path))
        os.fchmod(descriptor, 0o755)
