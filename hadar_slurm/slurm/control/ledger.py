"""The intent log: what hadard does to jobs, recorded before it is done, so that it can be undone.

The `Claim` of a job is written before hadard holds or pins it, and kept until the job is gone or
restored. A job that hadar-sbatch has submitted held gets its claim in the first round that observes
it; until then the description in Slurm's comment shows that the hold is hadard's.
`hadar release` reads the ledger when hadard does not run. A restarted hadard reads it to tell its
own holds from users'.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from hadar_slurm import untrusted_files
from hadar_slurm.core.cluster import JobId, NodeName
from hadar_slurm.errors import LedgerError
from hadar_slurm.slurm.client.updates import Request
from hadar_slurm.state import locks

log = logging.getLogger(__name__)

VERSION = 1
FILE_NAME = "ledger.json"
# 10,000 jobs take 5 MB.
_MAX_BYTES = 1 << 28
# How long another writer may take, in seconds.
_LOCK_WAIT_S = 10.0
_MAX_NUMBER = 1e18
_TIMES = ("released_s", "booted_s", "signalled_until_s")
_COUNTS = ("requeued", "signalled_run", "ended_run")
# What parsing a damaged file may raise.
_DAMAGE = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What hadard has done, or is about to do, to one job.

    Times are in seconds since the epoch, 0: never or long ago.
    """

    # hadard set the hold on the job.
    is_held: bool = False
    # When our hold was observed to be gone.
    released_s: float = 0.0
    # The start of the slurmctld that took the release, while another may have lost it
    # (`lost_releases`).
    booted_s: float = 0.0
    # The job's number of restarts once our last requeue is done; until then it may still run.
    requeued: int = 0
    # The request before the first pin.
    before: Request | None = None
    pinned: tuple[NodeName, ...] = ()
    preferred: str = ""
    # The nodes that it requested just before hadard's last hold. A job that runs on these and shows
    # a hold started while the hold was on its way: the hold is hadard's. None: no such hold.
    asked_when_held: tuple[NodeName, ...] | None = None
    # The run that we last sent USR1, counted from 1 (0: none), and the end of its grace period.
    # These and `ended_run` are kept while Slurm knows the job.
    signalled_run: int = 0
    signalled_until_s: float = 0.0
    # The run that our USR1 ended.
    ended_run: int = 0

    @property
    def of_signals(self) -> Claim:
        """Return an entry with only the facts about our signals."""
        run, until_s, ended = self.signalled_run, self.signalled_until_s, self.ended_run
        return Claim(signalled_run=run, signalled_until_s=until_s, ended_run=ended)


class Ledger:
    """The entries of one cluster, in a file that is replaced atomically."""

    def __init__(self, path: Path, now_s: Callable[[], float] = time.time) -> None:
        self.path = path
        self.now_s = now_s
        self.opened_s = now_s()
        # The last known start of slurmctld, in seconds since the epoch.
        self.booted_s = 0.0
        # False: no file could be read, nor has `adopt` replaced it. Suspect holds and pins then
        # count as set by hadard, so that no job waits for a hadard that has lost its record.
        self.was_read = False
        # The last write error, empty after a success.
        self.fault = ""
        self._entries: dict[JobId, Claim] = {}
        self._mark: object = None
        self.refresh()

    def refresh(self) -> None:
        """Read the file if another process (`hadar release`) has written it; skip a damaged one."""
        mark = self._mark_of_file()
        if mark in (None, self._mark):
            return
        self._mark = mark
        try:
            with untrusted_files.directory(self.path.parent) as place:
                text = untrusted_files.read(self.path.name, max_bytes=_MAX_BYTES, dir_fd=place)
            tree = json.loads(text)
            if tree["version"] != VERSION:
                return
            entries = {JobId(job): _entry(entry) for job, entry in tree["jobs"].items()}
        except (OSError, *_DAMAGE) as error:
            log.warning("%s: not a ledger that can be read: %r", self.path, error)
            return
        self._entries, self.was_read = entries, True

    def _mark_of_file(self) -> object:
        with suppress(OSError):
            facts = self.path.stat()
            return facts.st_ino, facts.st_mtime_ns, facts.st_size
        return None

    def __contains__(self, job: JobId) -> bool:
        return job in self._entries

    def __iter__(self) -> Iterator[JobId]:
        return iter(self._entries)

    def __getitem__(self, job: JobId) -> Claim:
        return self._entries.get(job, Claim())

    @property
    def num_held(self) -> int:
        """Return the number of jobs under our hold."""
        return sum(entry.is_held for entry in self._entries.values())

    def note(self, changed: Mapping[JobId, Claim]) -> None:
        """Record entries; raises LedgerError, with nothing changed, where it cannot."""
        if any(job not in self or self[job] != entry for job, entry in changed.items()):
            self._write(changed)

    def record_intended_holds(self, asked: Mapping[JobId, tuple[NodeName, ...]]) -> None:
        """Record that we are about to hold these jobs, which request these nodes."""
        self.note({j: replace(self[j], is_held=True, asked_when_held=asked[j]) for j in asked})

    def record_intended_requeues(
        self, restarts: Mapping[JobId, int], *, were_ended: bool = False, held: Sequence[JobId] = ()
    ) -> None:
        """Record that we are about to requeue and hold jobs, with their numbers of restarts.

        `were_ended`: our signal ended their last run. `held` had a hold while they ran: its owner
        stays the same.
        """
        new = {}
        for job, times in restarts.items():
            is_held = job not in held or self[job].is_held
            ended = times + 1 if were_ended else self[job].ended_run
            entry = replace(self[job], is_held=is_held, requeued=times + 1, ended_run=ended)
            new[job] = replace(entry, asked_when_held=None)
        self.note(new)

    def record_intended_signals(self, restarts: Mapping[JobId, int], until_s: float) -> None:
        """Record that we are about to send USR1 to jobs, with their numbers of restarts."""
        runs = {job: replace(self[job], signalled_run=n + 1) for job, n in restarts.items()}
        self.note({job: replace(run, signalled_until_s=until_s) for job, run in runs.items()})

    def adopt(self, found: Mapping[JobId, Claim]) -> None:
        """Record what Slurm shows; the ledger then counts as read."""
        self._write(found)
        self.was_read = True

    def forget_all_but(self, jobs: Collection[JobId]) -> None:
        """Remove the entries of all jobs but these."""
        if gone := self._entries.keys() - set(jobs):
            self._write({}, gone)

    def _stamped(self, job: JobId, entry: Claim) -> Claim:
        """Return an entry with the current time if it ends our hold."""
        if entry.is_held:
            return replace(entry, released_s=0.0, booted_s=0.0)
        if self[job].is_held:
            entry = replace(entry, released_s=self.now_s(), booted_s=self.booted_s)
        return replace(entry, asked_when_held=None)

    def _write(self, changed: Mapping[JobId, Claim], gone: Collection[JobId] = ()) -> None:
        """Change these entries alone: another process may have changed others."""
        try:
            with locks.lock(self.path.parent, locks.LEDGER, wait_s=_LOCK_WAIT_S) as is_locked:
                if not is_locked:
                    raise OSError(errno.EWOULDBLOCK, "another program is writing to it")
                self.refresh()
                stamped = {job: self._stamped(job, entry) for job, entry in changed.items()}
                merged = {**self._entries, **stamped}
                entries = {job: entry for job, entry in merged.items() if job not in gone}
                self._replace(entries)
                self._mark = self._mark_of_file()
        except OSError as error:
            self.fault = f"{self.path}: cannot be written: {error.strerror}"
            raise LedgerError(self.fault) from error
        self._entries, self.fault = entries, ""

    def _replace(self, entries: Mapping[JobId, Claim]) -> None:
        with untrusted_files.directory(self.path.parent) as place:

            def finish(descriptor: int) -> None:
                # hadard must be able to read a file that root has written.
                untrusted_files.give_to_owner_of(place, descriptor)
                os.fsync(descriptor)

            # An empty `asked_when_held` (no nodes requested) differs from None (no such hold).
            jobs = {
                job: {k: v for k, v in asdict(c).items() if v or (k, v) == ("asked_when_held", ())}
                for job, c in sorted(entries.items())
            }
            text = json.dumps({"version": VERSION, "jobs": jobs}) + "\n"
            untrusted_files.replace(
                self.path.name, text.encode(), mode=0o640, dir_fd=place, hand_over=finish
            )

    def retry(self) -> None:
        """Write the file again after a failed write; a success empties `fault`."""
        if self.fault:
            with suppress(LedgerError):
                self._write({})


def _entry(tree: Mapping[str, Any]) -> Claim:
    """Return an entry; raises one of `_DAMAGE` for anything that a ledger does not write."""
    before, asked = tree.get("before"), tree.get("asked_when_held")
    numbers: dict[str, Any] = {key: _number(tree.get(key, 0.0)) for key in _TIMES}
    numbers |= {key: int(_number(tree.get(key, 0))) for key in _COUNTS}
    return Claim(
        is_held=tree.get("is_held") is True,
        # A request with unknown keys is a TypeError.
        before=None if before is None else Request(**{k: _part(k, v) for k, v in before.items()}),
        pinned=_nodes(tree.get("pinned", ())),
        preferred=_word(tree.get("preferred", "")),
        asked_when_held=None if asked is None else _nodes(asked),
        **numbers,
    )


def _part(key: str, value: Any) -> Any:
    return _nodes(value) if key == "nodes" else _word(value)


def _nodes(names: Iterable[Any]) -> tuple[NodeName, ...]:
    if not isinstance(names, list | tuple):
        raise TypeError(f"{names!r} is not a list of nodes")
    return tuple(NodeName(_word(name)) for name in names)


def _word(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a text")
    return value


def _number(value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value <= _MAX_NUMBER:
        raise ValueError(f"{value!r} is not a number from 0 to {_MAX_NUMBER:g}")
    return float(value)
