"""Mode `steer`: which nodes waiting jobs are limited to, and in what order a user's own stand.

Slurm keeps the queue: jobs are not held, and priority, QOS, limits, reservations, cores, power
saving and backfill are Slurm's. A job that is to start now, or is foreseen to start soon, is kept
off all nodes but its own, any other job off all nodes but those with its fastest GPU type. None of
them is made to require nodes (see `updates.Steer`), and jobs that cannot be limited so are placed
as in `hold`. Jobs of one user, partition and QOS exchange the places that they have, by nice
values; no place is taken from anyone else, but by a job whose GPUs hadard is about to free.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate

from hadar_slurm.core.cluster import JobId, NodeName
from hadar_slurm.core.gang import Gang
from hadar_slurm.core.job import Job, Phase
from hadar_slurm.core.snapshot import Snapshot
from hadar_slurm.core.time_limit import new_time_limit_s
from hadar_slurm.engine.actions import Action, Outcome, Renew, Start, Status, Stop
from hadar_slurm.engine.gaps import gapped
from hadar_slurm.engine.loan import joined
from hadar_slurm.engine.rate_limit import (
    MOST_CHANGES,
    RELEASED_WITHIN_S,
    at_once,
    changes_in,
    in_parts,
)
from hadar_slurm.errors import LedgerError, SlurmError, SlurmRefused
from hadar_slurm.jobspec.description import decode_or_none
from hadar_slurm.jobspec.mark import with_mark
from hadar_slurm.jobspec.request import Request
from hadar_slurm.placement.limits import Limit, limits
from hadar_slurm.slurm.client import updates
from hadar_slurm.slurm.client.parse import QueueRow
from hadar_slurm.slurm.client.state import SlurmState
from hadar_slurm.slurm.enforce.claim import Claim
from hadar_slurm.slurm.enforce.disposition import waits_for_gpus
from hadar_slurm.slurm.enforce.state_machine import Event, Kind
from hadar_slurm.slurm.strategies.hold import TOO_LATE, Pinning

log = logging.getLogger(__name__)

_CHANGED = "it has started, or its owner has changed it, since the plan was made"
_GAP = "plain jobs wait, and would take GPUs that are freed without a successor in the queue"
_LATER = "as many jobs are changed as a round may change; it is next"


@dataclass
class Steering(Pinning):
    """Carries out one round: steers waiting jobs, else does as `hold`."""

    # Foresees the starts of waiting jobs.
    foresee: Callable[[Snapshot], Mapping[JobId, Gang]]
    # `state`, with jobs that were read again.
    _now: SlurmState = field(init=False)
    _same: dict[tuple[int, ...], bool] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._now = self.state

    @cached_property
    def waiting(self) -> dict[JobId, Job]:
        """Return the jobs that wait in Slurm's queue, not held, for GPUs as their owners asked."""
        queued = (job for job in self.seen.snapshot.jobs if job.phase is Phase.QUEUED)
        rows = ((job, self._now.queue.get(job.job_id)) for job in queued)
        return {row.key: job for job, row in rows if row is not None and self._may_steer(row)}

    def _is_implied(self, job: JobId, gang: Gang) -> bool:
        """Return whether the nodes of a gang leave Slurm no choice of GPU types and numbers."""
        by_name, asked = self._now.cluster.by_name, self._now.queue[job].gpus_per_node
        return all(
            name in by_name
            and by_name[name].has_one_type
            and (not asked or number == sum(count for _, count in asked))
            for name, number in gang.gpus_by_node.items()
        )

    def steer(self, actions: Sequence[Action]) -> Mapping[Action, Outcome]:
        """Steer all waiting jobs; return the outcomes of what is done, or is not to be done.

        Done are the starts of jobs that get their gangs by naming the nodes alone.
        """
        plain = (row for row in self._now.queue.values() if row.key not in self.seen.alive)
        free, waits = self._now.free, any(map(waits_for_gpus, plain))
        forks = self.seen.forks.by_parent.items()
        copies = {task.seen.key: parent for parent, fork in forks for task in fork.copies}
        stay = {copies[a.job_id] for a in actions if isinstance(a, Renew) and a.job_id in copies}
        # Further copies may leave their GPUs to plain jobs.
        bound = [a for a in actions if not (isinstance(a, Stop) and copies.get(a.job_id) in stay)]
        gaps = gapped(bound, self.waiting.keys(), free) if waits else []
        outcomes: dict[Action, Outcome] = {a: Outcome(a, Status.DEFERRED, _GAP) for a in gaps}
        starts = [a for a in actions if isinstance(a, Start) and a.job_id in self.waiting]
        starts = [start for start in starts if self._is_implied(start.job_id, start.gang)]
        named = {start.job_id: start.gang for start in starts}
        more = self.waiting.keys() - named.keys()
        soon = self.foresee(self.seen.snapshot) if more else {}
        named |= {j: g for j, g in soon.items() if j in more and self._is_implied(j, g)}
        # A job that Slurm does not start on free GPUs lacks what only Slurm knows of.
        stuck = {job for job in self.waiting if self.pins.avoided(job, self.now_s())}
        before = {start: self.ledger[start.job_id].aimed for start in starts}
        urgent = {s.job_id for s in starts if any(free[slot] < n for slot, n in s.gang.slots)}
        wanted = limits(self.waiting.values(), named, stuck, self._now.cluster)
        faults = self._limit(wanted, list(named), urgent)
        for job in self.waiting.keys() - {start.job_id for start in starts}:
            self.pins.forget(job)
        for start in starts:
            fault = faults.get(start.job_id)
            is_refused = isinstance(fault, SlurmRefused) and not TOO_LATE.search(str(fault))
            status = Status.REFUSED if is_refused else Status.DEFERRED
            outcomes[start] = Outcome(start, status if fault else Status.DONE, str(fault or ""))
            if start.job_id in urgent:
                self.pins.forget(start.job_id)
            elif start.job_id not in self.pins or set(before[start]) != {*start.gang.gpus_by_node}:
                self.pins.begin(start.job_id, self.now_s())
        return outcomes

    def _limit(
        self, wanted: Mapping[JobId, Limit], first: Sequence[JobId], urgent: Collection[JobId]
    ) -> Mapping[JobId, str | SlurmError]:
        """Change what differs from Slurm's state, as far as a round may; return the faults."""
        from hadar_slurm.slurm.strategies.places import groups, nice_values

        most = int(min(MOST_CHANGES, changes_in(self.settings.slot_s, self.slurm.rpcs_per_s)))
        order, others = self._kept(wanted, first)
        rows = [self._now.queue[job] for job in order]
        nice = nice_values(
            groups(rows),
            first,
            {job: n for job, n in self._now.nice.items() if not self.ledger[job].nice.is_kept},
            lambda job, shown: self.ledger[job].nice.owner_of(shown),
            urgent,
            max((r.priority for r in self._now.queue.values() if r.state == "PENDING"), default=0),
        )
        self._same.clear()
        left = [job for job in others if self.ledger[job].steers][:most]
        most -= len(left)
        due, asked = dict[JobId, Event](), set(first)
        for row in rows:
            # What is beyond a round is answered only to those that are to start, or foreseen to.
            is_due = len(due) < most or row.key in asked
            if is_due and (e := self._event_of(row, wanted[row.key], nice.get(row.key))):
                due[row.key] = e
        faults: dict[JobId, str | SlurmError] = dict.fromkeys([*others, *[*due][most:]], _LATER)
        todo = [*due][:most]
        try:
            if left:
                from hadar_slurm.slurm.enforce.restore import restore_jobs

                restore_jobs(self.slurm, self.ledger, self._now.queue, left)
            self.ledger.announce({job: due[job] for job in todo})
            for some in in_parts(todo, at_once(self.slurm.rpcs_per_s)):
                faults |= self._change(some, wanted, nice)
                del todo[: len(some)]
            self.ledger.note({})
        except (SlurmError, LedgerError) as error:
            log.warning("%s", error)
            faults |= dict.fromkeys(todo, str(error))
        return faults

    def _kept(
        self, wanted: Mapping[JobId, Limit], first: Sequence[JobId]
    ) -> tuple[list[JobId], list[JobId]]:
        """Return the jobs to be steered, those that are next first, and the others.

        No more are steered at once than `hadar release` can give back in its time. Those with nodes
        on which they do not run are steered until they start: Slurm would choose these as well.
        """
        queue, ledger, rpcs_per_s = self._now.queue, self.ledger, self.slurm.rpcs_per_s
        room = changes_in(RELEASED_WITHIN_S, rpcs_per_s)
        changed = {job for job, row in queue.items() if ledger[job].has_changed(row)}
        known = (self.waiting[job] for job in wanted if job in changed) if room < math.inf else ()
        kept_off = limits(known, {}, changed, self._now.cluster)
        order = [*(job for job, limit in kept_off.items() if limit.excluded), *first]
        # One that has something lent keeps its place.
        order += sorted(wanted, key=lambda job: (job not in changed, -queue[job].priority))
        order = list(dict.fromkeys(order))
        costs = accumulate(1 + bool(wanted[k].aimed[1:] or ledger[k].sized.is_lent) for k in order)
        room -= len(changed - wanted.keys())
        number = sum(cost <= room for cost in costs)
        return order[:number], order[number:]

    def _change(
        self, jobs: Sequence[JobId], wanted: Mapping[JobId, Limit], nice: Mapping[JobId, int]
    ) -> dict[JobId, str | SlurmError]:
        """Change jobs that are still as they were when this was planned; return the faults."""
        planned = self._now.nice
        self.ledger.refresh()  # hadar release may have run
        self._now = self._now.updated(jobs, self.ledger.read_again(self.slurm, jobs))
        rows = {job: self._now.queue.get(job) for job in jobs}
        may = [job for job, row in rows.items() if row is not None and self._may_steer(row)]
        gone: dict[JobId, str | SlurmError] = dict.fromkeys(rows.keys() - may, _CHANGED)
        self._same.clear()
        events = {}
        for job in may:
            new_nice = nice.get(job) if self._now.nice.get(job) == planned.get(job) else None
            if event := self._event_of(self._now.queue[job], wanted[job], new_nice):
                events[job] = event
        faults = self.ledger.attempt(self.slurm, events)
        for fault in faults.values():
            log.info("not steered: %s", fault)
        return gone | faults

    def _may_steer(self, row: QueueRow) -> bool:
        """Return whether a job waits in Slurm's queue as its owner asked, but for what is lent."""
        claim, named = self.ledger[row.key], row.requested_nodes
        return (
            row.state == "PENDING"
            and not row.is_held
            and claim.asks_own(row)
            and not (claim.excluded.is_kept or claim.sized.is_kept)
            and (not named or claim.pins(named))
        )

    def _event_of(self, row: QueueRow, limit: Limit, nice: int | None) -> Event | None:
        job, claim, known = row.key, self.ledger[row.key], self._now.excluded.get(row.key)
        if known is None and claim.own is None and decode_or_none(row.comment) is None:
            return None  # what its owner excludes is shown nowhere else
        shown = claim.excluded.ours if known is None else known
        limit_s = self._time_limit_s(job, limit)
        own_excluded = self.ledger.excluded_by_owner(row, known)
        excludes = self._excludes(claim.excluded.ours, shown, limit.excluded, own_excluded)
        is_so = excludes and not row.requested_nodes and claim.aimed == limit.aimed
        is_stale = row.mark and with_mark(row.comment, row.mark, claim.lent) is not None
        if is_so and nice is None and limit_s is None and not is_stale:
            return None
        own, excluded = claim.own or self._now.request(row), joined(limit.excluded, own_excluded)
        number = _num_nodes(row, claim, own, limit)
        return Event(
            kind=Kind.STEER,
            row=row,
            own=own,
            steering=updates.Steer(job, excluded, number, nice, limit_s, bool(row.requested_nodes)),
            aimed=limit.aimed,
            shown=self._now.shown(job),
            own_excluded=own_excluded,
        )

    def _excludes(self, *nodes: tuple[NodeName, ...]) -> bool:
        """Return whether a job excludes what it should: `nodes` as `_event` has them.

        Thousands of jobs share a few tuples of hundreds of names, which are compared once.
        """
        # All of them live as long as the state and the claims do.
        key = tuple(map(id, nodes))
        if key not in self._same:
            claimed, shown, wanted, own = map(set, nodes)
            self._same[key] = claimed == shown == wanted | own
        return self._same[key]

    def _time_limit_s(self, job: JobId, limit: Limit) -> int | None:
        """Return the time limit that a job needs on the nodes that it may get; None: it has it."""
        if (by_type := self.seen.limits_s.get(job)) is None:
            return None
        waits, cluster, excluded = self.waiting[job], self._now.cluster, set(limit.excluded)
        names = limit.aimed or [
            node.name
            for node in cluster.nodes
            if waits.may_use(node.name) and node.name not in excluded
        ]
        gpu_types = {
            k for name in names if name in cluster.by_name for k, _ in cluster.by_name[name].gpus
        }
        return new_time_limit_s(by_type, gpu_types, self._now.limits_s.get(job, 0.0))


def _num_nodes(row: QueueRow, claim: Claim, own: Request, limit: Limit) -> str:
    """Return the number of nodes to be set; empty: it stays.

    Where a range such as 1-10000 is set, Slurm uses as many nodes as are free (22.05.8): a number
    is set only where fewer would do as well, the owner's only after another, or after a run.
    """
    least, number = own.num_nodes.partition("-")[0], len(limit.aimed)
    if number and str(number) != least:
        return f"{number}-{number}"
    return own.num_nodes if claim.sized.is_lent or row.requested_nodes or row.restarts else ""
