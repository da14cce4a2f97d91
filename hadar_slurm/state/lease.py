"""The lease by which one hadard enforces on a cluster, whatever machine it runs on.

A file in `spool_dir`, which all nodes and both controllers of a cluster see. Its holder renews it
every few seconds. Another hadard takes it over only when the holder's process is known to be gone,
or when the file has not changed for `good_for_s` by its own clock; the former holder then stops.
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from hadar_slurm import untrusted_files
from hadar_slurm.errors import DaemonError
from hadar_slurm.state.heartbeat import SKEW_S

EVERY_S = 5.0
_MAX_BYTES = 4096
# Nothing is there, or something else than a small plain file.
_NO_LEASE = (errno.ENOENT, errno.EFBIG, errno.EINVAL, errno.ELOOP)
_POLL_S = 0.5
# Of two that take over at once, the one that wrote last has it.
_SETTLE_S = 1.0


@dataclass(frozen=True, slots=True)
class Holder:
    """A hadard: its machine (name and boot), its process (number and start), and its renewals."""

    token: str
    host: str
    boot: str
    pid: int
    process: str
    good_for_s: float
    renewed_s: float = 0.0

    @property
    def is_gone(self) -> bool:
        """Whether it ran on this machine and its process has ended; False for other machines."""
        if self.host != socket.gethostname():
            return False
        return self.boot != _boot() or self.process != _process(self.pid)

    def is_fresh(self, now_s: float) -> bool:
        """Return whether it was renewed in time; a time from the future is not believed."""
        return -SKEW_S <= now_s - self.renewed_s < self.good_for_s + SKEW_S and not self.is_gone


@dataclass
class Lease:
    """The lease of one cluster; `good_for_s` is how long a hadard may fail to renew it."""

    spool: Path
    cluster: str
    good_for_s: float
    now_s: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep
    token: str = field(default_factory=lambda: secrets.token_hex(8))
    _written_s: float = -EVERY_S

    @property
    def path(self) -> Path:
        """Return the path of the file."""
        return self.spool / f"hadard-{re.sub(r'[^A-Za-z0-9_-]', '_', self.cluster)}.lease"

    def holder(self) -> Holder | None:
        """Return the holder of a valid lease, or None; raises OSError where it is not known."""
        with untrusted_files.directory(self.spool) as place:
            trusted, name = {0, os.geteuid(), os.fstat(place).st_uid}, self.path.name
            try:
                uid = os.stat(name, dir_fd=place, follow_symlinks=False).st_uid
                if uid not in trusted:
                    return None
                text = untrusted_files.read(name, max_bytes=_MAX_BYTES, owner_uid=uid, dir_fd=place)
            except OSError as error:
                if error.errno in _NO_LEASE:
                    return None
                raise
        try:
            tree = json.loads(text)
            good_for_s = min(max(0.0, float(tree["good_for_s"])), 3600.0)
            token, host, boot, process = (str(tree[k]) for k in "token host boot process".split())
            renewed_s = float(tree["renewed_s"])
            return Holder(token, host, boot, int(tree["pid"]), process, good_for_s, renewed_s)
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return None

    def take(self, is_stopping: Callable[[], bool] = lambda: False) -> None:
        """Take the lease, or raise DaemonError; waits while another machine's may still be good.

        Raises OSError for a file that cannot be read or written.
        """
        other = self._other()
        is_contested = other is not None and not other.is_gone
        if other is not None and is_contested:
            # Wait until it has not been renewed for as long as it is good.
            deadline_s = time.monotonic() + other.good_for_s + EVERY_S
            while time.monotonic() < deadline_s and not is_stopping():
                if (now := self._other()) is None:
                    break
                if other.host == socket.gethostname() or now != other:
                    self._refuse(now)
                self.sleep(_POLL_S)
            if is_stopping():
                self._refuse(other)
        self._write()
        if is_contested:
            self.sleep(_SETTLE_S)
        self._refuse(self._other())

    def _refuse(self, other: Holder | None) -> None:
        if other is not None:
            raise DaemonError(
                f"another hadard is at work on cluster {self.cluster}: process {other.pid} on "
                f"{other.host} holds {self.path}; stop it first"
            )

    def renew(self) -> None:
        """Renew the lease if it is time; raises OSError, and DaemonError where another has it."""
        if 0 <= time.monotonic() - self._written_s < EVERY_S:
            return
        self._refuse(self._other())
        self._write()

    def give_up(self) -> None:
        """Remove the lease if it is held here."""
        with suppress(OSError):
            if (holder := self.holder()) is not None and holder.token == self.token:
                with untrusted_files.directory(self.spool) as place:
                    os.unlink(self.path.name, dir_fd=place)

    def _other(self) -> Holder | None:
        holder = self.holder()
        return holder if holder is not None and holder.token != self.token else None

    def _write(self) -> None:
        host, pid, now_s = socket.gethostname(), os.getpid(), self.now_s()
        mine = Holder(self.token, host, _boot(), pid, _process(pid), self.good_for_s, now_s)
        with untrusted_files.directory(self.spool) as place:
            content = json.dumps(asdict(mine)).encode() + b"\n"
            untrusted_files.replace(self.path.name, content, mode=0o644, dir_fd=place)
        self._written_s = time.monotonic()


def _boot() -> str:
    return _text("/proc/sys/kernel/random/boot_id").strip()


def _process(pid: int) -> str:
    """Return when a process started, which distinguishes it from others with its number."""
    # Its name, in parentheses, may hold anything; the start is the 20th field after it.
    fields = _text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return fields[19] if len(fields) > 19 and fields[0] != "Z" else ""


def _text(path: str) -> str:
    with suppress(OSError):
        return Path(path).read_text(encoding="utf-8", errors="replace")
    return ""
