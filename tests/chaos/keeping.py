"""Emulates systemd and the operator's timer: restarts hadard, and runs `hadar release`."""

from __future__ import annotations

import resource
import signal
import subprocess
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from chaos.observer import Observer
from chaos.world import World

# The delay of a restart, unless a fault sets another one.
_RESTART_S = 2.0


def rss_mb(pid: int) -> float:
    """Return the memory that a process has now, 0 if there is none."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0.0
    return pages * resource.getpagesize() / 1e6


@dataclass
class Keeper:
    """Restarts hadard whenever it ends, as systemd with Restart=always and ExecStopPost does.

    `expect` sets the action at hadard's next end. `Observer.gone_since_s` is the time at which
    hadard ended or stopped working, None while it works.
    """

    world: World
    observer: Observer
    process: subprocess.Popen[bytes] | None = None
    starts: int = 0
    # The most memory that hadard had, in MB, on this machine.
    most_rss_mb: float = 0.0
    is_stopped: bool = False
    _restart_s: float | None = None
    _has_stop_post: bool = False
    _ended_s: float | None = None
    _releasing: subprocess.Popen[bytes] | None = None
    _all: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def expect(self, restart_s: float, *, has_stop_post: bool) -> None:
        """Set the action at hadard's next end."""
        self._restart_s, self._has_stop_post = restart_s, has_stop_post

    @property
    def is_alive(self) -> bool:
        """Whether hadard's process exists, running or stopped."""
        return self.process is not None and self.process.poll() is None

    @property
    def pid(self) -> int:
        """Return the newest hadard's process id."""
        return self.process.pid if self.process is not None else 0

    def send(self, number: signal.Signals) -> None:
        """Send a signal to hadard."""
        if self.process is not None:
            self.world.signal_hadard(self.process, number)

    def tick(self) -> None:
        """Start hadard or `hadar release` if it is due."""
        now_s = time.time()
        self.most_rss_mb = max(self.most_rss_mb, rss_mb(self.pid))
        if self.process is None:
            self._start()
        elif self._ended_s is None:
            if self.process.poll() is not None:
                self._ended_s, self.is_stopped = now_s, False
                self.observer.gone_since_s = self.observer.gone_since_s or now_s
                if self._has_stop_post:
                    self._releasing = self.world.popen(self.world.release_argv(), "stop-post.log")
        elif self._releasing is not None and self._releasing.poll() is None:
            return
        elif now_s >= self._ended_s + (_RESTART_S if self._restart_s is None else self._restart_s):
            self._start()

    def _start(self) -> None:
        self.process = self.world.start_hadard()
        self.starts += 1
        self._ended_s = self._restart_s = self._releasing = None
        self._has_stop_post = False

    def note_sign_of_life(self) -> None:
        """Record that hadard works, since it has made a plan."""
        self.observer.gone_since_s = None

    def end(self) -> None:
        """Kill the running processes."""
        for process in (self.process, self._releasing):
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()


@dataclass
class Reaper:
    """Runs `hadar release --expired` every few seconds, as the operator's timer does."""

    world: World
    every_s: float
    runs: int = 0
    # How long the last runs took.
    took_s: deque[float] = field(default_factory=lambda: deque(maxlen=4))
    slowest_s: float = 0.0
    _begun_s: float = 0.0
    _process: subprocess.Popen[bytes] | None = None

    def tick(self) -> None:
        """Start a run if one is due and the last one has ended, as a systemd timer does."""
        now_s = time.monotonic()
        if self._process is not None:
            if self._process.poll() is None:
                return
            self.took_s.append(now_s - self._begun_s)
            self.slowest_s = max(self.slowest_s, self.took_s[-1])
            self._process = None
        if now_s < self._begun_s + self.every_s:
            return
        self._begun_s = now_s
        argv = self.world.release_argv("--expired", "--limit", "20")
        self._process = self.world.popen(argv, "reaper.log")
        self.runs += 1

    def end(self) -> None:
        """Kill the current run."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
