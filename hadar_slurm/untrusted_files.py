"""Opens files and directories that other users may have made, or may replace. Standard library.

A name is looked up once, under a directory that is held open, no symbolic link is followed, and
the owner is checked on what was opened: nothing can be exchanged between the check and the use.
Everything that hadard and its jobs read, write or remove below `spool_dir` goes through here;
`.ci/lint-files` refuses other ways. Runs in users' training environments: Python 3.9.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Union

Name = Union[str, Path]

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# A named pipe must not keep its reader waiting.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
# An access list as Linux keeps it (acl(5)): version, then tag, permissions and id of each entry.
_ACL = "system.posix_acl_access"
_ACL_VERSION = 2
_USER_OBJ, _USER, _GROUP_OBJ, _MASK, _OTHER = 0x01, 0x02, 0x04, 0x10, 0x20
_NOBODY = 0xFFFFFFFF


class WrongOwner(PermissionError):
    """A file or directory is there and belongs to another user than it should."""

    def __init__(self, name: Name, uid: int, expected_uid: int) -> None:
        """Name the path, its owner and the expected one."""
        self.uid = uid
        text = f"belongs to uid {uid}, not to uid {expected_uid}"
        super().__init__(errno.EPERM, text, str(name))


@contextmanager
def directory(
    name: Name, *, owner_uid: int | None = None, dir_fd: int | None = None
) -> Iterator[int]:
    """Give a directory's descriptor; raises OSError, WrongOwner. `owner_uid` of None: any owner."""
    descriptor = os.open(name, _DIRECTORY, dir_fd=dir_fd)
    try:
        _check_owner(descriptor, name, owner_uid)
        yield descriptor
    finally:
        os.close(descriptor)


def make_directory(name: Name, mode: int, *, dir_fd: int | None = None) -> None:
    """Make or change a directory of this user to these permissions; raises OSError, WrongOwner."""
    with suppress(FileExistsError):
        os.mkdir(name, mode & 0o700, dir_fd=dir_fd)
    with directory(name, owner_uid=os.geteuid(), dir_fd=dir_fd) as descriptor:
        if stat.S_IMODE(os.fstat(descriptor).st_mode) != mode:
            os.fchmod(descriptor, mode)


def read(
    name: Name, *, max_bytes: int, owner_uid: int | None = None, dir_fd: int | None = None
) -> bytes:
    """Return a plain file's content; raises OSError (EFBIG above `max_bytes`), and WrongOwner.

    `owner_uid` of None accepts any owner.
    """
    descriptor = os.open(name, _FILE, dir_fd=dir_fd)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a plain file", str(name))
        _check_owner(descriptor, name, owner_uid)
        with open(descriptor, "rb", closefd=False) as file:
            content = file.read(max_bytes + 1)
    finally:
        os.close(descriptor)
    if len(content) > max_bytes:
        raise OSError(errno.EFBIG, f"larger than {max_bytes} bytes", str(name))
    return content


def replace(
    name: str,
    content: bytes,
    *,
    mode: int,
    dir_fd: int,
    hand_over: Callable[[int], object] = lambda descriptor: None,
) -> None:
    """Replace a file in one step; raises OSError, with no draft left behind.

    A reader sees the old content or the new. `hand_over` may change the owner or the access list of
    the new file, by its descriptor, before it has its name.
    """
    draft = f".{name}.{os.getpid()}"
    with suppress(FileNotFoundError):
        os.unlink(draft, dir_fd=dir_fd)
    descriptor = os.open(draft, _NEW_FILE, mode, dir_fd=dir_fd)
    try:
        with open(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)
            file.write(content)
            file.flush()
            hand_over(descriptor)
        os.replace(draft, name, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
    except BaseException:
        with suppress(OSError):
            os.unlink(draft, dir_fd=dir_fd)
        raise


def give_to_owner_of(dir_fd: int, descriptor: int) -> None:
    """Let a file that root has made belong to whom its directory belongs; raises OSError."""
    if os.geteuid() == 0:
        owner = os.fstat(dir_fd)
        os.fchown(descriptor, owner.st_uid, owner.st_gid)


def share(descriptor: int, uid: int, *, own: int, shared: int) -> None:
    """Give a file's owner the permissions `own`, one user `shared`, all others none.

    Raises OSError where the file system keeps no access lists.
    """
    entries = [
        (_USER_OBJ, own, _NOBODY),
        (_USER, shared, uid),
        (_GROUP_OBJ, 0, _NOBODY),
        (_MASK, shared, _NOBODY),
        (_OTHER, 0, _NOBODY),
    ]
    packed = b"".join(struct.pack("<HHI", *entry) for entry in entries)
    os.setxattr(descriptor, _ACL, struct.pack("<I", _ACL_VERSION) + packed)


def remove_directories(place: Name, before_s: float, name: str) -> None:
    """Remove this user's directories below `place` that hold a file `name` and drafts of it alone.

    Those that were changed last before a time; what has other content stays.
    """
    me = os.geteuid()
    with suppress(OSError), directory(place, owner_uid=me) as above:
        for each in os.listdir(above):
            with suppress(OSError), directory(each, owner_uid=me, dir_fd=above) as here:
                if os.fstat(here).st_mtime < before_s:
                    for file in os.listdir(here):
                        if file == name or file.startswith(f".{name}."):
                            os.unlink(file, dir_fd=here)
                    os.rmdir(each, dir_fd=above)


def _check_owner(descriptor: int, name: Name, owner_uid: int | None) -> None:
    uid = os.fstat(descriptor).st_uid
    if owner_uid is not None and uid != owner_uid:
        raise WrongOwner(name, uid, owner_uid)
