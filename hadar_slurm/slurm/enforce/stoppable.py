"""Which running jobs may be stopped: after a signal to save, or requeued without one. Pure.

A run gets USR1 only if it has reported a handler (`handoff.ProgressReport.listens`). A job that the
signal ends nevertheless is requeued, and never signalled again.

A job with `--hadar-checkpoint=restart:TIME` gets no signal: it saves from time to time, and resumes
from its newest checkpoint. It may be requeued when it loses at most TIME of work, its bound, and
never when its run would keep less work than it loses: so requeues at most double the time that it
trains. A job that reports its checkpoints (`handoff.tell_checkpoint`) loses what it has done since.
Of any other job only its owner's word is known, that it never loses more than the bound.
"""

from __future__ import annotations

import signal
from dataclasses import replace

from hadar_slurm.core.job import JobSpec
from hadar_slurm.job_files import ProgressReport
from hadar_slurm.jobspec.description import decode_or_none
from hadar_slurm.slurm.client.parse import QueueRow
from hadar_slurm.slurm.enforce.claim import Claim

NEVER_REQUEUED = "its owner does not allow Slurm to requeue it (Requeue=0)"
_UNITS_S = ((3_600.0, "h"), (60.0, "min"), (1.0, "s"))
# A process that is suspended or waits for a file system handles a signal only when it resumes.
_DIES_WITHIN_S = 600.0
# wait(2) statuses: the batch script died of USR1, or exited with the status of a child that did.
_DEATHS = (int(signal.SIGUSR1), (128 + signal.SIGUSR1) << 8)
# Slurm drops a message to a job whose batch step has not started.
_TAKES_MESSAGES_AFTER_S = 2.0


def why_not_migrated(
    row: QueueRow, report: ProgressReport | None, claim: Claim, now_s: float
) -> str:
    """Return why a running job must not be sent USR1, or be requeued without; empty: it may."""
    if not row.may_requeue:
        return f"not migrated: {NEVER_REQUEUED}"
    if bound_s(row):
        why = why_not_requeued(row, report, now_s)
        return f"not migrated now: {why}" if why else ""
    if n := claim.ended_run:
        why = f"USR1 from hadard ended its run {n}, though it had said that it listens"
    elif report is None or report.restart != row.restarts:
        why = "it has not said in this run that it listens for USR1"
    elif report.state == "done":
        why = "it has reported that it is done"
    elif report.listens:
        return ""
    else:
        why = "USR1 would end it or find no handler: its program installs none, or its batch script"
        why += " neither handles nor ignores USR1"
    return f"not migrated: {why}"


def is_ended_by_us(row: QueueRow, claim: Claim) -> bool:
    """Return whether a job has FAILED of USR1 in the run that we had signalled."""
    return (
        row.state == "FAILED"
        and row.exit_status in _DEATHS
        and claim.signalled_run == row.restarts + 1
        and row.ended_s <= claim.signalled_until_s + _DIES_WITHIN_S
    )


def takes_messages_after(row: QueueRow, run: int, now_s: float) -> bool:
    """Return whether the first run after run number `run` (0: none) takes messages."""
    is_next = row.state == "RUNNING" and 0 < run == row.restarts
    return is_next and now_s >= row.started_s + _TAKES_MESSAGES_AFTER_S


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
