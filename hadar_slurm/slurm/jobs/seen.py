"""A job of hadard as one reading of Slurm shows it, and what a round makes of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.gang import Gang
from hadar_slurm.core.job import Job, Phase
from hadar_slurm.engine.modes import Mode
from hadar_slurm.job_files import ProgressReport
from hadar_slurm.jobspec.description import Description
from hadar_slurm.slurm.client.parse import FAILED_STATES, QueueRow
from hadar_slurm.slurm.enforce.claim import Claim
from hadar_slurm.slurm.enforce.stoppable import signal_of, takes_messages_after

# That of a job without a valid one, which hadard may still have to give back.
NOT_DESCRIBED = Description(steps=1, workload="none", leaves=True)


def final_phase(state: str) -> Phase:
    """Return how a job with this squeue state has ended."""
    if state == "COMPLETED":
        return Phase.DONE
    return Phase.FAILED if state in FAILED_STATES else Phase.CANCELLED


# Tuples: there are several for each job in every round.
class SeenJob(NamedTuple):
    """One job, made once a round: what Slurm, its owner, hadard's ledger and its program say."""

    row: QueueRow
    description: Description
    claim: Claim
    # When the reading was made, in seconds since the epoch.
    now_s: float
    # The mode of its partitions.
    mode: Mode
    # Managed without a description by hadar-sbatch: never held, pinned or migrated (enrolment.py).
    is_enrolled: bool = False
    # The GPUs that it holds.
    gang: Gang | None = None
    report: ProgressReport | None = None
    # Its owner's time limit, and the longest that it may get, in seconds; 0 for none.
    limit_s: float = 0.0
    most_s: float = 0.0

    @property
    def key(self) -> JobId:
        """Return the id that commands take."""
        return self.row.key

    @property
    def is_pending(self) -> bool:
        """Whether it waits."""
        return self.row.state == "PENDING"

    @property
    def is_described(self) -> bool:
        """Whether it has a description that is valid."""
        return self.description is not NOT_DESCRIBED

    @property
    def parent(self) -> JobId | None:
        """Return the job array that a copy belongs to; None for a job that is not forked."""
        if self.description.copies <= 1:
            return None
        array, _, task = self.row.key.partition("_")
        return JobId(array) if task.isdecimal() else None

    @property
    def ran_s(self) -> float:
        """Return how long its run has lasted; 0 if it does not run."""
        row = self.row
        return max(0.0, self.now_s - row.started_s) if row.state == "RUNNING" else 0.0

    @property
    def reports_run(self) -> bool:
        """Whether its report is of this run."""
        return self.report is not None and self.report.restart == self.row.restarts

    @property
    def notice(self) -> str:
        """Return what is to be printed in its output: why it has run before, or is to go on."""
        row, claim = self.row, self.claim
        if takes_messages_after(row, claim.ended_run, self.now_s):
            return _ENDED.format(signal_of(row).name, claim.ended_run)
        if takes_messages_after(row, claim.retried_run, self.now_s):
            return _RETRIED.format(claim.retried_run)
        was_asked = row.state == "RUNNING" and claim.signalled_run == row.restarts + 1
        return _GOES_ON if was_asked and not row.may_requeue else ""


_ENDED = (
    "hadar: {} from hadard ended run {} of this job, or did not make it leave. It was requeued to "
    "go on from its last checkpoint, and is not migrated any more."
)
_GOES_ON = (
    "hadar: hadard has asked this job to save, and then Slurm was not allowed to requeue it "
    "(Requeue=0). It keeps its GPUs, and goes on in this run."
)
_RETRIED = (
    "hadar: run {} of this job failed soon after its start, on a GPU type on which its workload "
    "has not run. It was requeued, once, for GPUs of another type."
)


class Course(StrEnum):
    """What a round makes of a job."""

    # Nothing: Slurm alone decides.
    LEFT = "left"
    # Managed. Policies place it, if it has a `job` for them.
    PLANNED = "planned"
    # Managed, and held while it waits for other jobs; policies do not see it.
    AWAITS = "awaits"
    # hadard may not place it, and has changed it: what its owner asked for is to be restored.
    RESTORED = "restored"
    ENDED = "ended"
    # Ended by USR1 from hadard, and to be requeued.
    REQUEUED = "requeued"
    # Failed early on a GPU type that its workload then must not have, and to be requeued.
    RETRIED = "retried"


class Treated(NamedTuple):
    """A job with what a round makes of it."""

    seen: SeenJob
    course: Course = Course.LEFT
    # The job as policies see it.
    job: Job | None = None
    # It is pending on the nodes of a pin that cannot start it.
    is_stuck: bool = False
    # The time limit in seconds by GPU type, where it depends on it.
    limits_s: Mapping[str, float] = MappingProxyType({})
    # The part, 0 to 1, that it keeps if it is requeued without a signal now.
    kept: float | None = None
    # The GPU type on which it has failed early.
    failed_on: str = ""

    @property
    def is_managed(self) -> bool:
        """Whether hadard decides about it."""
        return self.course in (Course.PLANNED, Course.AWAITS)

    @property
    def is_alone(self) -> bool:
        """Whether policies place it by itself, not as a copy of a forked job."""
        return self.course is Course.PLANNED and self.seen.parent is None

    @property
    def is_alive(self) -> bool:
        """Whether what hadard has changed on it matters on."""
        seen, is_requeued = self.seen, self.course in (Course.REQUEUED, Course.RETRIED)
        # Forgotten, it would be retried again.
        was_retried = seen.is_described and seen.parent is None and seen.claim.retried_run > 0
        return seen.row.is_live or is_requeued or was_retried
