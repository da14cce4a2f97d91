"""Which running jobs may be stopped: after a signal to save, or requeued without one. Pure.

A run gets USR1 only if it has reported a handler (`handoff.ProgressReport.listens`). A job that the
signal ends nevertheless is requeued, and never signalled again.

A job with `--hadar-checkpoint=restart:TIME` gets no signal: it resumes from its newest checkpoint,
and loses what it has done since (`core/moves.py`). A job with its owner's own signal gets that, and
one that Slurm may preempt gets SIGTERM where its partition or QOS has a GraceTime, or no signal.
"""

from __future__ import annotations

import math
from dataclasses import replace

from hadar_slurm.core import moves
from hadar_slurm.core.job import JobSpec
from hadar_slurm.job_files import ProgressReport
from hadar_slurm.jobspec.description import Description, decode_or_none
from hadar_slurm.slurm.client.parse import QueueRow
from hadar_slurm.slurm.enforce.claim import Claim

NEVER_REQUEUED = "its owner does not allow Slurm to requeue it (Requeue=0)"
# A process that is suspended or waits for a file system handles a signal only when it resumes.
_DIES_WITHIN_S = 600.0
# Slurm drops a message to a job whose batch step has not started.
_TAKES_MESSAGES_AFTER_S = 2.0


def why_not_migrated(
    row: QueueRow, report: ProgressReport | None, claim: Claim, now_s: float
) -> str:
    """Return why a running job must not be sent USR1, or be requeued without; empty: it may."""
    if not row.may_requeue:
        return f"not migrated: {NEVER_REQUEUED}"
    said = report if report is not None and report.restart == row.restarts else None
    if said is not None and said.state == "done":
        why = "it has reported that it is done"
    elif bound_s(row) and (why := _why_not_requeued(row, report, now_s)):
        return f"not migrated now: {why}"
    elif own := own_signal(row):
        return moves.why_not_signalled(own, now_s - row.started_s, claim.ended_run)
    elif bound_s(row):
        return ""
    elif n := claim.ended_run:
        why = f"USR1 from hadard ended its run {n}, though it had said that it listens"
    elif said is None:
        why = "it has not said in this run that it listens for USR1"
    elif said.listens:
        return ""
    else:
        why = "USR1 would end it or find no handler: its program installs none, or its batch script"
        why += " neither handles nor ignores USR1"
    return f"not migrated: {why}"


def _why_not_requeued(row: QueueRow, report: ProgressReport | None, now_s: float) -> str:
    """Return why a run must not lose work now; empty: it may."""
    most_s, exempt_s, ran_s = bound_s(row), _described(row).exempt_s, now_s - row.started_s
    if (loses_s := measured_loss_s(row, report, now_s)) is None or exempt_s is None:
        return moves.why_not_requeued(most_s, loses_s, ran_s)
    if ran_s < exempt_s:
        return f"it has run for less than {moves.in_words(exempt_s)}, PreemptExemptTime"
    # A requeue counts as a submission.
    since_s = now_s - row.submitted_s if row.restarts else math.inf
    return moves.why_not_preempted(loses_s, most_s, since_s=since_s)


def is_ended_by_us(row: QueueRow, claim: Claim) -> bool:
    """Return whether a job has ended after a signal that we had sent this run.

    By USR1, which it was not to die of; by its own signal, which may end it in any way.
    """
    own = own_signal(row)
    until_s = claim.signalled_until_s + (0.0 if own else _DIES_WITHIN_S)
    if claim.signalled_run != row.restarts + 1 or row.ended_s > until_s:
        return False
    if own:
        return row.state in ("FAILED", "COMPLETED")
    return row.state == "FAILED" and row.exit_status in moves.USR1.deaths


def own_signal(row: QueueRow) -> moves.OwnSignal | None:
    """Return the signal of its owner by which a job may be moved; None for any other job."""
    return moves.parse_signal(_described(row).signal)


def is_signalled(row: QueueRow) -> bool:
    """Return whether a job gets a signal before it is requeued."""
    return not bound_s(row) or own_signal(row) is not None


def _described(row: QueueRow) -> Description:
    return decode_or_none(row.comment) or Description(steps=1, workload="none")


def signal_of(row: QueueRow) -> moves.OwnSignal:
    """Return the signal by which hadard asks a job to save: its owner's own, else USR1."""
    return own_signal(row) or moves.USR1


def takes_messages_after(row: QueueRow, run: int, now_s: float) -> bool:
    """Return whether the first run after run number `run` (0: none) takes messages."""
    is_next = row.state == "RUNNING" and 0 < run == row.restarts
    return is_next and now_s >= row.started_s + _TAKES_MESSAGES_AFTER_S


def bound_s(row: QueueRow) -> float:
    """Return the work in seconds that a requeue of the job may lose; 0: it needs a signal."""
    return _described(row).restart_loss_s


def measured_loss_s(row: QueueRow, report: ProgressReport | None, now_s: float) -> float | None:
    """Return the work in seconds that a requeue would lose now; None where its owner bounds it."""
    if report is None or report.saved_s == 0:  # nothing says that it can resume
        return None if _described(row).exempt_s is None else max(0.0, now_s - row.started_s)
    is_of_this_run = report.restart == row.restarts
    return max(0.0, now_s - max(row.started_s, report.saved_s if is_of_this_run else 0.0))


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
