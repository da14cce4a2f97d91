"""Restoring every job: what `hadar release` does when hadard is stopped, dead or hung."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import replace

from hadar_slurm.core.cluster import JobId
from hadar_slurm.engine.loan import Loan
from hadar_slurm.engine.rate_limit import as_many
from hadar_slurm.errors import LedgerError, SlurmError
from hadar_slurm.jobspec.description import decode_or_none
from hadar_slurm.slurm.client.parse import QueueRow
from hadar_slurm.slurm.client.protocol import SlurmAdapter
from hadar_slurm.slurm.client.state import waits_for_nodes
from hadar_slurm.slurm.enforce.ledger import Ledger
from hadar_slurm.slurm.enforce.restore import (
    Returned,
    changed_jobs,
    restore_jobs,
)
from hadar_slurm.slurm.enforce.state_machine import Event, Kind

log = logging.getLogger(__name__)

_POLL_S = 0.5
_LEAVING = "it has not yet left its GPUs"
_RACED = "it runs, and is held should it be requeued"
_SLOW = "Slurm takes no more changes in this time"
_KEEPS_NICE = "it is held: its nice value can be given back only after that"


def await_nodes(
    slurm: SlurmAdapter,
    limit_s: float,
    *,
    now_s: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Wait up to `limit_s` seconds for the nodes of a slurmctld that has just started."""
    deadline_s = now_s() + limit_s
    while waits_for_nodes(slurm.nodes()) and now_s() < deadline_s:
        sleep(_POLL_S)


def release_all(
    slurm: SlurmAdapter,
    ledger: Ledger,
    *,
    limit_s: float,
    now_s: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[Returned, ...]:
    """Restore every job that hadard holds or has pinned; raises SlurmError.

    Waits up to `limit_s` seconds for jobs that are leaving their GPUs under our hold; those left
    then, and all failures, are in the answer with their reasons. A hold that raced with its job's
    start is released, too: it would hold the job after a requeue.
    """
    deadline_s = now_s() + limit_s
    answers: dict[JobId, Returned] = {}
    waiting: list[JobId] = []
    await_nodes(slurm, limit_s / 2, now_s=now_s, sleep=sleep)
    submitted = _include_submitted(slurm, ledger)
    while True:
        queue = slurm.queue()
        ledger.see(slurm, queue.values())
        raced = ledger.raced(queue.values())
        ledger.carry_out(slurm, raced, must_be_written=False)  # the next reading shows the result
        before, waiting = waiting, changed_jobs(ledger, queue.values())
        kept = [job for job in waiting if ledger[job].keeps_nice_only(queue[job])]
        waiting = _worst_first(ledger, (queue[k] for k in waiting if k not in kept), submitted)
        some = as_many(waiting, deadline_s - now_s(), slurm.rpcs_per_s)
        # A job that had just started could not be changed, and no longer waits.
        answers = {job: a for job, a in answers.items() if not a.fault or job in waiting}
        answers |= {a.job: a for a in restore_jobs(slurm, ledger, queue, some)}
        leaving = [k for k, row in queue.items() if row.state == "COMPLETING" and ledger[k].holds]
        has_failed = any(answer.fault for answer in answers.values())
        answers |= {job: Returned(job, _KEEPS_NICE) for job in kept}
        # Observe once more after a success: a throttled array may show its last task only then.
        if not (leaving or has_failed or waiting or raced):
            with suppress(LedgerError):
                ledger.note({})
            return tuple(answers.values())
        if now_s() >= deadline_s:
            late = dict.fromkeys(leaving, _LEAVING) | dict.fromkeys(raced, _RACED)
            late |= dict.fromkeys((job for job in waiting if job not in answers), _SLOW)
            return (*answers.values(), *(Returned(job, why) for job, why in late.items()))
        if leaving or has_failed or raced or waiting == before:
            sleep(_POLL_S)


def _worst_first(
    ledger: Ledger, rows: Iterable[QueueRow], submitted: Collection[JobId]
) -> list[JobId]:
    """Return held jobs, then those that are next to start, last what hadar-sbatch has excluded."""
    keys = (
        (row.key in submitted, not ledger[row.key].holds, -row.priority, row.key) for row in rows
    )
    return [key for *_, key in sorted(keys)]


def _include_submitted(slurm: SlurmAdapter, ledger: Ledger) -> Collection[JobId]:
    """Claim the jobs for which hadar-sbatch has excluded nodes, and which hadard has not yet seen.

    Also those of a lost ledger.
    """
    found: dict[JobId, Event] = {}
    try:
        state = slurm.read()
    except SlurmError as error:  # all else can still be given back
        log.warning("nodes that hadar-sbatch has excluded may stay so: %s", error)
        return ()
    ledger.heed(state)
    for job, excluded in state.excluded.items():
        row = state.queue[job]
        own_excluded = ledger.excluded_by_owner(row, excluded)
        is_ours = (known := decode_or_none(row.comment)) and known.steered
        is_new = is_ours and ledger[job].excluded_by_owner(excluded) != own_excluded
        if row.state == "PENDING" and is_new:
            claim = replace(ledger[job], own=ledger[job].own or state.request(row))
            claim = replace(claim, excluded=Loan(excluded, excluded, own_excluded))
            found[job] = Event(kind=Kind.FOUND_EXCLUDED, row=row, claim=claim)
    ledger.intend(found, must_be_written=False)
    return found.keys()
