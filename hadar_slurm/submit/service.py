"""What hadard's heartbeat says of a job that is about to be submitted. Standard library only."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from hadar_slurm.state.heartbeat import Heartbeat, read_heartbeat, run_dir


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
    why_not = ""
    if beat is None or not beat.is_fresh(time.time()):
        why_not = f"hadard is not alive here (no fresh heartbeat in {directory})"
    elif names := beat.not_placed(partition):
        where = f"partition {' and '.join(names)}" if partition else "the default partition"
        why_not = f"hadard places no jobs in {where}"
    return Service(why_not, beat is not None and beat.steers(partition), beat, directory)
