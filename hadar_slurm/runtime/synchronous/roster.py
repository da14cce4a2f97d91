"""Which copies train synchronously: agreed by files in `together/` of the job's directory.

    able-C          copy C can train synchronously, on this host
    ready-N-C       copy C waits for group N, with the state after these steps of this slot
    group-N.json    the copies of group N: written once, the first writer wins
    keys-N/         how they reach each other

Groups are numbered over the life of a job. A copy belongs to the newest group or to none, and a
step needs all copies of a group, so no two groups train on after the same step.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import shutil
import socket
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hadar_slurm import untrusted_files

log = logging.getLogger(__name__)

_MOST_BYTES = 65536
# Errors that pass: a full disk.
_PASSING = (errno.ENOSPC, errno.EDQUOT)
_OF_GROUP = re.compile(r"(?:ready|group|keys)-(\d+)\b")
_READY = re.compile(r"ready-(\d+)-(\d+)")
_GROUP = re.compile(r"group-(\d+)\.json")


@dataclass(frozen=True)
class Version:
    """A state of the parameters: after `steps` steps since the slot end `end`, in group `group`.

    Copies with equal versions have equal parameters.
    """

    end: str = ""
    group: int = 0
    steps: int = -1  # -1: this copy has no state of that end


@dataclass(frozen=True)
class Group:
    """A group: its number, its copies in the order of their ranks, and their hosts."""

    number: int
    end: str
    hosts: Mapping[int, str]

    @property
    def copies(self) -> tuple[int, ...]:
        """Return the copies by rank."""
        return tuple(sorted(self.hosts))


@dataclass
class Roster:
    """Reads and writes `together/` for one copy; `here` returns the copies that are present."""

    directory: Path  # of the job
    copy: int
    here: Callable[[], Collection[int]]
    gather_s: float
    poll_s: float
    is_open: bool = False
    is_refused: bool = False  # and will be
    apart: set[int] = field(default_factory=set)  # copies that the next group does not wait for
    _ready: int = -1  # the number of the group that this copy waits for
    _own_host: str = field(default_factory=socket.gethostname)

    @property
    def room(self) -> Path:
        """Return the directory of the files."""
        return self.directory / "together"

    def open(self, is_over: Callable[[], bool] = lambda: False) -> bool:
        """Publish that this copy can train synchronously; return whether that could be done.

        Only in a directory that belongs to this user and is closed to others: what is read there
        decides with whom this copy exchanges parameters. Waits until a full disk has room, or until
        `is_over`. What an earlier process of this copy waited for, the copy does not.
        """
        why = 0
        while not self.is_open:
            try:
                self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
                untrusted_files.make_directory(self.room, 0o700)
                for name in self._names():
                    if (match := _READY.fullmatch(name)) and int(match[2]) == self.copy:
                        (self.room / name).unlink(missing_ok=True)
                self._write(f"able-{self.copy}", {"host": self._own_host, "pid": os.getpid()})
                self.is_open = True
            except OSError as error:
                if error.errno != why:
                    log.warning("no synchronous training: %s", error)
                why = error.errno or 0
                self.is_refused = why not in _PASSING
                if self.is_refused or is_over():
                    return False
                time.sleep(self.poll_s)
        return True

    def leave(self) -> None:
        """Remove what this copy has published."""
        self.withdraw()
        if self.is_open:
            with suppress(OSError):
                (self.room / f"able-{self.copy}").unlink()
        self.is_open = False

    def able(self) -> dict[int, str]:
        """Return the copies that can train synchronously, present or not, with their hosts."""
        found = {}
        for name in self._names():
            prefix, _, number = name.partition("-")
            if prefix == "able" and number.isdecimal():
                facts = self._read(name)
                if facts is not None:
                    found[int(number)] = str(facts.get("host", ""))
        return found

    def newest(self) -> Group | None:
        """Return the newest group."""
        numbers = (int(match[1]) for name in self._names() if (match := _GROUP.fullmatch(name)))
        return self._group(max(numbers, default=-1))

    def waiting(self, number: int) -> dict[int, Version]:
        """Return the present copies that wait for a group, with the states that they have."""
        here, found = set(self.here()), {}
        for name in self._names():
            match = _READY.fullmatch(name)
            if match is None or int(match[1]) != number or int(match[2]) not in here:
                continue
            if (facts := self._read(name)) is not None:
                with suppress(TypeError):
                    found[int(match[2])] = Version(**facts)
        return found

    def form(self, version: Version, is_over: Callable[[], bool]) -> Group | None:
        """Wait for a group that has this copy, or form it; None once `is_over`.

        Only copies of the newest group form the next one, as long as any of them is present: the
        others of it may still train. They wait `gather_s` for copies that are present and able.
        """
        begun_s = time.monotonic()
        while not is_over():
            newest = self.newest()
            number = newest.number + 1 if newest else 0
            if newest and newest.number == self._ready and self.copy in newest.hosts:
                self.withdraw()
                self.apart = set()
                if newest.end == version.end:
                    return newest
                continue
            if number != self._ready:
                self.withdraw()
                self._write(f"ready-{number}-{self.copy}", asdict(version))
                self._ready, begun_s = number, time.monotonic()
            self._propose(number, newest, version, time.monotonic() - begun_s)
            time.sleep(self.poll_s)
        self.withdraw()
        return None

    def withdraw(self) -> None:
        """No longer wait for a group."""
        if self._ready >= 0:
            with suppress(OSError):
                (self.room / f"ready-{self._ready}-{self.copy}").unlink()
        self._ready = -1

    def _propose(self, number: int, before: Group | None, mine: Version, waited_s: float) -> None:
        """Write the next group, where that falls to this copy now."""
        here, able = set(self.here()), self.able()
        former = set(before.hosts) & here & able.keys() if before else set()
        ready = self.waiting(number)
        alike = {copy for copy, version in ready.items() if version.end == mine.end}
        deciding = alike & former if former else alike
        if self.copy != min(deciding, default=None):
            return
        if alike >= (here & able.keys()) - self.apart or waited_s >= self.gather_s:
            hosts = {copy: able[copy] for copy in alike if copy in able}
            if self.copy in hosts:
                self._found(number, mine.end, hosts)

    def _found(self, number: int, end: str, hosts: Mapping[int, str]) -> None:
        """Write a group unless another copy has; remove files of groups before the last."""
        path = self.room / f"group-{number}.json"
        draft = path.with_name(f".{path.name}.{self._own_host}.{os.getpid()}")
        facts = {"end": end, "hosts": {str(copy): host for copy, host in hosts.items()}}
        try:
            draft.write_text(json.dumps(facts), encoding="utf-8")
            with suppress(FileExistsError):
                os.link(draft, path)
        finally:
            with suppress(OSError):
                draft.unlink()
        for name in self._names():
            match = _OF_GROUP.match(name)
            if match is not None and int(match[1]) < number - 1:
                with suppress(OSError):
                    path = self.room / name
                    shutil.rmtree(path) if path.is_dir() else path.unlink()

    def keys(self, group: Group) -> Path:
        """Return the directory in which a group's copies find each other."""
        return self.room / f"keys-{group.number}"

    def _group(self, number: int) -> Group | None:
        """Return a group; without copies where its file is lost, as after the server's crash."""
        if number < 0:
            return None
        facts = self._read(f"group-{number}.json") or {}
        hosts = {int(copy): str(host) for copy, host in facts.get("hosts", {}).items()}
        return Group(number, str(facts.get("end", "")), hosts)

    def _names(self) -> list[str]:
        with suppress(OSError):
            return os.listdir(self.room)
        return []

    def _read(self, name: str) -> dict[str, Any] | None:
        """Return what a file of this user has; None where there is none."""
        with suppress(OSError, ValueError):
            text = untrusted_files.read(
                self.room / name, max_bytes=_MOST_BYTES, owner_uid=os.geteuid()
            )
            facts = json.loads(text)
            return facts if isinstance(facts, dict) else None
        return None

    def _write(self, name: str, facts: Mapping[str, Any]) -> None:
        path = self.room / name
        draft = path.with_name(f".{name}.{self._own_host}.{os.getpid()}")
        draft.write_text(json.dumps(facts), encoding="utf-8")
        draft.replace(path)
