"""hadard's heartbeat for hadar-sbatch, its lease among hadards, and its word to systemd."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from hadar_slurm.config import Config
from hadar_slurm.daemon.supervisor import notify
from hadar_slurm.state.heartbeat import Heartbeat, write_heartbeat
from hadar_slurm.state.lease import Lease
from hadar_slurm.state.problems import Problems

log = logging.getLogger("hadard")

# How long a heartbeat is good for, in polls, if that is longer than the configuration says.
_POLLS = 4
_MARGIN_S = 5.0
_EVERY_S = 1.0

_Signed = tuple[float, tuple[str, ...] | None, dict[str, str]]


def good_for_s(config: Config) -> float:
    """Return how long a heartbeat is good for: none is written while a command waits for Slurm."""
    return max(
        config.alive_seconds,
        _POLLS * config.poll_seconds,
        config.command_timeout_seconds + _MARGIN_S,
    )


@dataclass
class SignsOfLife:
    """Writes the heartbeat of one configuration: once a second, and when it says something new.

    `enforced` are the partitions in which jobs may be held (None: all), while `is_off` is false.
    """

    config: Config
    cluster: str
    lease: Lease
    problems: Problems
    enforced: tuple[str, ...] | None
    is_off: Callable[[], bool]
    _last: _Signed = (-math.inf, None, {})

    def sign(self) -> None:
        """Show that hadard lives; raises DaemonError when another hadard has taken over."""
        # By the machine's clock, which those who read it go by.
        now_s, partitions = time.time(), () if self.is_off() else self.enforced
        problems = dict(self.problems.texts)
        last_s, *before = self._last
        if 0 <= now_s - last_s < _EVERY_S and before == [partitions, problems]:
            return
        self._last = now_s, partitions, problems
        notify("WATCHDOG=1")
        try:
            self.lease.renew()
        except OSError as error:
            log.error("the lease %s cannot be renewed: %s", self.lease.path, error.strerror)
        beat = Heartbeat(
            os.getpid(),
            self.cluster,
            now_s + good_for_s(self.config),
            str(self.config.reports),
            partitions,
            good_for_s(self.config),
            str(self.config.assignments),
            problems,
        )
        try:
            write_heartbeat(self.config.run_dir, beat)
        except OSError as error:
            log.error("cannot write the heartbeat to %s: %s", self.config.run_dir, error)
