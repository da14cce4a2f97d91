"""Limits that keep jobs from starting though GPUs are free, learned from Slurm's reasons. Pure.

A job that hadard has pinned and released, and that waits for a limit of its array, user, QOS or
account, would sit on idle GPUs. It is held again, and a cap is learned from the reason: the limit
is less than the GPUs in use plus those of the denied job. Further jobs under the same limit are
planned only within the cap. An array's own throttle is read, and need not be learned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from hadar_slurm.core.cluster import JobId
from hadar_slurm.slurm.client.parse import HOLDING_STATES, QueueRow

ARRAY_REASON = "JobArrayTaskLimit"
# Limits that this job alone is above, or below, whatever else runs.
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


# What starts nothing for now, whatever runs.
_CLOSED = (Kind.JOB, Kind.PARTITION)


@dataclass(frozen=True, slots=True)
class Scope:
    """The jobs that one limit is for."""

    kind: Kind
    key: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Cap:
    """What is known of a limit: at most `most` jobs or GPUs, by Slurm's `reason`.

    It was learned, or last confirmed, `since_s`, when `usage` ran; one that `is_exact` was read.
    """

    most: int
    counts_jobs: bool
    reason: str
    since_s: float
    usage: int
    is_exact: bool = False


@dataclass(frozen=True, slots=True)
class ThrottleCandidate:
    """A job that could be planned, or that is pinned and starts; `gpus` are those that it needs."""

    row: QueueRow
    gpus: int


def kind_of(reason: str) -> Kind | None:
    """Return what the limit in a reason of Slurm's is for; None for a reason about nodes or time.

    A limit of an association may be the user's or a parent account's: Slurm does not say which, and
    other users of the account learn of it on their own.
    """
    if reason == ARRAY_REASON:
        return Kind.ARRAY
    if reason == "Licenses":
        return Kind.LICENSES
    if reason in ("PartitionDown", "PartitionInactive"):
        return Kind.PARTITION
    is_limit = reason.startswith(("QOS", "Assoc", "Max"))
    if reason.startswith(("Partition", "Invalid", "AccountNot")):
        return Kind.JOB
    if is_limit and any(word in reason for word in _JOB_WORDS):
        return Kind.JOB
    if reason.startswith("Assoc"):
        return Kind.USER_IN_ACCOUNT
    if is_limit and "PerAccount" in reason:
        return Kind.ACCOUNT_IN_QOS
    if reason.startswith("QOS"):
        return Kind.USER_IN_QOS if "PerUser" in reason else Kind.QOS
    return None


def scope_of(row: QueueRow, kind: Kind) -> Scope | None:
    """Return the jobs that a limit of this kind is for, this one among them."""
    array, _, task = row.key.partition("_")
    key: tuple[str, ...]
    match kind:
        case Kind.ARRAY:
            key = (array,) if task else ()
        case Kind.USER_IN_QOS:
            key = (row.user, row.qos)
        case Kind.ACCOUNT_IN_QOS:
            key = (row.account, row.qos)
        case Kind.QOS:
            key = (row.qos,)
        case Kind.USER_IN_ACCOUNT:
            key = (row.user, row.account)
        case Kind.LICENSES:
            key = tuple(sorted(row.licenses.split(","))) if row.licenses else ()
        case Kind.PARTITION:
            key = (row.partition,)
        case _:
            key = (row.key,)
    return Scope(kind, key) if key else None


@dataclass
class Throttles:
    """The memory of one daemon; what it loses in a restart it learns again. Times in seconds.

    After `retry_s` one job more than a cap allows is tried: the limit may have been raised.
    """

    retry_s: float
    _caps: dict[Scope, Cap] = field(default_factory=dict)
    _running: dict[Kind, tuple[Counter[Scope], Counter[Scope]]] = field(default_factory=dict)
    _rows: Sequence[tuple[QueueRow, int]] = ()
    _rows_before: Sequence[tuple[QueueRow, int]] = ()

    def observe(
        self,
        rows: Iterable[QueueRow],
        gpus: Mapping[JobId, int],
        denied: Iterable[ThrottleCandidate],
        arrays: Mapping[str, int],
        now_s: float,
    ) -> None:
        """Learn from a look at the queue.

        `gpus` are those that jobs hold, `denied` the jobs that a limit keeps from starting where we
        have pinned them, `arrays` the throttles of arrays, by their numbers.
        """
        self._running = {}
        self._rows_before = self._rows
        self._rows = [
            (row, gpus.get(row.key, 0))
            for row in rows
            if row.state in HOLDING_STATES and row.state != "COMPLETING"
        ]
        self._caps = {
            scope: cap
            for scope, cap in self._caps.items()
            if not cap.is_exact and self._used(scope, cap) <= cap.most
        }
        for array, most in arrays.items():
            scope = Scope(Kind.ARRAY, (array,))
            self._caps[scope] = Cap(most, True, ARRAY_REASON, now_s, most, is_exact=True)
        for candidate in denied:
            self._learn(candidate, now_s)

    def _learn(self, denied: ThrottleCandidate, now_s: float) -> None:
        kind = kind_of(denied.row.reason)
        scope = scope_of(denied.row, kind) if kind is not None else None
        before = self._caps.get(scope) if scope is not None else None
        if scope is None or (before is not None and before.is_exact):
            return
        reason = denied.row.reason
        counts_jobs = scope.kind in (Kind.ARRAY, Kind.LICENSES) or "Jobs" in reason
        cap = Cap(0, counts_jobs, reason, now_s, 0)
        # Slurm's reason may be of before the end of a job that the last look still saw.
        usage = max(self._used(scope, cap), self._used_before(scope, cap))
        most = usage + (1 if counts_jobs else max(1, denied.gpus)) - 1
        if scope.kind in _CLOSED:
            most = usage = 0
        elif before is not None and before.since_s == now_s:
            most = min(most, before.most)  # the smaller of two denied jobs is the tighter bound
        self._caps[scope] = Cap(most, counts_jobs, reason, now_s, usage)

    def left_out(
        self,
        queued: Iterable[ThrottleCandidate],
        starting: Iterable[ThrottleCandidate],
        now_s: float,
    ) -> dict[JobId, str]:
        """Return the jobs that are not to be planned, and why, in words for people.

        `queued` come in the order in which they are let in; `starting` are pinned already.
        """
        room = {scope: cap.most - self._used(scope, cap) for scope, cap in self._caps.items()}
        for candidate in starting:
            for scope, cap in self._of(candidate.row):
                room[scope] -= _need(candidate, cap)
        tries = {scope for scope, cap in self._caps.items() if self._is_due(scope, cap, now_s)}
        tries = {scope for scope in tries if room[scope] >= 0}
        found: dict[JobId, str] = {}
        for candidate in queued:
            caps = self._of(candidate.row)
            full = [
                (scope, cap)
                for scope, cap in caps
                if _need(candidate, cap) > room[scope] and scope not in tries
            ]
            if full:
                found[candidate.row.key] = _words(*full[0])
                continue
            for scope, cap in caps:
                need = _need(candidate, cap)
                if need > room[scope] or self._is_idle(scope, cap):
                    tries.discard(scope)
                room[scope] -= need
        return found

    def next_retry_s(self, now_s: float) -> float:
        """Return when a limit is next to be tried that is not tried now."""
        due = (cap.since_s + self.retry_s for cap in self._caps.values() if not cap.is_exact)
        return min((due_s for due_s in due if due_s > now_s), default=float("inf"))

    def keep(self, rows: Iterable[QueueRow]) -> None:
        """Forget limits that are for none of these jobs."""
        kinds = {scope.kind for scope in self._caps}
        known = {scope_of(row, kind) for row in rows for kind in kinds}
        self._caps = {scope: cap for scope, cap in self._caps.items() if scope in known}

    def _is_due(self, scope: Scope, cap: Cap, now_s: float) -> bool:
        """Return whether one job may be tried beyond a cap."""
        if cap.is_exact:
            return False
        return self._is_idle(scope, cap) or now_s >= cap.since_s + self.retry_s

    def _is_idle(self, scope: Scope, cap: Cap) -> bool:
        """Return whether nothing runs any more of what did when the cap was learned."""
        return self._used(scope, cap) == 0 and cap.usage > 0

    def _of(self, row: QueueRow) -> list[tuple[Scope, Cap]]:
        """Return the caps that a job is under."""
        if not self._caps:
            return []
        kinds = {scope.kind for scope in self._caps}
        scopes = [scope_of(row, kind) for kind in sorted(kinds)]
        return [(scope, self._caps[scope]) for scope in scopes if scope in self._caps]

    def _used(self, scope: Scope, cap: Cap) -> int:
        """Return the jobs that run under a limit, or their GPUs."""
        if scope.kind in _CLOSED:
            return 0
        jobs, gpus = self._counted(scope.kind)
        return jobs[scope] if cap.counts_jobs else gpus[scope]

    def _used_before(self, scope: Scope, cap: Cap) -> int:
        held = [gpus for row, gpus in self._rows_before if scope_of(row, scope.kind) == scope]
        return len(held) if cap.counts_jobs else sum(held)

    def _counted(self, kind: Kind) -> tuple[Counter[Scope], Counter[Scope]]:
        """Return the jobs that run, and their GPUs, by what limits of one kind are for."""
        if kind not in self._running:
            jobs: Counter[Scope] = Counter()
            gpus: Counter[Scope] = Counter()
            for row, held in self._rows:
                scope = scope_of(row, kind)
                if scope is not None:
                    jobs[scope] += 1
                    gpus[scope] += held
            self._running[kind] = jobs, gpus
        return self._running[kind]


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
