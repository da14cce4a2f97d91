"""Restoring every job: what `hadar release` does when hadard is stopped, dead or hung.

Also what that would change: what is different in Slurm now because of hadard (`hadar diff`).
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from hadar_slurm.core.cluster import JobId
from hadar_slurm.engine.loan import Loan
from hadar_slurm.engine.rate_limit import as_many
from hadar_slurm.errors import LedgerError, SlurmError
from hadar_slurm.jobspec.constraint import fold
from hadar_slurm.jobspec.description import decode_or_none
from hadar_slurm.jobspec.mark import with_mark
from hadar_slurm.slurm.client import scontrol, updates
from hadar_slurm.slurm.client.parse import QueueRow
from hadar_slurm.slurm.client.protocol import SlurmAdapter
from hadar_slurm.slurm.client.state import waits_for_nodes
from hadar_slurm.slurm.enforce.claim import Claim, State
from hadar_slurm.slurm.enforce.ledger import Ledger
from hadar_slurm.slurm.enforce.restore import (
    Returned,
    asks_for,
    changed_jobs,
    own_request,
    restore_jobs,
    unsteering,
)
from hadar_slurm.slurm.enforce.state_machine import Event, Kind
from hadar_slurm.state.heartbeat_reader import read_heartbeat
from hadar_slurm.state.lease import Lease
from hadar_slurm.state.locks import started_s

log = logging.getLogger(__name__)

_POLL_S = 0.5
_LEAVING = "it has not yet left its GPUs"
_RACED = "it runs, and is held should it be requeued"
_SLOW = "Slurm takes no more changes in this time"
_KEEPS_NICE = "it is held: its nice value can be given back only after that"


def reason_to_keep(
    state_dir: Path,
    run_dir: Path,
    lease: Lease,
    *,
    only_expired: bool,
    now_s: Callable[[], float] = time.time,
) -> str:
    """Return why jobs should not be released now; empty: they may be.

    A hadard on another machine is at work while its lease is valid. A hadard on this machine is
    hung if its heartbeat has expired, or if it started longer ago than a heartbeat is valid and has
    written none. With `only_expired`, the jobs of a dead hadard are kept until its heartbeat
    expires, since hadard may restart.
    """
    beat = read_heartbeat(run_dir)
    with suppress(OSError):
        holder = lease.holder()
        if holder and holder.host != socket.gethostname() and holder.is_fresh(now_s()):
            return f"hadard is at work on {holder.host}"
    if beat is not None and not beat.is_fresh(now_s()):
        return ""
    with suppress(OSError):
        started = started_s(state_dir)
        if started is not None:
            is_hung = beat is None and not 0 <= now_s() - started < lease.good_for_s
            return "" if is_hung else "hadard is at work"
    return "hadard was alive a moment ago" if beat is not None and only_expired else ""


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


@dataclass(frozen=True, slots=True)
class Difference:
    """A pending job that hadard has changed: by field what it has now, and its owner's value.

    `undo` has commands for scontrol's standard input, in their order.
    """

    job: JobId
    user: str
    fields: dict[str, tuple[str, str]]
    undo: tuple[str, ...]


def differences(slurm: SlurmAdapter, ledger: Ledger, rows: Iterable[QueueRow]) -> list[Difference]:
    """Return the differences of all pending jobs in a queue that was just read."""
    shown = list(rows)
    ledger.see(slurm, shown)
    if not ledger.was_read:
        ledger.heed(slurm.read())
    changed = [row for row in shown if ledger[row.key].has_changed(row)]
    return [_difference(slurm, row, ledger[row.key]) for row in changed]


def _difference(slurm: SlurmAdapter, row: QueueRow, claim: Claim) -> Difference:
    own, is_ours = own_request(row, claim, slurm), claim.state is not State.FOREIGN_HOLD
    steering, now = unsteering(row, claim), row.request
    fields = {
        "hold": ("user" if row.is_held_by_user else "", "") if claim.holds and is_ours else None,
        "nodes": (fold(now.nodes), fold(own.nodes)),
        "gpus": (" ".join(filter(None, now.gpus)), " ".join(filter(None, own.gpus))),
        "excluded": (fold(claim.excluded.ours), fold(claim.excluded.owners)),
        "nice": (str(claim.nice.ours), str(claim.nice.owners)) if claim.nice.is_lent else None,
        "preferred": (claim.preferred.ours, claim.preferred.owners),
        "time limit": (_minutes(claim.limit_s.ours), _minutes(claim.limit_s.owners)),
    }
    if steering:
        steering = replace(steering, comment=with_mark(row.comment, row.mark, {}))
    changes: list[updates.Update] = [steering] if steering else []
    if claim.preferred.is_lent:
        changes.append(updates.Prefer(row.key, claim.preferred.owners))
    if not asks_for(row, own):
        # With excluded nodes Slurm refuses the update of a job that has started.
        clear = updates.ClearRequest(row.key, excluded=claim.excluded.owners)
        changes += [clear, updates.SetRequest(row.key, own)]
    if claim.holds and is_ours:
        changes.append(updates.Release(row.key))
        if claim.nice.is_lent:
            # Slurm 22.05 releases a held job whose nice value changes.
            changes.append(updates.Steer(row.key, claim.excluded.owners, nice=claim.nice.owners))
    undo = tuple(" ".join(scontrol.command(change)[1:]) for change in changes)
    there = {name: pair for name, pair in fields.items() if pair and pair[0] != pair[1]}
    return Difference(row.key, row.user, there, undo)


def _minutes(limit_s: float) -> str:
    return f"{limit_s / 60:g} min" if limit_s else ""


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
