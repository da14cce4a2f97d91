"""What a copy has trained of the running interval, and how it ends that."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from hadar_slurm.runtime.files.ranges import Ranges
from hadar_slurm.runtime.files.records import SlotEnd
from hadar_slurm.runtime.synchronous.host import Host
from hadar_slurm.runtime.synchronous.roster import Version

log = logging.getLogger(__name__)

# How often a failed end of an interval is tried again.
_END_AGAIN_S = 5.0


@dataclass
class ParameterProgress:
    """The steps since `end` that this copy's parameters have, and their version."""

    end: SlotEnd
    applied: Ranges = field(default_factory=Ranges)
    version: Version = field(init=False)
    begun_s: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.version = Version(self.end.id, steps=0)

    @property
    def todo(self) -> Ranges:
        """Return the steps of the job that are left."""
        return self.end.todo - self.applied

    def apply(self, step: int, group: int) -> None:
        """Count a step that all copies of a group have trained."""
        self.applied |= Ranges.of([(step, step + 1)])
        self.version = Version(self.end.id, group, self.version.steps + 1)

    def forget(self) -> None:
        """The parameters are of no use: others, or those of the end, are to be taken over."""
        self.version, self.applied = Version(self.end.id), Ranges()


@dataclass
class Ends:
    """Writes ends of intervals; one that failed not before `again_s`, but where it has to be."""

    host: Host
    again_s: float = 0.0

    def write(
        self,
        progress: ParameterProgress,
        speeds: Mapping[int, float],
        costly: Collection[int],
        *,
        stops: bool = False,
    ) -> SlotEnd | None:
        """Write the end of the running interval; None where that failed, or came too late."""
        end = progress.end
        try:
            return self.host.end_together(end, progress.applied, speeds, costly, stops=stops)
        except OSError as error:
            self.again_s = time.monotonic() + _END_AGAIN_S
            log.warning("slot %d cannot be ended yet: %s", end.slot + 1, error)
            return None
