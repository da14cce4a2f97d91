"""What hadard has done to jobs, written down before it is done, so that it can be undone by others.

A job that hadard holds or pins has an entry from before the hold until it is gone or left to Slurm
again. `hadar release` reads it when hadard cannot; a restarted hadard knows by it which holds are
its own and which are users'.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
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
# Ten thousand jobs take 5 MB.
_MAX_BYTES = 1 << 28
# Seconds that another writer may take.
_LOCK_WAIT_S = 10.0
_MAX_NUMBER = 1e18
# What any bytes in the file's place may raise.
_DAMAGE = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One job: whether the hold on it is ours, where we pinned it, what it asked for before.

    `released_s` is when a hold of ours was seen to be gone, in seconds since the epoch, and
    `booted_s` which slurmctld that was, by its start, for as long as it may forget the release
    (`lost_releases`); 0: never, or long ago. `requeued` is how often the job will have been
    restarted once our last requeue has come about: until then that it runs tells nothing.
    `asked_when_held` are the nodes that it asked for when we last set out to hold it: a hold on it
    may be ours though it runs, if it started with these. None: no such hold can be under way.

    `signalled_run` is the run that was last sent USR1 by us, counted from 1 (0: none), and
    `signalled_until_s` until when; `ended_run` is one that this signal has ended. These two are
    kept as long as Slurm knows the job.
    """

    is_held: bool = False
    released_s: float = 0.0
    booted_s: float = 0.0
    requeued: int = 0
    before: Request | None = None
    pinned: tuple[NodeName, ...] = ()
    preferred: str = ""
    asked_when_held: tuple[NodeName, ...] | None = None
    signalled_run: int = 0
    signalled_until_s: float = 0.0
    ended_run: int = 0

    @property
    def of_signals(self) -> Claim:
        """Return an entry with the facts about our signals alone."""
        return Claim(
            signalled_run=self.signalled_run,
            signalled_until_s=self.signalled_until_s,
            ended_run=self.ended_run,
        )


class Ledger:
    """The entries of one cluster, in one file that is replaced in one step.

    `booted_s` is the start of the slurmctld that is there, as last heard.

    `is_whole` is False when there was no file that could be read: holds and pins that may be ours
    then count as such, since a job must not wait for somebody who has forgotten it. `fault` says
    why the file could not be written the last time, and is empty while it can be.
    """

    def __init__(self, path: Path, now_s: Callable[[], float] = time.time) -> None:
        self.path = path
        self.now_s = now_s
        self.opened_s = now_s()
        self.booted_s = 0.0
        self.is_whole = False
        self.fault = ""
        self._entries: dict[JobId, Claim] = {}
        self._mark: object = None
        self.refresh()

    def refresh(self) -> None:
        """Read the file if another has written it: `hadar release`, while hadard hung.

        Entries stay what they are where it cannot be read.
        """
        mark = self._mark_of_file()
        if mark is not None and mark != self._mark:
            self._mark = mark
            self._load()

    def _mark_of_file(self) -> object:
        try:
            facts = self.path.stat()
        except OSError:
            return None
        return facts.st_ino, facts.st_mtime_ns, facts.st_size

    def _load(self) -> None:
        """Read the file; one that is not whole, or not a ledger, is as if there were none."""
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
        self._entries, self.is_whole = entries, True

    def __contains__(self, job: JobId) -> bool:
        return job in self._entries

    def __iter__(self) -> Iterator[JobId]:
        return iter(self._entries)

    def __getitem__(self, job: JobId) -> Claim:
        return self._entries.get(job, Claim())

    @property
    def num_held(self) -> int:
        """Return how many jobs are held by us."""
        return sum(entry.is_held for entry in self._entries.values())

    def note(self, changed: Mapping[JobId, Claim]) -> None:
        """Write entries down; raises LedgerError, with nothing changed, when it cannot be."""
        if any(job not in self or self[job] != entry for job, entry in changed.items()):
            self._write(changed)

    def expect_holds(self, asked: Mapping[JobId, tuple[NodeName, ...]]) -> None:
        """Write down that these jobs, which ask for these nodes, are about to be held by us."""
        self.note(
            {
                job: replace(self[job], is_held=True, asked_when_held=nodes)
                for job, nodes in asked.items()
            }
        )

    def expect_requeues(self, restarts: Mapping[JobId, int]) -> None:
        """Write down that these jobs, restarted so often, are about to be requeued and held."""
        self.note(
            {
                job: replace(self[job], is_held=True, requeued=times + 1, asked_when_held=None)
                for job, times in restarts.items()
            }
        )

    def expect_signals(self, restarts: Mapping[JobId, int], until_s: float) -> None:
        """Write down that these runs, restarted so often, are about to be sent USR1."""
        self.note(
            {
                job: replace(self[job], signalled_run=times + 1, signalled_until_s=until_s)
                for job, times in restarts.items()
            }
        )

    def expect_returns(self, restarts: Mapping[JobId, int], held: Collection[JobId]) -> None:
        """Write down that these jobs, whose last run our signal ended, are about to be requeued.

        `held` were under a hold already as they ran: it stays whose it was.
        """
        self.note(
            {
                job: replace(
                    self[job],
                    is_held=job not in held or self[job].is_held,
                    requeued=times + 1,
                    asked_when_held=None,
                    ended_run=times + 1,
                )
                for job, times in restarts.items()
            }
        )

    def adopt(self, found: Mapping[JobId, Claim]) -> None:
        """Write down what Slurm shows; with that, the ledger is whole."""
        self._write(found)
        self.is_whole = True

    def keep(self, jobs: Collection[JobId]) -> None:
        """Forget all jobs that were known here but these."""
        gone = self._entries.keys() - set(jobs)
        if gone:
            self._write({}, gone)

    def _stamped(self, job: JobId, entry: Claim) -> Claim:
        """Return an entry with the time, if it says that a hold of ours is gone."""
        if entry.is_held:
            return replace(entry, released_s=0.0, booted_s=0.0)
        entry = replace(entry, asked_when_held=None)
        if self[job].is_held:
            return replace(entry, released_s=self.now_s(), booted_s=self.booted_s)
        return entry

    def _write(self, changed: Mapping[JobId, Claim], gone: Collection[JobId] = ()) -> None:
        """Change the file by these entries alone: another may have written to it meanwhile."""
        try:
            with locks.lock(self.path.parent, locks.LEDGER, wait_s=_LOCK_WAIT_S) as is_ours:
                if not is_ours:
                    raise OSError(errno.EWOULDBLOCK, "another program is writing to it")
                self.refresh()
                stamped = {job: self._stamped(job, entry) for job, entry in changed.items()}
                entries = {**self._entries, **stamped}
                for job in gone:
                    entries.pop(job, None)
                self._replace(entries)
                self._mark = self._mark_of_file()
        except OSError as error:
            self.fault = f"{self.path}: cannot be written: {error.strerror}"
            raise LedgerError(self.fault) from error
        self._entries, self.fault = entries, ""

    def _replace(self, entries: Mapping[JobId, Claim]) -> None:
        with untrusted_files.directory(self.path.parent) as place:

            def finish(descriptor: int) -> None:
                # Written by root, it must still be hadard's to read.
                untrusted_files.give_to_owner_of(place, descriptor)
                os.fsync(descriptor)

            untrusted_files.replace(
                self.path.name,
                _text(entries).encode(),
                mode=0o640,
                dir_fd=place,
                hand_over=finish,
            )

    def retry(self) -> None:
        """Write the file again if it could not be written: `fault` is empty once it can."""
        if self.fault:
            with suppress(LedgerError):
                self._write({})


def _text(entries: Mapping[JobId, Claim]) -> str:
    jobs = {job: _tree(entry) for job, entry in sorted(entries.items())}
    return json.dumps({"version": VERSION, "jobs": jobs}) + "\n"


def _tree(entry: Claim) -> dict[str, Any]:
    # Having asked for no nodes is something else than no hold under way.
    return {
        key: value
        for key, value in asdict(entry).items()
        if value or (key == "asked_when_held" and value is not None)
    }


def _entry(tree: Mapping[str, Any]) -> Claim:
    """Return an entry; raises one of `_DAMAGE` for anything that `_tree` would not have written."""
    before, asked = tree.get("before"), tree.get("asked_when_held")
    return Claim(
        is_held=tree.get("is_held") is True,
        released_s=_number(tree.get("released_s", 0.0)),
        booted_s=_number(tree.get("booted_s", 0.0)),
        requeued=int(_number(tree.get("requeued", 0))),
        before=None if before is None else _request(before),
        pinned=_nodes(tree.get("pinned", ())),
        preferred=_word(tree.get("preferred", "")),
        asked_when_held=None if asked is None else _nodes(asked),
        signalled_run=int(_number(tree.get("signalled_run", 0))),
        signalled_until_s=_number(tree.get("signalled_until_s", 0.0)),
        ended_run=int(_number(tree.get("ended_run", 0))),
    )


def _request(tree: Mapping[str, Any]) -> Request:
    words = {key: _word(value) for key, value in tree.items() if key != "nodes"}
    if not {field.name for field in fields(Request)} >= words.keys():
        raise ValueError(f"a request with unknown keys: {sorted(words)}")
    return Request(**words, nodes=_nodes(tree.get("nodes", ())))


def _nodes(names: Iterable[Any]) -> tuple[NodeName, ...]:
    if not isinstance(names, list | tuple):
        raise TypeError(f"{names!r} is not a list of nodes")
    return tuple(NodeName(_word(name)) for name in names)


def _word(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a text")
    return value


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} is not a number")
    if not 0 <= value <= _MAX_NUMBER:
        raise ValueError(f"{value!r} is not a number from 0 to {_MAX_NUMBER:g}")
    return float(value)
