"""The assignments of forked jobs, where only hadard writes and only a job's owner reads."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from hadar_slurm import untrusted_files
from hadar_slurm.assignment_file import Assignment, assignment_path, assignment_text
from hadar_slurm.core.cluster import JobId
from hadar_slurm.state.spool import ASSIGNMENTS_MODE

_NAME = assignment_path(Path(), "").name
_READ, _WRITE = 4, 2


@dataclass
class Assignments:
    """The assignments, in `directory`: hadard's own, on a file system that all nodes share.

    An assignment is never read back, since the file then belongs to a user. Where one cannot be
    written, the copies share by their own throughputs, and `fault` gives the reason.
    """

    directory: Path
    fault: str = ""
    _written: dict[JobId, Assignment] = field(default_factory=dict)

    def put(self, parent: JobId, owner_uid: int, assignment: Assignment) -> None:
        """Write each copy's number of steps per averaging interval, if it has changed."""
        before = self._written.get(parent)
        if before and (before.quotas, before.slot_s) == (assignment.quotas, assignment.slot_s):
            return
        content, finish = assignment_text(assignment).encode(), partial(_hand_over, uid=owner_uid)
        replace = partial(untrusted_files.replace, mode=0o400, hand_over=finish)
        try:
            with self._of_job(parent) as folder:
                try:
                    replace(_NAME, content, dir_fd=folder)
                except OSError:
                    with suppress(OSError):
                        os.unlink(_NAME, dir_fd=folder)  # the previous one is no longer valid
                    raise
        except OSError as error:
            self._written.pop(parent, None)
            self.fault = (
                f"{self.directory}: job {parent} shares its steps by its copies' own speeds: "
                f"{error.filename or 'its file'}: {error.strerror}"
            )
        else:
            self._written[parent], self.fault = assignment, ""

    def keep(self, parents: Collection[JobId]) -> None:
        """Remove the files that hadard wrote for jobs that no longer exist."""
        self._written = {k: written for k, written in self._written.items() if k in parents}
        own = untrusted_files.directory(self.directory, owner_uid=os.geteuid())
        with suppress(OSError), own as place:
            for parent in os.listdir(place):
                if parent.isdecimal() and parent not in parents:
                    with suppress(OSError):
                        _remove(parent, place)

    @contextmanager
    def _of_job(self, parent: JobId) -> Iterator[int]:
        if not self.directory.is_dir():
            self.directory.parent.mkdir(parents=True, exist_ok=True)
        untrusted_files.make_directory(self.directory, ASSIGNMENTS_MODE)
        with untrusted_files.directory(self.directory, owner_uid=os.geteuid()) as place:
            untrusted_files.make_directory(parent, ASSIGNMENTS_MODE, dir_fd=place)
            with untrusted_files.directory(parent, owner_uid=os.geteuid(), dir_fd=place) as folder:
                yield folder


def _remove(parent: str, place: int) -> None:
    """Remove a job's directory; a draft may be left by a hadard that was killed."""
    with untrusted_files.directory(parent, owner_uid=os.geteuid(), dir_fd=place) as folder:
        for file in os.listdir(folder):
            if file == _NAME or file.startswith(f".{_NAME}."):
                os.unlink(file, dir_fd=folder)
    os.rmdir(parent, dir_fd=place)


def _hand_over(descriptor: int, *, uid: int) -> None:
    """Let only one user read a new file; raises OSError.

    Root changes its owner; any other user needs a file system with access lists.
    """
    if uid == os.geteuid():
        return
    try:
        os.fchown(descriptor, uid, -1)
    except PermissionError:
        untrusted_files.share(descriptor, uid, own=_READ | _WRITE, shared=_READ)
