"""The directories below `spool_dir`, which hadard owns and all nodes see.

`reports` is open to all, with the sticky bit: each user makes one directory there. In `assignments`
only hadard writes. `spool_dir` itself is closed to others, so that neither can be squatted.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from hadar_slurm import untrusted_files
from hadar_slurm.slurm.assignments import DIRECTORY_MODE

_REPORTS_MODE = 0o1777
_OPEN_TO_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def make_spool(spool: Path, reports: Path, assignments: Path) -> tuple[str, str, str]:
    """Make the directories where they are missing; return what is wrong with each, or nothing.

    Jobs run without reports and without assignments, so hadard goes on.
    """
    return _fault(spool, None), _fault(reports, _REPORTS_MODE), _fault(assignments, DIRECTORY_MODE)


def _fault(path: Path, mode: int | None) -> str:
    """Make a directory with these permissions, and return what is wrong with it, or nothing."""
    try:
        if mode is None:
            _close_to_others(path)
        else:
            untrusted_files.make_directory(path, mode)
    except OSError as error:
        return f"{path}: {error.strerror}: make it a directory of uid {os.geteuid()}"
    return ""


def _close_to_others(path: Path) -> None:
    """Make `spool_dir`, or take back what earlier releases let everyone write to.

    A directory of root's, or of an administrator's, is used as it is.
    """
    path.mkdir(mode=0o755, parents=True, exist_ok=True)
    with untrusted_files.directory(path) as descriptor:
        facts = os.fstat(descriptor)
        if facts.st_uid == os.geteuid() and facts.st_mode & _OPEN_TO_OTHERS:
            os.fchmod(descriptor, 0o755)
