"""hadard's heartbeat for hadar-sbatch, its lease among hadards, and its watchdog signal."""

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

# The least time that a heartbeat is good for, in polls.
_POLLS = 4
_MARGIN_S = 5.0
_EVERY_S = 1.0

_Signed = tuple[float, tuple[str, ...] | None, dict[str, str]]


def good_for_s(config: Config) -> float:
    """Return how long a heartbeat is good for: none is written while a command waits for Slurm."""
    command_s = config.command_timeout_seconds + _MARGIN_S
    return max(config.alive_seconds, _POLLS * config.poll_seconds, command_s)


@dataclass
class SignsOfLife:
    """Writes the heartbeat of one configuration: once a second, and when its content changes."""

    config: Config
    cluster: str
    lease: Lease
    problems: Problems
    # The partitions in which hadard places jobs (None: all), while `is_off` is false, and those of
    # them in which waiting jobs are not held.
    placed: tuple[str, ...] | None
    steered: tuple[str, ...]
    is_off: Callable[[], bool]
    _last: _Signed = (-math.inf, None, {})

    def sign(self) -> None:
        """Show that hadard lives; raises DaemonError when another hadard has taken over."""
        # Readers compare it with the machine's clock.
        now_s, partitions = time.time(), () if self.is_off() else self.placed
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
        good_s, spool = good_for_s(self.config), str(self.config.reports)
        until_s, assignments = now_s + good_s, str(self.config.assignments)
        beat = Heartbeat(
            os.getpid(),
            self.cluster,
            until_s,
            spool,
            partitions,
            good_s,
            assignments,
            problems,
            self.steered,
            self.config.own_gpu_types,
            bool(self.config.enrol_lists),
        )
        try:
            write_heartbeat(self.config.run_dir, beat)
        except OSError as error:
            log.error("cannot write the heartbeat to %s: %s", self.config.run_dir, error)
