"""Letting go of everything: what `hadar release` does when hadard is stopped, dead or hung."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from hadar_slurm.core.cluster import JobId
from hadar_slurm.errors import LedgerError
from hadar_slurm.jobspec.description import decode_or_none
from hadar_slurm.slurm.client.parse import QueueRow
from hadar_slurm.slurm.client.protocol import SlurmAdapter
from hadar_slurm.slurm.client.state import waits_for_nodes
from hadar_slurm.slurm.client.updates import Release
from hadar_slurm.slurm.control.claim import bears_of_us, has_landed, was_submitted_held
from hadar_slurm.slurm.control.ledger import Ledger
from hadar_slurm.slurm.control.lost_releases import as_seen, lost_releases
from hadar_slurm.slurm.control.restore import Returned, Waiting, give_back
from hadar_slurm.state.heartbeat import read_heartbeat
from hadar_slurm.state.lease import Lease
from hadar_slurm.state.locks import started_s

_LOOK_EVERY_S = 0.5


def reason_to_keep(
    state_dir: Path,
    run_dir: Path,
    lease: Lease,
    *,
    only_expired: bool,
    now_s: Callable[[], float] = time.time,
) -> str:
    """Return why jobs should not be released now, or nothing.

    A daemon that has not renewed its heartbeat in time is taken for hung, and so is one that has
    written none by the time that a first one would have expired. With `only_expired` one that died
    a moment ago is given until then to come back. Another machine's hadard is at work for as long
    as its lease is good.
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


def release_all(
    slurm: SlurmAdapter,
    ledger: Ledger,
    *,
    limit_s: float,
    now_s: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[Returned, ...]:
    """Give back every job that hadard holds or has pinned; raises SlurmError.

    Jobs that are just leaving their GPUs under a hold of ours are waited for, `limit_s` seconds at
    most; those left then, and whatever failed, is in the answer with its reason. A hold of ours
    that came as its job started is taken back, too: it would keep the job, should it be requeued.
    """
    deadline_s = now_s() + limit_s
    answers: dict[JobId, Returned] = {}
    landed: list[JobId] = []
    while waits_for_nodes(slurm.nodes()) and now_s() < deadline_s - limit_s / 2:
        sleep(_LOOK_EVERY_S)
    while True:
        queue = slurm.queue()
        with suppress(LedgerError):
            ledger.note(lost_releases(slurm, ledger, queue))
            ledger.note(
                {
                    job: as_seen(ledger[job], queue[job], ledger.now_s())
                    for job in ledger
                    if job in queue and (job in landed or queue[job].is_held_by_operator)
                }
            )
        landed = [job for job in ledger if job in queue and has_landed(queue[job], ledger[job])]
        if landed:
            # Whether that was done the next look tells.
            slurm.change([Release(job) for job in landed])
        waiting = waiting_for_us(queue.values(), ledger)
        # One that could not be changed because it had just started waits for nobody any more.
        answers = {job: a for job, a in answers.items() if not a.fault or job in waiting}
        answers |= {answer.job: answer for answer in give_back(slurm, ledger, waiting)}
        leaving = [
            key
            for key in ledger
            if ledger[key].is_held and key in queue and queue[key].state == "COMPLETING"
        ]
        failed = [answer for answer in answers.values() if answer.fault]
        # Looked at once more: a queue with arrays in steps may show their last task only then.
        if not leaving and not failed and not waiting and not landed:
            return tuple(answers.values())
        if now_s() >= deadline_s:
            late = [Returned(key, "it has not yet left its GPUs") for key in leaving]
            late += [Returned(key, "it runs, and is held should it be requeued") for key in landed]
            return (*answers.values(), *late)
        if leaving or failed or landed:
            sleep(_LOOK_EVERY_S)


def waiting_for_us(rows: Iterable[QueueRow], ledger: Ledger) -> dict[JobId, Waiting]:
    """Return the jobs that wait with a hold or a pin of hadard's, whoever else holds them."""
    waiting: dict[JobId, Waiting] = {}
    for row in rows:
        description = decode_or_none(row.comment) if row.state == "PENDING" else None
        if description is None and row.key not in ledger:
            continue
        if bears_of_us(row, ledger, was_submitted_held=was_submitted_held(description)):
            waiting[row.key] = (row, description)
    return waiting
