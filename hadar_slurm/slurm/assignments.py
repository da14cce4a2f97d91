"""The assignments of forked jobs, where only hadard writes and only a job's owner reads."""

from __future__ import annotations

import logging
import os
import stat
import struct
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from hadar_slurm.core.cluster import JobId
from hadar_slurm.handoff import Assignment, assignment_path, assignment_text

log = logging.getLogger(__name__)

# An access list as Linux keeps it (acl(5)): version, then tag, permissions and id of each entry.
_ACL = "system.posix_acl_access"
_ACL_VERSION = 2
_USER_OBJ, _USER, _GROUP_OBJ, _MASK, _OTHER = 0x01, 0x02, 0x04, 0x10, 0x20
_READ, _WRITE, _NOBODY = 4, 2, 0xFFFFFFFF


@dataclass
class Assignments:
    """What copies are told, in `directory`, which all nodes must see.

    What has been told is remembered and never read back: the file belongs to a user by then. One
    that its reader cannot be given is not left there: the copies then go by their own speeds.
    """

    directory: Path
    _told: dict[JobId, Assignment] = field(default_factory=dict)
    _refused: set[JobId] = field(default_factory=set)

    def put(self, parent: JobId, owner_uid: int, told: Assignment) -> None:
        """Tell the copies of a job how many steps each is to train in a slot, if that is news."""
        before = self._told.get(parent)
        if before and (before.quotas, before.slot_s) == (told.quotas, told.slot_s):
            return
        path = assignment_path(self.directory, parent)
        try:
            _have_directory(self.directory)
            _have_directory(path.parent)
            _write_for(path, owner_uid, assignment_text(told))
        except OSError as error:
            if parent not in self._refused:
                log.warning("job %s shares its steps without us: %s: %s", parent, path, error)
            self._refused.add(parent)
            with suppress(OSError):
                path.unlink()  # what was told before holds no longer
            self._told.pop(parent, None)
        else:
            self._refused.discard(parent)
            self._told[parent] = told

    def keep(self, parents: Collection[JobId]) -> None:
        """Forget what jobs were told that are no longer there."""
        self._told = {parent: told for parent, told in self._told.items() if parent in parents}
        with suppress(OSError):
            for path in self.directory.iterdir():
                if path.name.isdecimal() and path.name not in parents:
                    with suppress(OSError):
                        for file in path.iterdir():
                            file.unlink()
                        path.rmdir()


def _have_directory(path: Path) -> None:
    """Make a directory that is ours and that others may enter; raises OSError where it is not.

    In a spool that all may write to, somebody else may have been there first.
    """
    try:
        path.mkdir(parents=True)
    except FileExistsError:
        facts = path.lstat()
        if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid():
            told = f"is no directory of user {os.geteuid()}; remove it, or set assignments_dir"
            raise PermissionError(f"{path} {told}") from None
    else:
        path.chmod(0o711)


def _write_for(path: Path, uid: int, text: str) -> None:
    """Replace a file in one step by one that a user, and nobody else, may read; raises OSError.

    Root gives the file away, which any file system can hold; others need one with access lists.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with suppress(FileNotFoundError):
        draft.unlink()
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o400)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            if uid != os.geteuid():
                try:
                    os.fchown(descriptor, uid, -1)
                except PermissionError:
                    os.setxattr(descriptor, _ACL, _access_list(uid))
        os.replace(draft, path)
    except OSError:
        with suppress(OSError):
            draft.unlink()
        raise


def _access_list(uid: int) -> bytes:
    entries = [
        (_USER_OBJ, _READ | _WRITE, _NOBODY),
        (_USER, _READ, uid),
        (_GROUP_OBJ, 0, _NOBODY),
        (_MASK, _READ, _NOBODY),
        (_OTHER, 0, _NOBODY),
    ]
    return struct.pack("<I", _ACL_VERSION) + b"".join(struct.pack("<HHI", *one) for one in entries)
