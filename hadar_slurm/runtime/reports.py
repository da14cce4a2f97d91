"""What a copy reports to hadard."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

from hadar_slurm import handoff
from hadar_slurm.runtime.averaging.costs import Costs
from hadar_slurm.runtime.files.records import SlotEnd
from hadar_slurm.runtime.membership.surroundings import Surroundings

log = logging.getLogger(__name__)


@dataclass
class CopyReports:
    """The reports of one copy; `steps_per_s` is the speed measured last, 0: none yet."""

    where: Surroundings
    costs: Costs
    steps_per_s: float = 0.0

    def tell(self, what: str, end: SlotEnd, own_steps: int = 0) -> None:
        """Report `end`, and `own_steps` of this copy that are not yet in it; errors are logged."""
        if self.where.job is None:
            return
        handoff.warn_of_unsaved_run(self.where.spool, self.where.job, self.where.restart)
        report = handoff.ProgressReport(
            restart=self.where.restart,
            state=what,
            steps_done=len(end.done) + own_steps,
            steps_per_s=self.steps_per_s,
            time_s=time.time(),
            own_steps=own_steps,
            aggregation_s=self.costs.total_s,
            averages=end.averages,
            synchronous=end.together,
            listens=handoff.listens_now(),
        )
        try:
            handoff.write_report(self.where.spool, self.where.job, report)
        except OSError as error:
            log.warning("no progress report: %s", error)
