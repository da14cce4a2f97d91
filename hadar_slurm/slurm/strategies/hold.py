"""Mode `hold`: pins jobs under a hold, and migrates them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hadar_slurm.engine.actions import Action, Outcome, Renew, Start, Status, Stop
from hadar_slurm.engine.pins import Pins
from hadar_slurm.slurm.corrections import Corrections
from hadar_slurm.slurm.strategies.changes import Changes, Outcomes

# Refusals of a change that came too late: often Slurm has started the job meanwhile.
TOO_LATE = re.compile("no longer pending|Invalid job id|already completing|not be altered now")
_NOT_NOW = "not available now"
_NEVER_HELD = "it is enrolled, so that it is never held or stopped, and Slurm starts it"


@dataclass
class Pinning(Changes):
    """Carries out one round."""

    corrections: Corrections
    pins: Pins

    def carry_out(self, actions: Sequence[Action]) -> Mapping[Action, Outcome]:
        """Stop and start jobs; a migrated job is started only once it has stopped."""
        seen, starts = self.seen, [action for action in actions if isinstance(action, Start)]
        # Other jobs have their GPUs now.
        self.hold_timed_out(seen.stuck - {start.job_id for start in starts})
        outcomes: dict[Action, Outcome] = {
            a: Outcome(a, Status.DEFERRED, seen.not_ready[a.job_id])
            for a in actions
            if isinstance(a, Stop) and a.job_id in seen.not_ready
        }
        # A successor is first in line before its GPUs are freed.
        outcomes |= self.steer([a for a in actions if a not in outcomes])
        outcomes |= {
            a: Outcome(a, Status.DEFERRED, _NEVER_HELD)
            for a in actions
            if a not in outcomes and a.job_id in seen.enrolled and not isinstance(a, Renew)
        }
        outcomes |= self._stopped([a for a in actions if isinstance(a, Stop) and a not in outcomes])
        outcomes |= (pinned := self._started([a for a in starts if a not in outcomes]))
        for start, outcome in pinned.items():
            if outcome.status is Status.DONE:
                self.pins.begin(start.job_id, self.now_s())
            elif outcome.status is Status.REFUSED and not TOO_LATE.search(outcome.detail):
                # A copy may still be placed where another request fits, and a partition come back.
                final = start.job_id not in seen.by_type and _NOT_NOW not in outcome.detail
                self.pins.avoid(start.job_id, start.gang.gpus_by_node, self.now_s(), is_final=final)
        begun = {start.job_id for start in starts if outcomes[start].status is Status.DONE}
        self.corrections.release_into_queue(seen, begun)
        failed = {start.job_id for start in starts} - begun
        self.hold_timed_out(seen.stuck & failed | self.corrections.unsafe(seen) - begun)
        return outcomes

    def _stopped(self, stops: Sequence[Stop]) -> Outcomes:
        if not stops:
            return {}
        from hadar_slurm.slurm.strategies.stops import Stops

        return Stops(**self.shared).stop(stops)

    def _started(self, starts: Sequence[Start]) -> Outcomes:
        if not starts:
            return {}
        from hadar_slurm.slurm.strategies.starts import Starts

        return Starts(**self.shared).start(starts)

    def steer(self, actions: Sequence[Action]) -> Mapping[Action, Outcome]:
        """Return the outcomes of actions that need no hold."""
        return {}
