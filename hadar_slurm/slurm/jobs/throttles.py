"""Limits that keep jobs from starting on free GPUs, learned from Slurm's reasons.

A pinned and released job that a limit of its array, user, QOS or account keeps pending would block
idle GPUs. It is held again, and a cap is learned from the reason: the limit is less than the GPUs
in use plus those of the denied job. Further jobs under the same limit are planned only within the
cap. An array's own throttle is read, not learned.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from hadar_slurm.core.cluster import JobId, natural_key
from hadar_slurm.core.job import Job, Phase
from hadar_slurm.slurm.client.parse import HOLDING_STATES, QueueRow
from hadar_slurm.slurm.client.state import SlurmState
from hadar_slurm.slurm.jobs.seen import Course, Treated

ARRAY_REASON = "JobArrayTaskLimit"
# Limits that the job alone violates, independent of running jobs.
_JOB_WORDS = ("PerJob", "PerNode", "QOSMin", "NotAllowed", "TimeLimit", "MaxWall")


class Kind(StrEnum):
    """What a limit is for, in words that follow "a limit of"."""

    ARRAY = "its array"
    USER_IN_QOS = "its user in its QOS"
    ACCOUNT_IN_QOS = "its account in its QOS"
    QOS = "its QOS"
    USER_IN_ACCOUNT = "its user in its account"
    LICENSES = "its licenses"
    PARTITION = "its partition"
    JOB = "this job"


_KIND_OF = {
    ARRAY_REASON: Kind.ARRAY,
    "Licenses": Kind.LICENSES,
    "PartitionDown": Kind.PARTITION,
    "PartitionInactive": Kind.PARTITION,
}
# What the jobs under one limit have in common; empty for a job without such a limit.
_KEY_OF: Mapping[Kind, Callable[[QueueRow], tuple[str, ...]]] = {
    Kind.ARRAY: lambda row: (row.key.partition("_")[0],) if row.key.partition("_")[2] else (),
    Kind.USER_IN_QOS: lambda row: (row.user, row.qos),
    Kind.ACCOUNT_IN_QOS: lambda row: (row.account, row.qos),
    Kind.QOS: lambda row: (row.qos,),
    Kind.USER_IN_ACCOUNT: lambda row: (row.user, row.account),
    Kind.LICENSES: lambda row: tuple(sorted(row.licenses.split(","))) if row.licenses else (),
    Kind.PARTITION: lambda row: (row.partition,),
    Kind.JOB: lambda row: (row.key,),
}
# Limits that keep jobs from starting independent of running jobs, and the others.
_CLOSED = (Kind.JOB, Kind.PARTITION)
_OPEN = tuple(kind for kind in Kind if kind not in _CLOSED)


@dataclass(frozen=True, slots=True)
class Scope:
    """The jobs that one limit is for."""

    kind: Kind
    key: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Cap:
    """A known limit."""

    # At most this number of jobs or GPUs.
    most: int
    counts_jobs: bool
    # In Slurm's words.
    reason: str
    # When it was learned or last confirmed.
    since_s: float
    # Jobs or GPUs that ran then.
    usage: int
    # Read from Slurm, not learned.
    is_exact: bool = False


@dataclass(frozen=True, slots=True)
class ThrottleCandidate:
    """A job that could be planned, or that is pinned and starting; it needs `gpus`."""

    row: QueueRow
    gpus: int


Candidates = Iterable[ThrottleCandidate]


def kind_of(reason: str) -> Kind | None:
    """Return what the limit in one of Slurm's reasons is for; None for one about nodes or time.

    A limit of an association may be the user's or a parent account's: Slurm does not say which. It
    is learned for each user of the account separately.
    """
    if reason in _KIND_OF:
        return _KIND_OF[reason]
    is_limit = reason.startswith(("QOS", "Assoc", "Max"))
    is_of_job = is_limit and any(word in reason for word in _JOB_WORDS)
    if is_of_job or reason.startswith(("Partition", "Invalid", "AccountNot")):
        return Kind.JOB
    if reason.startswith("Assoc"):
        return Kind.USER_IN_ACCOUNT
    if is_limit and "PerAccount" in reason:
        return Kind.ACCOUNT_IN_QOS
    if reason.startswith("QOS"):
        return Kind.USER_IN_QOS if "PerUser" in reason else Kind.QOS
    return None


def scope_of(row: QueueRow, kind: Kind) -> Scope | None:
    """Return the scope of a limit of this kind on a job; None where the job has none."""
    key = _KEY_OF[kind](row)
    return Scope(kind, key) if key else None


@dataclass
class Throttles:
    """The known limits of one daemon; after a restart it learns them again. Times in seconds."""

    # After this time one job more than a cap allows is tried: the limit may have been raised.
    retry_s: float
    caps: dict[Scope, Cap] = field(default_factory=dict)
    # The GPUs of each running job by scope, at this observation and the one before.
    _running: Mapping[Scope, list[int]] = field(default_factory=dict)
    _ran: Mapping[Scope, list[int]] = field(default_factory=dict)

    def observe(
        self,
        rows: Iterable[QueueRow],
        gpus: Mapping[JobId, int],
        denied: Candidates,
        arrays: Mapping[str, int],
        now_s: float,
    ) -> None:
        """Learn limits from the queue.

        `gpus` are the numbers that jobs hold, `denied` the pinned jobs that a limit keeps from
        starting, `arrays` the throttles of arrays, by array number.
        """
        self._ran, running = self._running, defaultdict(list)
        for row in rows:
            if row.state in HOLDING_STATES and row.state != "COMPLETING":
                for scope in filter(None, (scope_of(row, kind) for kind in _OPEN)):
                    running[scope].append(gpus.get(row.key, 0))
        self._running = running
        learned = {scope: cap for scope, cap in self.caps.items() if not cap.is_exact}
        self.caps = {s: cap for s, cap in learned.items() if self._used(s, cap) <= cap.most}
        for array, most in arrays.items():
            scope = Scope(Kind.ARRAY, (array,))
            self.caps[scope] = Cap(most, True, ARRAY_REASON, now_s, most, is_exact=True)
        for candidate in denied:
            self._learn(candidate, now_s)

    def _learn(self, denied: ThrottleCandidate, now_s: float) -> None:
        kind = kind_of(denied.row.reason)
        scope = scope_of(denied.row, kind) if kind is not None else None
        before = self.caps.get(scope) if scope is not None else None
        if scope is None or (before is not None and before.is_exact):
            return
        reason = denied.row.reason
        counts_jobs = scope.kind in (Kind.ARRAY, Kind.LICENSES) or "Jobs" in reason
        cap = Cap(0, counts_jobs, reason, now_s, 0)
        # Slurm's reason may be older than the end of a job of the last observation.
        usage = max(self._used(scope, cap), _amount(self._ran.get(scope, []), cap))
        most = usage + _need(denied, cap) - 1
        if scope.kind in _CLOSED:
            most = usage = 0
        elif before is not None and before.since_s == now_s:
            most = min(most, before.most)  # the smaller of two denied jobs is the tighter bound
        self.caps[scope] = Cap(most, counts_jobs, reason, now_s, usage)

    def left_out(self, queued: Candidates, starting: Candidates, now_s: float) -> dict[JobId, str]:
        """Return the jobs that are not to be planned, and why, in words for people.

        Room goes to `queued` in this order; `starting` are pinned already.
        """
        room = {scope: cap.most - self._used(scope, cap) for scope, cap in self.caps.items()}
        for candidate in starting:
            for scope, cap in self._of(candidate.row):
                room[scope] -= _need(candidate, cap)
        # One job may be tried beyond these.
        caps = [(s, cap) for s, cap in self.caps.items() if room[s] >= 0 and not cap.is_exact]
        tries = {
            s for s, cap in caps if now_s >= cap.since_s + self.retry_s or self._is_idle(s, cap)
        }
        found: dict[JobId, str] = {}
        for candidate in queued:
            needs = [(scope, cap, _need(candidate, cap)) for scope, cap in self._of(candidate.row)]
            full = [(s, cap) for s, cap, need in needs if need > room[s] and s not in tries]
            if full:
                found[candidate.row.key] = _words(*full[0])
                continue
            for scope, cap, need in needs:
                if need > room[scope] or self._is_idle(scope, cap):
                    tries.discard(scope)
                room[scope] -= need
        return found

    def next_retry_s(self, now_s: float) -> float:
        """Return the next time at which a limit that is not tried now may be tried."""
        due = (cap.since_s + self.retry_s for cap in self.caps.values() if not cap.is_exact)
        return min((due_s for due_s in due if due_s > now_s), default=float("inf"))

    def keep(self, rows: Iterable[QueueRow]) -> None:
        """Forget limits that apply to none of these jobs."""
        kinds = {scope.kind for scope in self.caps}
        known = {scope_of(row, kind) for row in rows for kind in kinds}
        self.caps = {scope: cap for scope, cap in self.caps.items() if scope in known}

    def learn(self, state: SlurmState, rows: Iterable[QueueRow], now_s: float) -> None:
        """Learn limits from the jobs that one keeps from starting on the nodes of their pins."""
        denied = [
            ThrottleCandidate(row, sum(n for _, n in row.gpus_per_node) * len(row.requested_nodes))
            for row in rows
        ]
        held = {job: gang.num_gpus for job, gang in state.gangs.items()}
        self.observe(state.queue.values(), held, denied, state.throttles, now_s)

    def marked(self, jobs: Sequence[Treated], now_s: float) -> list[Treated]:
        """Return the jobs, with `left_out` set on what policies see where a limit has no room."""
        if not self.caps:
            return [*jobs]
        planned = [(t.seen, t.job) for t in jobs if t.job and t.course is Course.PLANNED]
        # Room under a limit goes to jobs in order of submission.
        planned.sort(key=lambda pair: (pair[1].spec.submitted_s, natural_key(pair[1].job_id)))
        pending = [(seen.row, job) for seen, job in planned if seen.is_pending]
        queued, starting = (
            [ThrottleCandidate(row, job.spec.num_gpus) for row, job in pending if job.phase is p]
            for p in (Phase.QUEUED, Phase.STARTING)
        )
        self.keep(candidate.row for candidate in (*queued, *starting))
        why = self.left_out(queued, starting, now_s)

        def mark(job: Job) -> Job:
            return replace(job, left_out=True, remarks=(*job.remarks, why[job.job_id]))

        return [
            t._replace(job=mark(t.job)) if t.job is not None and t.job.job_id in why else t
            for t in jobs
        ]

    def _is_idle(self, scope: Scope, cap: Cap) -> bool:
        """Return whether all usage of when the cap was learned has ended."""
        return self._used(scope, cap) == 0 and cap.usage > 0

    def _of(self, row: QueueRow) -> list[tuple[Scope, Cap]]:
        """Return the caps that apply to a job."""
        scopes = (scope_of(row, kind) for kind in sorted({scope.kind for scope in self.caps}))
        return [(scope, self.caps[scope]) for scope in scopes if scope in self.caps]

    def _used(self, scope: Scope, cap: Cap) -> int:
        """Return the number of jobs that run under a limit, or of their GPUs."""
        return _amount(self._running.get(scope, []), cap)


def _amount(gpus: Sequence[int], cap: Cap) -> int:
    return len(gpus) if cap.counts_jobs else sum(gpus)


def _need(candidate: ThrottleCandidate, cap: Cap) -> int:
    return 1 if cap.counts_jobs else max(1, candidate.gpus)


def _words(scope: Scope, cap: Cap) -> str:
    if scope.kind is Kind.ARRAY:
        return f"left out: its array may run no more than {cap.most} tasks at once ({cap.reason})"
    if scope.kind in _CLOSED:
        return f"left out: Slurm does not start it ({cap.reason})"
    what = "jobs" if cap.counts_jobs else "GPUs"
    return (
        f"left out until a job ends: {scope.kind} has {cap.usage} {what}, and Slurm starts no more "
        f"({cap.reason})"
    )
