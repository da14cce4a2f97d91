"""Puts right, beside the plan, what Slurm or users have changed."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from hadar_slurm.core.cluster import Cluster, JobId, NodeName
from hadar_slurm.core.job import Job, Phase
from hadar_slurm.engine.modes import Mode
from hadar_slurm.engine.rate_limit import RELEASED_WITHIN_S, as_many
from hadar_slurm.errors import LedgerError, SlurmRefused
from hadar_slurm.slurm.client import updates
from hadar_slurm.slurm.client.parse import QueueRow
from hadar_slurm.slurm.client.protocol import SlurmAdapter
from hadar_slurm.slurm.client.state import SlurmState, waits_for_nodes
from hadar_slurm.slurm.enforce.claim import State
from hadar_slurm.slurm.enforce.ledger import Ledger
from hadar_slurm.slurm.enforce.state_machine import Event, Kind
from hadar_slurm.slurm.enforce.stoppable import is_ended_by_us, signal_of
from hadar_slurm.slurm.jobs.observation import Observation
from hadar_slurm.slurm.jobs.run_outcomes import is_early_failure
from hadar_slurm.slurm.jobs.seen import Course

log = logging.getLogger(__name__)

_MOST_REFUSED = 2
_SEVERAL = 3  # jobs: where all that are held are refused, it is not the fault of one of them
# Slurm 22.05.8, just started, may start jobs without their GPUs on nodes that have not yet reported
# to it: no job is restored for this long. Slurm marks a dead node as down later.
NODES_REPORT_WITHIN_S = 30.0


@dataclass
class Corrections:
    """The corrections of one backend; each reads the queue again, since a round takes time."""

    slurm: SlurmAdapter
    ledger: Ledger
    now_s: Callable[[], float]
    # Jobs that USR1 from hadard has ended and that Slurm refused to requeue.
    lost: set[JobId] = field(default_factory=set)
    # Why no job could be restored in this round; empty: one could, or none was to be.
    fault: str = ""
    _not_restored: dict[JobId, str] = field(default_factory=dict)
    _restore_delayed_since_s: float = math.inf
    _notified: frozenset[JobId] = frozenset()
    _may_notify: bool = True

    def restore(self, seen: Observation, state: SlurmState) -> None:
        """Restore the requests of jobs that hadard may not place, or not steer, any more."""
        self.fault = ""
        for job in seen.snapshot.jobs if seen.mode is Mode.HOLD else ():
            self._not_restored.pop(job.job_id, None)  # planned again, it is held rightly
        # Slurm 24.11 takes no change of some; those have been tried twice.
        refused = {job for job, times in self.ledger.unlistable.items() if times > _MOST_REFUSED}
        jobs = {*seen.of(Course.RESTORED), *self._lent_beside_kept(state.queue)} - refused
        if not jobs:
            self._restore_delayed_since_s = math.inf
            return
        if waits_for_nodes(state.nodes):
            self._restore_delayed_since_s = min(self._restore_delayed_since_s, self.now_s())
            if self.now_s() < self._restore_delayed_since_s + NODES_REPORT_WITHIN_S:
                return
        # Read again: a hold that a user has placed during planning must stay.
        self._give_back(self.slurm.queue(), jobs)

    def _lent_beside_kept(self, queue: Mapping[JobId, QueueRow]) -> set[JobId]:
        """Return jobs with something lent beside the exclusions, which are their owners' again."""
        return {
            row.key
            for row in queue.values()
            if row.state == "PENDING" and not (row.is_held or row.requested_nodes)
            if (claim := self.ledger[row.key]).excluded.is_kept and claim.has_changed(row)
        }

    def _give_back(
        self,
        queue: Mapping[JobId, QueueRow],
        jobs: Collection[JobId],
        limits: Mapping[JobId, tuple[NodeName, ...]] | None = None,
    ) -> None:
        """Restore jobs of a queue that was just read; see `restore_jobs`."""
        from hadar_slurm.slurm.enforce.restore import restore_jobs

        returned = restore_jobs(self.slurm, self.ledger, queue, jobs, limits)
        for job, fault in returned:
            if not fault:
                log.info("job %s: original request restored, hold released", job)
            elif self._not_restored.get(job) != fault:
                log.warning("job %s: not yet restored: %s", job, fault)
        known = self._not_restored | dict(returned)
        self._not_restored = {job: fault for job, fault in known.items() if fault and job in queue}
        held = {job for job in queue if self.ledger[job].holds}
        is_common = held <= self._not_restored.keys() and all(fault for _, fault in returned)
        is_common &= len({job.partition("_")[0] for job in held}) >= _SEVERAL
        self.fault = f"no job can be restored: {known[min(held)]}" if is_common else ""

    def requeue_ended(self, seen: Observation) -> bool:
        """Requeue jobs that our signal ended or that failed early; return if there were any."""
        retried, ended_by_us = seen.of(Course.RETRIED), seen.of(Course.REQUEUED)
        if not retried and not ended_by_us:
            return False
        queue = self.slurm.queue()
        # Read again: a requeue would restart a job that was cancelled meanwhile.
        rows = [queue[job] for job in sorted([*ended_by_us, *retried]) if job in queue]
        rows = [r for r in rows if r.key not in retried or is_early_failure(r)]
        rows = [r for r in rows if r.key in retried or is_ended_by_us(r, self.ledger[r.key])]
        events, now_s = {}, self.now_s()
        for row in rows:
            # A priority of 0 shows that it was held as it ran.
            kind, retries = Kind.REQUEUE if row.priority else Kind.REQUEUE_HELD, row.key in retried
            events[row.key] = Event(kind=kind, row=row, now_s=now_s, retries=retries)
        try:
            faults = self.ledger.carry_out(self.slurm, events)
        except LedgerError as error:
            log.warning("%s", error)
            return False
        for row in rows:
            fault, run = faults.get(row.key), row.restarts + 1
            what = f"{signal_of(row).name} from hadard ended its run {run}"
            if row.key in retried:
                what = f"its run {run} failed early on {seen.jobs[row.key].failed_on}"
            result = "requeued" if fault is None else f"it cannot be requeued: {fault}"
            log.warning("job %s: %s; %s", row.key, what, result)
            if isinstance(fault, SlurmRefused):
                self.lost.add(row.key)
        return True

    def notify(self, to_notify: Mapping[JobId, updates.Notify]) -> None:
        """Print in the output of jobs why they ran before, or are to go on."""
        news = {job: notice for job, notice in to_notify.items() if job not in self._notified}
        self._notified = frozenset(to_notify)
        faults = self.slurm.change([*news.values()]) if news and self._may_notify else []
        if refused := [fault for fault in faults if isinstance(fault, SlurmRefused)]:
            self._may_notify = False
            log.warning("the output of jobs cannot be written to: %s", refused[0])

    def take_back_raced_holds(self, state: SlurmState) -> None:
        """Release running jobs whose hold raced with their start; the next round checks it."""
        raced = self.ledger.raced(state.queue.values())
        faults = self.ledger.carry_out(self.slurm, raced, must_be_written=False)
        for fault in faults.values():
            log.warning("cannot take back a hold: %s", fault)

    def release_into_queue(self, seen: Observation, begun: Collection[JobId]) -> None:
        """Release the jobs that are to wait in Slurm's queue and are held, within their limits.

        Where Slurm keeps the queue, all but those in `begun`: a job whose GPUs are not free yet is
        first in line for them only once it waits there. Jobs that wait for others in any case: of
        held jobs Slurm looks at dependencies once a minute.
        """
        jobs = [*seen.awaiting, *(seen.snapshot.jobs if seen.mode is Mode.STEER else ())]
        if not any(self.ledger[job.job_id].holds for job in jobs):
            return
        from hadar_slurm.placement.limits import limits

        cluster, queue = seen.snapshot.cluster, self.slurm.queue()
        self.ledger.see(self.slurm, queue.values())
        waiting = queue.keys() - set(begun)
        held = [
            job
            for job in jobs
            if job.job_id in waiting
            and queue[job.job_id].is_held_by_user
            and self.ledger[job.job_id].state is State.HELD
            and self._may_wait_unheld(job, cluster)
        ]
        some = as_many(held, RELEASED_WITHIN_S / 2, self.slurm.rpcs_per_s)
        wanted = limits(some, {}, (), cluster)
        lent = (k for k in wanted if not self.ledger[k].excluded.is_kept)
        if wanted:
            self._give_back(queue, wanted, {k: e for k in lent if (e := wanted[k].excluded)})

    def unsafe(self, seen: Observation) -> set[JobId]:
        """Return jobs that Slurm could start on a wrong type since their owners changed them."""
        return {
            job.job_id
            for job in seen.snapshot.jobs
            if self.ledger[job.job_id].excluded.is_kept
            and job.phase is Phase.QUEUED
            and not self._may_wait_unheld(job, seen.snapshot.cluster)
        } - seen.enrolled

    def _may_wait_unheld(self, job: Job, cluster: Cluster) -> bool:
        from hadar_slurm.placement.limits import may_wait_unheld

        is_kept = self.ledger[job.job_id].excluded.is_kept
        return may_wait_unheld(job, cluster, may_exclude=not is_kept)
