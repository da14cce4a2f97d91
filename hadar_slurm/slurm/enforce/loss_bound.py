"""Which running jobs may be requeued without a signal, and what they then keep. Pure.

Such a job (`--hadar-checkpoint=restart:TIME`) listens for no signal: it saves from time to time,
and resumes from its newest checkpoint. It may be requeued when it loses at most TIME of work, its
bound, and never when its run would keep less work than it loses: so requeues at most double the
time that it trains.

A job that reports its checkpoints (`handoff.tell_checkpoint`) loses what it has done since. Of any
other job only its owner's word is known, that it never loses more than the bound.
"""

from __future__ import annotations

from dataclasses import replace

from hadar_slurm.core.job import JobSpec
from hadar_slurm.handoff import ProgressReport
from hadar_slurm.jobspec.description import decode_or_none
from hadar_slurm.slurm.client.parse import QueueRow

_UNITS_S = ((3_600.0, "h"), (60.0, "min"), (1.0, "s"))


def bound_s(row: QueueRow) -> float:
    """Return the work in seconds that a requeue of the job may lose; 0: it needs a signal."""
    description = decode_or_none(row.comment)
    return description.restart_loss_s if description is not None else 0.0


def measured_loss_s(row: QueueRow, report: ProgressReport | None, now_s: float) -> float | None:
    """Return the work in seconds that a requeue would lose now; None where the job reports none."""
    if report is None or report.saved_s == 0:
        return None
    is_of_this_run = report.restart == row.restarts
    return max(0.0, now_s - max(row.started_s, report.saved_s if is_of_this_run else 0.0))


def why_not_requeued(row: QueueRow, report: ProgressReport | None, now_s: float) -> str:
    """Return why a running job with a bound must not be requeued now; empty: it may be."""
    most_s, ran_s = bound_s(row), now_s - row.started_s
    loses_s = measured_loss_s(row, report, now_s)
    if report is not None and (report.restart, report.state) == (row.restarts, "done"):
        return "it has reported that it is done"
    if loses_s is None:
        # By its owner's word it then keeps as much as it may lose.
        why = f"it has run for less than {_text(2 * most_s)}, twice what it may lose"
        return why if ran_s < 2 * most_s else ""
    if loses_s > most_s:
        return f"it would lose {_text(loses_s)} since its last checkpoint, and may {_text(most_s)}"
    return "" if 2 * loses_s <= ran_s else "it has kept less in this run than it would lose"


def with_loss(spec: JobSpec, row: QueueRow, report: ProgressReport | None, now_s: float) -> JobSpec:
    """Return the spec of a running job with the cost of a requeue now, where the loss is known."""
    loses_s = measured_loss_s(row, report, now_s)
    if loses_s is None:
        return spec
    return replace(spec, restart_cost_s=spec.restart_cost_s - bound_s(row) / 2 + loses_s)


def kept_part(
    before: float,
    done: float,
    per_s: float,
    row: QueueRow,
    report: ProgressReport | None,
    now_s: float,
) -> float:
    """Return the part of a running job, 0 to 1, that it keeps if it is requeued now.

    `before` is the part that its earlier runs have kept, `done` what is done in all, at `per_s`.
    """
    most_s, loses_s = bound_s(row), measured_loss_s(row, report, now_s)
    lost_s = most_s if loses_s is None else min(loses_s, most_s)
    return min(1.0, max(before, done - lost_s * per_s))


def remark(most_s: float) -> str:
    """Return what the owner of a job that may be requeued should know."""
    return f"it may be requeued without a signal, and then loses at most {_text(most_s)} of work"


def _text(seconds: float) -> str:
    size_s, unit = next((u for u in _UNITS_S if seconds >= u[0]), _UNITS_S[-1])
    return f"{seconds / size_s:.3g} {unit}"
