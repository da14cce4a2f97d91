"""One process for each copy: a lock that ends with its process, and a note of its run beside it.

`runs/copy-C.json` names the last run of copy C, and is locked (fcntl.lockf) while that runs. The
lock belongs to the process, not to its children. On one machine the kernel knows whether it is
held. It may outlive a process that died on another node, and some file systems have no locks:
there signs of life decide, and a later run of the same Slurm job has priority.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import socket
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from hadar_slurm.older_python import TextEnum
from hadar_slurm.runtime.membership.surroundings import Surroundings

log = logging.getLogger(__name__)

# How long an earlier process may take to end before a second one is refused, in seconds.
_ENDS_WITHIN_S = 5.0
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
# What this process holds: a lock does not keep a process from its own files.
_HELD: dict[tuple[int, str], Membership] = {}


class HeldError(RuntimeError):
    """Another process trains this copy; says which, and the remedy."""


class RunState(TextEnum):
    """How far a run has come."""

    HERE = "here"
    LEFT = "left"
    OVER = "over"  # ended by the program, with steps left


@dataclass(frozen=True)
class ClaimedRun:
    """One run of a copy: its process, its Slurm job, which training of the process it is."""

    host: str
    boot: str
    pid: int
    job: str | None
    restart: int
    command: tuple[str, ...]
    number: int
    state: RunState = RunState.HERE

    @classmethod
    def of(cls, where: Surroundings, command: tuple[str, ...], number: int) -> ClaimedRun:
        """Return the run of this process."""
        boot = ""
        with suppress(OSError):
            boot = _BOOT_ID.read_text().strip()
        host = socket.gethostname()
        return cls(host, boot, os.getpid(), where.job, where.restart, command, number)

    def follows(self, other: ClaimedRun) -> bool:
        """Return whether Slurm has started this run after the `other`, of the same job."""
        return self.job is not None and self.job == other.job and self.restart > other.restart


@dataclass
class Membership:
    """The right to be copy `copy` of the training in `directory`, for the run `mine`."""

    directory: Path
    copy: int
    mine: ClaimedRun
    gone_after_s: float
    poll_s: float
    before: ClaimedRun | None = None
    _descriptor: int = -1
    _first_sign: str | None = None
    _begun_s: float = 0.0

    @property
    def path(self) -> Path:
        """Return the file that is locked."""
        return run_path(self.directory, self.copy)

    def take(self) -> ClaimedRun | None:
        """Become the copy, and return its last run; raises HeldError where another process is it.

        Where the file cannot be written (a full disk), training goes on without the lock.
        """
        key, has_waited = _key(self.path), False
        if key in _HELD:
            raise self._held(self.mine)
        self._begun_s, self._first_sign = time.monotonic(), self._sign()
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            while not self._try():
                if not has_waited:
                    log.warning("copy %d waits for the end of %s", self.copy, _name(self.before))
                has_waited = True
                time.sleep(self.poll_s)
        except OSError as error:
            log.warning("no other process is kept from being copy %d: %s", self.copy, error)
            return None
        _HELD[key] = self
        return self.before

    def note(self) -> None:
        """Write a note of this run."""
        self._write(self.mine)

    def leave(self, state: RunState | ClaimedRun | None) -> None:
        """Release the copy; `state` is how this run ends, or the run to note in its place."""
        self._write(replace(self.mine, state=state) if isinstance(state, RunState) else state)
        _HELD.pop(_key(self.path), None)
        self._close()

    def check(self) -> None:
        """Raise HeldError if a later run of the job has become this copy."""
        if self._descriptor < 0 or self._is_in_place():
            return
        with suppress(FileNotFoundError):
            later = _parse(self.path.read_bytes())
            raise self._held(later, "; it has taken over from this process")

    def _try(self) -> bool:
        """Return whether this process is the copy now; raises HeldError, and OSError."""
        if self._descriptor < 0 or not self._is_in_place():
            self._close()
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        is_locked = _lock(self._descriptor)
        if not self._is_in_place():
            return False
        self.before = before = _parse(os.pread(self._descriptor, 65536, 0))
        is_here = before is not None and before.state is RunState.HERE
        waited_s = time.monotonic() - self._begun_s
        has_ended = waited_s >= min(_ENDS_WITHIN_S, self.gone_after_s)
        if before is not None and self.mine.follows(before):
            if is_locked is False and has_ended:
                self._replace()
            return is_locked is not False
        own = self.mine.host, self.mine.boot
        is_near = before is not None and (before.host, before.boot) == own
        if (is_locked and is_near) or (is_locked is not False and not is_here):
            return True
        # A process on another machine is there if it gives signs of life.
        is_known = is_locked is False and (is_near or before is None)
        if has_ended and (is_known or self._shows_signs()):
            self._close()
            raise self._held(before)
        if is_known or waited_s < self.gone_after_s or self._shows_signs():
            return False
        if is_locked is False:
            self._replace()
        return is_locked is not False

    def _replace(self) -> None:
        """Put a new file in place of one whose lock has outlived its process."""
        draft = self.path.with_name(f".{self.path.name}.{self.mine.host}.{self.mine.pid}")
        # The old contents: until the file is locked, it names the last run.
        draft.write_bytes(os.pread(self._descriptor, 65536, 0))
        os.replace(draft, self.path)

    def _shows_signs(self) -> bool:
        """Return whether the copy has given a sign of life since `take` began."""
        sign = self._sign()
        return sign is not None and sign != self._first_sign

    def _sign(self) -> str | None:
        with suppress(OSError):
            return (self.directory / "copies" / str(self.copy)).read_text(encoding="utf-8")
        return None

    def _held(self, by: ClaimedRun | None, why: str = "") -> HeldError:
        return HeldError(
            f"{self.directory.resolve()}: copy {self.copy} is trained by {_name(by)}{why}"
            ": end one of the two, or give this training a directory of its own (HADAR_JOB_DIR)"
        )

    def _is_in_place(self) -> bool:
        """Return whether the open file is still the one at its path."""
        try:
            here, there = os.fstat(self._descriptor), os.stat(self.path)
        except FileNotFoundError:
            return False
        except OSError:
            return True  # says nothing of the file
        return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)

    def _write(self, run: ClaimedRun | None) -> None:
        if self._descriptor < 0 or not self._is_in_place():
            return
        contents = json.dumps(asdict(run)).encode() + b"\n" if run else b""
        with suppress(OSError):
            os.pwrite(self._descriptor, contents, 0)
            os.ftruncate(self._descriptor, len(contents))

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def run_path(directory: Path, copy: int) -> Path:
    """Return where the last run of a copy is noted."""
    return directory / "runs" / f"copy-{copy:05}.json"


def read_run(path: Path) -> ClaimedRun | None:
    """Return the last run of a copy, or None where none is known."""
    # The file of this process's own copy stays closed: closing it would release the lock.
    if held := _HELD.get(_key(path)):
        return held.mine
    with suppress(OSError):
        return _parse(path.read_bytes())
    return None


def _key(path: Path) -> tuple[int, str]:
    return os.getpid(), os.path.abspath(path)


def _name(run: ClaimedRun | None) -> str:
    if run is None:
        return "another process"
    job = f" (job {run.job}, restart {run.restart})" if run.job else ""
    return f"process {run.pid} on {run.host}{job}"


def _parse(contents: bytes) -> ClaimedRun | None:
    try:
        facts = json.loads(contents)
        facts["command"], facts["state"] = tuple(facts["command"]), RunState(facts["state"])
        return ClaimedRun(**facts)
    except (ValueError, KeyError, TypeError):
        return None


def _lock(descriptor: int) -> bool | None:
    """Lock a file; return False where another process has, None where there are no locks."""
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return False if error.errno in (errno.EACCES, errno.EAGAIN) else None
    return True
