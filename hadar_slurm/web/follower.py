"""Follows a journal in a separate thread, so that no request waits for a disk."""

from __future__ import annotations

import threading
from pathlib import Path

from hadar_slurm.errors import ConfigError
from hadar_slurm.journal.decoder import Decoder
from hadar_slurm.web.counts import Counts
from hadar_slurm.web.history import JournalView
from hadar_slurm.web.lines import DAMAGE
from hadar_slurm.web.tail import MAX_BYTES, Tail


class Follower:
    """The history and counts of the journal at `path`; use both under `lock`.

    Lines present at the start enter the history but not the counts: a counter begins at 0 with its
    process, else a restart would count them twice.
    """

    def __init__(self, path: Path, *, max_bytes: int = MAX_BYTES, every_s: float = 2.0) -> None:
        self.path = path
        self.lock = threading.Lock()
        self.history = JournalView()
        self.counts = Counts()
        self._tail = Tail(path, max_bytes=max_bytes)
        self._decoder = Decoder()
        self._unread = 0
        self._ended: dict[str, frozenset[str]] = {}
        self._every_s = every_s
        self._to_end = threading.Event()
        self._reading = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)

    @property
    def fault(self) -> str:
        """Return why the journal cannot be read, "" if it can."""
        return self._tail.fault

    @property
    def strange(self) -> int:
        """Return the number of lines read that are not valid journal lines."""
        return self._unread + self.history.strange + self._tail.too_long

    def poll(self, *, counts: bool = True) -> None:
        """Read the lines added since the last call."""
        with self._reading:
            try:
                for text in self._tail.lines():
                    self._add(text, counts=counts)
            except OSError as error:
                self._tail.fault = error.strerror or str(error)

    def __enter__(self) -> Follower:
        self.poll(counts=False)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._to_end.set()
        self._thread.join()
        self._tail.close()

    def _run(self) -> None:
        while not self._to_end.wait(self._every_s):
            self.poll()

    def _add(self, text: bytes, *, counts: bool) -> None:
        try:
            line = self._decoder.line_of(text)
        except ConfigError:
            self._unread += 1
            return
        if line is None:
            return
        with self.lock:
            if not self.history.add(line):
                return
            row = self.history.rounds[-1]
            ended = frozenset(line.get("ended", ()))
            if counts:
                try:
                    new_ends = ended - self._ended.get(row.mode, frozenset())
                    self.counts.add(line, row, new_ends, self.history.claims.news)
                except DAMAGE:
                    self._unread += 1
            if "ended" in line:
                self._ended[row.mode] = ended
