"""Locks in `state_dir`: one hadard, one `hadar release` at a time, one writer of the ledger.

A lock is flock(2) on a file that only hadard's account and root may open, so that no other user
can take it. It ends with its process. Across machines, see `lease`.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from hadar_slurm import untrusted_files
from hadar_slurm.errors import DaemonError

DAEMON, RELEASE, LEDGER = "hadard.lock", "release.lock", "ledger.lock"
_TRY_EVERY_S = 0.05
# `hadar release` looks at the lock of hadard for a moment.
_DAEMON_WAIT_S = 1.0
_CREDENTIALS = struct.Struct("3i")


@contextmanager
def only_daemon(
    cluster: str, address: str, state_dir: Path, *, is_required: bool = True
) -> Iterator[None]:
    """Lock out other hadards of a cluster on this machine; raises DaemonError for another.

    Without `is_required` (a hadard that only observes), an unwritable `state_dir` is no error.
    """
    with ExitStack() as held:
        try:
            is_only = held.enter_context(lock(state_dir, DAEMON, wait_s=_DAEMON_WAIT_S))
        except OSError as error:
            if is_required:
                raise DaemonError(f"{state_dir / DAEMON}: {error.strerror}") from error
            is_only = True
        # The same cluster with other directories.
        if not is_only or not held.enter_context(_only_on_machine(cluster, address)):
            raise DaemonError(
                f"another hadard is at work on cluster {cluster} ({address}); stop it first"
            )
        yield


def started_s(state_dir: Path) -> float | None:
    """Return when the hadard that runs took its lock, in seconds since the epoch; None: none runs.

    Raises OSError where that cannot be known.
    """
    with suppress(FileNotFoundError), _open(state_dir, DAEMON, may_make=False) as descriptor:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return os.fstat(descriptor).st_mtime
    return None


@contextmanager
def lock(state_dir: Path, name: str, *, wait_s: float = 0.0) -> Iterator[bool]:
    """Take a lock, and give whether that was possible within `wait_s` seconds; raises OSError."""
    with _open(state_dir, name, may_make=True) as descriptor:
        deadline_s = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline_s:
                    yield False
                    return
                time.sleep(_TRY_EVERY_S)
            else:
                os.utime(descriptor)
                yield True
                return


@contextmanager
def _open(state_dir: Path, name: str, *, may_make: bool) -> Iterator[int]:
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | (os.O_CREAT if may_make else 0)
    with untrusted_files.directory(state_dir) as place:
        descriptor = os.open(name, flags, 0o600, dir_fd=place)
        try:
            untrusted_files.give_to_owner_of(place, descriptor)
            yield descriptor
        finally:
            os.close(descriptor)


@contextmanager
def _only_on_machine(cluster: str, address: str) -> Iterator[bool]:
    """Hold a name that is unique on this machine; give whether no other hadard holds it.

    It is the name of a unix socket without a file, which any user may take: it counts only if root
    or hadard's user holds it.
    """
    name = "\0hadard-" + hashlib.sha256(f"{cluster} {address}".encode()).hexdigest()[:32]
    with socket.socket(socket.AF_UNIX) as held:
        try:
            held.bind(name)
            held.listen(1)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            yield _holder(name) not in (0, os.geteuid())
        else:
            yield True


def _holder(name: str) -> int | None:
    """Return the user who listens at a socket's name, or None if it is not known."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(name)
            credentials = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        except OSError:
            return None
    return int(_CREDENTIALS.unpack(credentials)[1])
