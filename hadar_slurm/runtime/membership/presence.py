"""Which copies of a job are present, and what they do: `copies/C` changes while copy C is."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from hadar_slurm.older_python import TextEnum

log = logging.getLogger(__name__)


class Doing(TextEnum):
    """What a copy does."""

    TRAINS = "trains"
    WAITS = "waits"  # has no step left to train in the running slot, and would take some
    LEAVES = "leaves"  # was asked to save, and is to be dealt nothing


@dataclass
class Presence:
    """Signs of life of the copies of a job; a copy without one for `gone_after_s` is gone.

    Only whether a sign changes counts, by the reader's clock: the nodes' clocks may differ.
    While this copy cannot write its own sign (a full disk), it counts no other as gone.
    """

    directory: Path
    copy: int
    gone_after_s: float
    doing: Doing = Doing.WAITS
    joined_s: float = 0.0
    _count: int = 0
    _mute_s: float = -math.inf
    _seen: dict[int, tuple[str, float]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _left: threading.Event = field(default_factory=threading.Event)
    _signer: threading.Thread | None = None

    def join(self, every_s: float) -> None:
        """Give a sign of life every `every_s` seconds until `leave`."""
        if self._signer is not None:
            return
        self.joined_s = time.monotonic()
        self.say(Doing.WAITS)
        self._signer = threading.Thread(target=self._sign_on, args=(every_s,), daemon=True)
        self._signer.start()

    def leave(self) -> None:
        """Stop the signs of life, and remove the last."""
        if self._signer is not None:
            self._left.set()
            self._signer.join()
            self._signer = None
            self._left.clear()
        with suppress(OSError):
            self._path(self.copy).unlink()

    def _path(self, copy: int) -> Path:
        return self.directory / "copies" / str(copy)

    def say(self, doing: Doing) -> None:
        """Publish at once what this copy does from now on."""
        self.doing = doing
        self.sign()

    def sign(self) -> None:
        """Give a sign of life. A sign that cannot be given must not stop training."""
        path = self._path(self.copy)
        draft = path.with_name(f".{self.copy}.{os.getpid()}")
        with self._lock:
            self._count += 1
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                draft.write_text(f"{os.getpid()} {self._count} {self.doing}", encoding="utf-8")
                draft.replace(path)
            except OSError as error:
                self._mute_s = time.monotonic()
                log.warning("no sign of life: %s", error)

    def look(self, now_s: float) -> None:
        """Read the signs, and note those that have changed."""
        for copy in self._copies():
            try:
                sign = self._path(copy).read_text(encoding="utf-8")
            except OSError:
                self._seen.pop(copy, None)
                continue
            if self._seen.get(copy, ("", 0.0))[0] != sign:
                self._seen[copy] = (sign, now_s)

    def present(self, now_s: float) -> dict[int, Doing]:
        """Return the copies that are present, this one too, and what they do, by number."""
        there = set(self._copies())
        alive = {
            copy: _doing(sign)
            for copy, (sign, since_s) in self._seen.items()
            if now_s - max(since_s, self._mute_s) < self.gone_after_s and copy in there
        }
        return dict(sorted({**alive, self.copy: self.doing}.items()))

    def _copies(self) -> Sequence[int]:
        with suppress(OSError):
            names = os.listdir(self.directory / "copies")
            return sorted(int(name) for name in names if name.isdecimal())
        return []

    def _sign_on(self, every_s: float) -> None:
        while not self._left.wait(every_s):
            self.sign()


def _doing(sign: str) -> Doing:
    """Return what a copy does by its sign; one with an unknown word trains."""
    word = sign.rpartition(" ")[2]
    return Doing(word) if word in list(Doing) else Doing.TRAINS
