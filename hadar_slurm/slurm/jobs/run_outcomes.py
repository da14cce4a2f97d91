"""What the runs of jobs show of GPU types: each run counts once, as a run or an early failure.

A failure is an end in state FAILED or OUT_OF_MEMORY less than `EARLY_S` after the start, without a
report that steps were done. Ends by other states, and by the signals with which owners, operators
and hadard end jobs, say nothing. Slurm shows an ended job's nodes, but not its GPUs.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from hadar_slurm.core.cluster import Cluster, JobId
from hadar_slurm.core.moves import MovedBy, OwnSignal
from hadar_slurm.core.throughput_model import Place
from hadar_slurm.core.type_failures import EARLY_S, TypeRecords
from hadar_slurm.jobspec.estimator import work_of
from hadar_slurm.slurm.client.parse import QueueRow
from hadar_slurm.slurm.jobs.seen import SeenJob

_FAILED = ("FAILED", "OUT_OF_MEMORY")
_SENT = (OwnSignal(name, to_batch=True, before_s=0) for name in ("USR1", "TERM", "INT"))
_BY_SIGNAL = frozenset(status for each in _SENT for status in each.deaths)
# A failure is retried within this number of seconds: later its owner may have submitted it again.
_RETRIED_WITHIN_S = 600.0

_Run = tuple[JobId, int]


@dataclass
class RunOutcomes:
    """Counts runs into `records`, and remembers those that Slurm still shows."""

    records: TypeRecords
    # The GPU type of a run that holds or has held GPUs, by job and restarts.
    _types: dict[_Run, str] = field(default_factory=dict)
    _counted: set[_Run] = field(default_factory=set)

    def needs_report(self, row: QueueRow) -> bool:
        """Return whether a run has not been counted, and its report decides about it."""
        is_open = row.state == "RUNNING" or is_early_failure(row)
        return is_open and (row.key, row.restarts) not in self._counted

    def see_live(self, seen: SeenJob) -> None:
        """Count the run of a job that holds GPUs, once it has shown that it runs there."""
        row, place = seen.row, Place.of(seen.gang) if seen.gang is not None else None
        if place is None:
            return
        self._types[row.key, row.restarts] = place.gpu_type
        if not self.needs_report(row):
            return
        if _has_trained(seen):
            self._count(seen, ran_s=row.started_s)
        elif seen.now_s - row.started_s >= EARLY_S:
            self._count(seen, ran_s=row.started_s + EARLY_S)

    def see_ended(self, seen: SeenJob, cluster: Cluster) -> None:
        """Count the run of a job that has ended; its report matters only for an early failure."""
        row, run = seen.row, (seen.key, seen.row.restarts)
        if run in self._counted:
            return
        if run not in self._types and (gpu_type := _type_of(row, cluster)):
            self._types[run] = gpu_type
        if is_early_failure(row) and seen.claim.signalled_run == row.restarts + 1:
            self._counted.add(run)  # it may have failed as it saved, and its claim is forgotten
        elif is_early_failure(row):
            self._count(seen, ran_s=row.started_s if _has_trained(seen) else 0.0)
        elif row.state == "COMPLETED" or row.ended_s - row.started_s >= EARLY_S:
            self._count(seen, ran_s=row.ended_s)

    def type_of(self, row: QueueRow) -> str:
        """Return the GPU type of a run, in lower case; "" if it is not known."""
        return self._types.get((row.key, row.restarts), "")

    def keep(self, jobs: Collection[JobId]) -> None:
        """Forget the runs of all jobs but these."""
        self._types = {run: name for run, name in self._types.items() if run[0] in jobs}
        self._counted = {run for run in self._counted if run[0] in jobs}

    def _count(self, seen: SeenJob, *, ran_s: float) -> None:
        """Count a run; one without `ran_s` has failed."""
        row = seen.row
        self._counted.add((row.key, row.restarts))
        work, gpu_type = work_of(seen.description, row.user), self.type_of(row)
        if work is None or not gpu_type or not row.started_s:
            return
        if ran_s:
            self.records.ran(work, gpu_type, ran_s)
        else:
            lasted_s = row.ended_s - row.started_s
            self.records.failed(work, gpu_type, row.ended_s, lasted_s)


def is_early_failure(row: QueueRow) -> bool:
    """Return whether a job's last run has failed early, by Slurm's record."""
    return (
        row.state in _FAILED
        and row.exit_status not in _BY_SIGNAL
        and 0 <= row.ended_s - row.started_s < EARLY_S
    )


def may_retry(seen: SeenJob) -> bool:
    """Return whether hadard may requeue a job that has failed early, if another type suits.

    Its owner allows it by --hadar-checkpoint=yes. Once in a job's life.
    """
    row, description, claim = seen.row, seen.description, seen.claim
    owners_nodes = bool(row.requested_nodes) and not claim.pins(row.requested_nodes)
    return (
        is_early_failure(row)
        and description.checkpoint
        and description.moved_by is MovedBy.STATED
        and not (description.leaves or row.is_set_apart or owners_nodes)
        # After our requeue was written down, hadard may have been killed before it was sent.
        and claim.retried_run in (0, row.restarts + 1)
        and claim.signalled_run != row.restarts + 1
        and 0 <= seen.now_s - row.ended_s < _RETRIED_WITHIN_S
    )


def _has_trained(seen: SeenJob) -> bool:
    """Return whether this run has reported steps; those of its checkpoint do not count."""
    report = seen.report if seen.reports_run else None
    return report is not None and (report.steps_per_s > 0 or report.state == "done")


def _type_of(row: QueueRow, cluster: Cluster) -> str:
    """Return the one GPU type that a run can have had, by its request or its nodes; else ""."""
    if len(row.named_types) == 1:
        return next(iter(row.named_types)).lower()
    nodes = [cluster.by_name.get(name) for name in row.nodes]
    types = {gpu_type.lower() for node in nodes if node is not None for gpu_type, _ in node.gpus}
    return types.pop() if len(types) == 1 and None not in nodes else ""
