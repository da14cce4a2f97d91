"""A cluster whose Slurm ends the jobs that make room for others (PreemptMode=CANCEL)."""

from __future__ import annotations

from dataclasses import dataclass, field

from hadar_slurm.core.job import Phase
from hadar_slurm.core.snapshot import Ended
from hadar_slurm.engine.backend import Wake
from hadar_slurm.sim.backend import SimBackend
from hadar_slurm.sim.job import SimJob


@dataclass
class CancellingBackend(SimBackend):
    """Simulates `jobs` on `cluster`; one that a plan stops is lost, even if it could save."""

    # The jobs that the last plan ended.
    _cancelled: list[Ended] = field(default_factory=list)

    def wait(self, until_s: float) -> Wake:
        """Advance as others do, and report the jobs that the plan before ended too."""
        wake = super().wait(until_s)
        self._ended += self._cancelled
        self._cancelled.clear()
        return wake

    def _stop(self, job: SimJob, number: int, *, keeps_steps: bool) -> None:
        if not keeps_steps:
            super()._stop(job, number, keeps_steps=keeps_steps)
            return
        self._end(job, self.now_s, Phase.FAILED)
        self._cancelled.append(self._ended.pop())
