"""Reads hadard's heartbeat in a separate thread: a hanging file system delays no answer."""

from __future__ import annotations

import threading
from pathlib import Path

from hadar_slurm.state.heartbeat import Heartbeat, LastRounds
from hadar_slurm.state.heartbeat_reader import read_heartbeat
from hadar_slurm.status.health import trouble_of

# Longest wait for the first reading.
_WAIT_S = 2.0


class Pulse:
    """The last heartbeat read in `run_dir`; it expires if it cannot be read again."""

    def __init__(self, run_dir: Path, *, every_s: float = 1.0) -> None:
        self.run_dir = run_dir
        self.beat: Heartbeat | None = None
        self._every_s = every_s
        self._has_read = threading.Event()
        self._to_end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def poll(self) -> None:
        """Read it once."""
        self.beat = read_heartbeat(self.run_dir)

    def is_alive(self, now_s: float) -> bool:
        """Return whether the heartbeat is fresh at `now_s`."""
        beat = self.beat
        return beat is not None and beat.is_fresh(now_s)

    def is_running(self, now_s: float) -> bool:
        """Return whether hadard's process has written it in time, whatever its rounds do."""
        return self.beat is not None and self.beat.is_signed(now_s)

    def rounds(self, now_s: float) -> LastRounds:
        """Return what came of the last rounds of a running hadard."""
        beat = self.beat
        return beat.rounds if beat and beat.is_signed(now_s) else LastRounds()

    def trouble(self, now_s: float) -> str:
        """Return since when and why no round of a running hadard has succeeded; "" if one has."""
        return trouble_of(self.beat, now_s)

    def problems(self, now_s: float) -> dict[str, str]:
        """Return the problems of a running hadard by kind."""
        beat = self.beat
        return dict(beat.problems) if beat and beat.is_signed(now_s) else {}

    def __enter__(self) -> Pulse:
        self._thread.start()
        self._has_read.wait(_WAIT_S)
        return self

    def __exit__(self, *error: object) -> None:
        self._to_end.set()
        self._thread.join(_WAIT_S)

    def _run(self) -> None:
        self.poll()
        self._has_read.set()
        while not self._to_end.wait(self._every_s):
            self.poll()
