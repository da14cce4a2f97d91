"""What hadard's heartbeat says of a job that is about to be submitted. Standard library only."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from hadar_slurm.state.heartbeat import Heartbeat, run_dir
from hadar_slurm.state.heartbeat_reader import read_heartbeat


class Service(NamedTuple):
    """What hadard would do with a job of the partitions that were asked for."""

    # Why it would not place the job; "" if it would.
    why_not: str
    # Whether waiting jobs of these partitions are not held.
    steers: bool
    # None: there is none, or none that can be read.
    beat: Heartbeat | None
    # The directory of the heartbeat.
    run_dir: Path

    @property
    def enrols(self) -> bool:
        """Whether hadard steers jobs that are not described to it."""
        return self.beat is not None and self.beat.enrols


def service_for(environment: Mapping[str, str], partition: str | None) -> Service:
    """Return what hadard would do with a job of the partitions `a,b`; None: the default one."""
    directory = run_dir(environment)
    beat = read_heartbeat(directory)
    why_not = _trouble(beat, directory, time.time())
    if beat is not None and not why_not and (names := not_placed(beat, partition)):
        where = f"partition {' and '.join(names)}" if partition else "the default partition"
        why_not = f"hadard places no jobs in {where}"
    return Service(why_not, beat is not None and steers(beat, partition), beat, directory)


def not_placed(beat: Heartbeat, partition: str | None) -> list[str]:
    """Return in which of a job's partitions hadard places none: `a,b`; None: the default."""
    placed = beat.partitions
    return [] if placed is None else [n for n in _names(partition) if n not in placed]


def steers(beat: Heartbeat, partition: str | None) -> bool:
    """Return whether waiting jobs are not held in one of a job's partitions, as hadard does."""
    return any(name in beat.steered for name in _names(partition))


def _names(partition: str | None) -> list[str]:
    """Return the partitions in a job's request, "" for the default one."""
    return [name for name in (partition or "").split(",") if name] or [""]


def _trouble(beat: Heartbeat | None, directory: Path, now_s: float) -> str:
    """Return whether hadard does not run or its rounds do not succeed, since when; "": neither."""
    if beat is None or (beat.signed_s is None and not beat.is_fresh(now_s)):
        return f"hadard is not alive here (no fresh heartbeat in {directory})"
    if beat.is_fresh(now_s):
        return ""
    rounds = beat.rounds
    if not beat.is_signed(now_s):
        return f"hadard is not alive here (no heartbeat in {directory}{_since(beat.signed_s)})"
    if rounds.are_failing:
        failed = f"its last {rounds.failed} rounds failed"
        return f"hadard runs, but {failed},{_since(rounds.since_s)} (hadar status)"
    return f"hadard runs, but no round has succeeded{_since(rounds.succeeded_s)}"


def _since(time_s: float | None) -> str:
    """Return since when, in local time; "" where it is not known."""
    if time_s is None:
        return ""
    return time.strftime(" since %Y-%m-%d %H:%M:%S %Z", time.localtime(time_s))
