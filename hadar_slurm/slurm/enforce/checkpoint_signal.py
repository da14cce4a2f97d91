"""Which jobs may get USR1, and which ended by it although they had a handler. Pure.

A run is signalled only if it has reported a handler (`handoff.ProgressReport.listens`). A job that
the signal ends nevertheless is requeued, and never signalled again. A job that may be requeued
without a signal (`loss_bound`) never gets one.
"""

from __future__ import annotations

import signal

from hadar_slurm.handoff import ProgressReport
from hadar_slurm.slurm.client.parse import QueueRow
from hadar_slurm.slurm.enforce.claim import Claim
from hadar_slurm.slurm.enforce.loss_bound import bound_s, why_not_requeued

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


def runs_again(row: QueueRow, claim: Claim, now_s: float) -> bool:
    """Return whether the first run after the one that our signal ended takes messages."""
    return takes_messages_after(row, claim.ended_run, now_s)


def takes_messages_after(row: QueueRow, run: int, now_s: float) -> bool:
    """Return whether the first run after run number `run` (0: none) takes messages."""
    is_next = row.state == "RUNNING" and 0 < run == row.restarts
    return is_next and now_s >= row.started_s + _TAKES_MESSAGES_AFTER_S


def message(claim: Claim) -> str:
    """Return the message for the output of a job that our signal ended."""
    return (
        f"hadar: USR1 from hadard ended run {claim.ended_run} of this job, which had reported that "
        "it listens for it. It was requeued to go on from its last checkpoint, and is not migrated "
        "any more."
    )
