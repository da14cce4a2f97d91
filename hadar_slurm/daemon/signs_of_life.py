"""hadard's heartbeat for hadar-sbatch, its lease among hadards, and its watchdog signal."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from hadar_slurm.config import Config
from hadar_slurm.daemon.supervisor import notify
from hadar_slurm.engine.modes import Modes, Partitions
from hadar_slurm.errors import SlurmError
from hadar_slurm.slurm.client.protocol import Preemptible
from hadar_slurm.state.heartbeat import Heartbeat, LastRounds, write_heartbeat
from hadar_slurm.state.lease import Lease
from hadar_slurm.state.problems import Problems

log = logging.getLogger("hadard")

# The least time that a heartbeat is good for, in polls.
_POLLS = 4
_MARGIN_S = 5.0
_EVERY_S = 1.0
_READ_EVERY_S = 60.0

# Without a success for these lengths of a round, commands' time limits and seconds, and the time
# that jobs have to save, a round hangs between its commands. Jobs leave their GPUs within 45 s.
_ROUNDS, _COMMANDS, _LATE_S = 3.0, 4.0, 60.0 + 45.0

Value = TypeVar("Value")
_Signed = tuple[float, tuple[str, ...] | None, dict[str, str], LastRounds]


def good_for_s(config: Config) -> float:
    """Return how long a heartbeat is good for: none is written while a command waits for Slurm."""
    command_s = config.command_timeout_seconds + _MARGIN_S
    return max(config.alive_seconds, _POLLS * config.poll_seconds, command_s)


@dataclass
class Places:
    """The partitions of the modes that place jobs; none before the first answer of Slurm's.

    They may change below a running hadard, and are read again.
    """

    modes: Modes
    read: Callable[[], Partitions]
    clock: Callable[[], float] = time.monotonic
    # None: all; an empty name stands for jobs without a partition.
    placed: tuple[str, ...] | None = ()
    steered: tuple[str, ...] = ()
    # The name of the default partition.
    default: str = ""
    # What Slurm preempts by requeue (Heartbeat.preemptible); read where this is given.
    read_preemptible: Callable[[], Preemptible] | None = None
    preemptible: Preemptible = field(default_factory=dict)
    _read_s: float = -math.inf

    def refresh(self) -> None:
        """Read the partitions if the last answer is a minute old."""
        if self.clock() - self._read_s < _READ_EVERY_S:
            return
        try:
            partitions = self.read()
            if self.read_preemptible is not None:
                self.preemptible = self.read_preemptible()
        except SlurmError as error:
            log.warning("the partitions cannot be read: %s", error)
            return
        self._read_s, self.default = self.clock(), partitions.default
        self.placed = self.modes.places_in(partitions)
        self.steered = self.modes.steers_in(partitions)


@dataclass
class SignsOfLife:
    """Writes the heartbeat of one configuration: once a second, and when its content changes."""

    config: Config
    cluster: str
    lease: Lease
    problems: Problems
    # Where hadard places jobs, while `is_off` is false.
    places: Places
    is_off: Callable[[], bool]
    rounds: Callable[[], LastRounds]
    clock: Callable[[], float] = time.monotonic
    _last: _Signed = (-math.inf, None, {}, LastRounds())
    # The last success that is known, and when by `clock` it became known.
    _success: tuple[float | None, float] = (None, -math.inf)

    def sign(self) -> None:
        """Show that hadard lives; raises DaemonError when another hadard has taken over.

        The heartbeat counts as fresh only while rounds succeed: three that fail in a row end that,
        and so does one that does not end.
        """
        # Readers compare it with the machine's clock.
        now_s, partitions = time.time(), () if self.is_off() else self.places.placed
        problems, rounds = dict(self.problems.texts), self.rounds()
        last_s, *before = self._last
        if 0 <= now_s - last_s < _EVERY_S and before == [partitions, problems, rounds]:
            return
        self._last = now_s, partitions, problems, rounds
        notify("WATCHDOG=1")
        try:
            self.lease.renew()
        except OSError as error:
            log.error("the lease %s cannot be renewed: %s", self.lease.path, error.strerror)
        good_s, spool = good_for_s(self.config), str(self.config.reports)
        # Versions that know nothing of rounds read this time only.
        until_s = 0.0 if rounds.are_failing or self._is_late(rounds) else now_s + good_s
        assignments = str(self.config.assignments)
        beat = Heartbeat(
            os.getpid(),
            self.cluster,
            until_s,
            spool,
            partitions,
            good_s,
            assignments,
            problems,
            self.places.steered,
            self.config.own_gpu_types,
            bool(self.config.enrol_lists),
            self._of_default(self.config.moves),
            self._of_default(self.places.preemptible),
            now_s,
            rounds,
        )
        try:
            write_heartbeat(self.config.run_dir, beat)
        except OSError as error:
            log.error("cannot write the heartbeat to %s: %s", self.config.run_dir, error)

    def _of_default(self, found: Mapping[str, Value]) -> dict[str, Value]:
        """Return values by `partition=NAME`, and as that of no partition that of the default."""
        own = found.get(f"partition={self.places.default}")
        return {**found} if own is None else {**found, "partition=": own}

    def _is_late(self, rounds: LastRounds) -> bool:
        """Return whether the last success, or the start, is longer ago than any round may take."""
        if rounds.succeeded_s != self._success[0] or math.isinf(self._success[1]):
            self._success = rounds.succeeded_s, self.clock()
        config = self.config
        limit_s = _ROUNDS * config.round_seconds + config.grace_seconds + _LATE_S
        limit_s += _COMMANDS * config.command_timeout_seconds
        return self.clock() - self._success[1] > limit_s
