"""Which GPU types a workload must not have, by what its runs have shown on each: failures teach.

A run that fails within minutes of its start, on a GPU type on which its workload has never run,
counts against that type: out of memory first of all, but also a program without code for the type.
`barred` is the rule. The user is part of a workload, so no user's failures count for another's
jobs, and so is here the number of GPUs: what a GPU must hold depends on it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import NamedTuple

from hadar_slurm.core.throughput_model import Workload

# A run that lasts this long has loaded its model and data and has trained. Longer, and failures of
# other causes would count; shorter, and large models would still be loading.
EARLY_S = 300.0
# After a month a workload of the same name may need less, or the type may have got another driver:
# it is tried again, at the cost of one failure.
KEPT_S = 30 * 86400.0


class Work(NamedTuple):
    """What counts as the same work: a workload on a number of GPUs."""

    workload: Workload
    num_gpus: int


class Unsized(NamedTuple):
    """What is known of a job that gives no steps: its work, and its time limit in seconds.

    `asked_s` is the limit as its user gave it, `limit_s` the time on its fastest GPU type in which
    it trains as much as fits; inf without one.
    """

    work: Work
    asked_s: float = inf
    limit_s: float = inf


@dataclass(frozen=True, slots=True)
class TypeRecord:
    """What the runs of some work on one GPU type have shown; in s since the epoch, 0: never.

    Each method takes the time of one run, and the same run again changes nothing.
    """

    # The last run that completed, lasted `EARLY_S`, or measured its speed.
    ran_s: float = 0.0
    # The last such run after a failure: the cause of the failures before it is gone.
    fixed_s: float = 0.0
    # The last early failure, how long that run lasted, and the first one since `ran_s`.
    failed_s: float = 0.0
    lasted_s: float = 0.0
    failing_since_s: float = 0.0

    def with_run(self, at_s: float) -> TypeRecord:
        """Return the record after a run."""
        if at_s <= self.ran_s:
            return self
        is_fixed = self.is_failing and at_s > self.failed_s
        return replace(self, ran_s=at_s, fixed_s=at_s if is_fixed else self.fixed_s)

    def with_failure(self, at_s: float, lasted_s: float) -> TypeRecord:
        """Return the record after an early failure at a time, of a run that lasted `lasted_s`."""
        if at_s <= max(self.ran_s, self.failed_s):
            return self
        since_s = self.failing_since_s if self.is_failing else at_s
        return replace(self, failed_s=at_s, lasted_s=lasted_s, failing_since_s=since_s)

    @property
    def is_failing(self) -> bool:
        """Whether the last known run has failed."""
        return self.failed_s > self.ran_s

    def without_failure(self) -> TypeRecord:
        """Return the record without its failures."""
        return TypeRecord(ran_s=self.ran_s, fixed_s=self.fixed_s)


# By GPU type in lower case.
Records = Mapping[str, TypeRecord]
MemoryOf = Callable[[str], float | None]


class Bar(NamedTuple):
    """Why some work must not have a GPU type: its failure on `failed_on`, perhaps another type."""

    gpu_type: str
    failed_on: str
    failed_s: float
    lasted_s: float
    # The types on which it has run.
    ran_on: tuple[str, ...]

    def words(self, at: str) -> str:
        """Return the reason; `at` is the time of the failure as text."""
        there = "there" if self.failed_on == self.gpu_type else f"on {self.failed_on}"
        text = f"its workload failed {there} after {self.lasted_s:.0f} s on {at}"
        if self.ran_on:
            text += f" and has run on {', '.join(self.ran_on)}"
        if self.failed_on != self.gpu_type:
            text += "; this type is not known to have enough memory"
        return text


def standing(records: Records, memory_of: MemoryOf) -> frozenset[str]:
    """Return the types whose failures are the type's, by all that is known.

    A failure counts against a type on which the work has never run. Where it has, only a second
    failure counts, with a run on another type in between: the work has changed. A run on a type
    that follows a failure there shows that the cause was removed, so that former failures on types
    with as much memory count no more.
    """
    return frozenset(
        name
        for name, record in records.items()
        if record.is_failing
        and not any(
            record.failed_s < other.fixed_s and _has_as_much(name, than, memory_of)
            for than, other in records.items()
        )
        and (
            not record.ran_s
            or any(record.failing_since_s < r.ran_s < record.failed_s for r in records.values())
        )
    )


def barred(records: Records, could: Collection[str], memory_of: MemoryOf) -> dict[str, Bar]:
    """Return the types of `could`, those that a job may have otherwise, that it must not have.

    Allowed are the types on which its work has run, and untried ones with as much memory as the
    smallest of these, or of any memory if no failure can have come from memory. If it has run on
    none that the job could have: the untried ones with the most memory. If it has failed on all of
    them, none is barred: the fault is the program's.
    """
    failed = standing(records, memory_of)
    untried = [name for name in could if name not in failed]
    if not failed or not untried:
        return {}
    ran = sorted(name for name, r in records.items() if r.ran_s and name not in failed)
    allowed = _allowed(failed, ran, untried, memory_of) or _largest(untried, memory_of)
    last = max(failed, key=lambda name: (records[name].failed_s, name))
    return {
        name: Bar(name, on, records[on].failed_s, records[on].lasted_s, tuple(ran))
        for name in sorted(could)
        if name not in allowed
        for on in [name if name in failed else last]
    }


def _allowed(
    failed: Collection[str], ran: Collection[str], untried: Iterable[str], memory_of: MemoryOf
) -> set[str]:
    if not ran:
        return set()
    least = min((gb for name in ran if (gb := memory_of(name)) is not None), default=None)
    if least is not None and all((memory_of(name) or 0.0) >= least for name in failed):
        return set(untried)
    return {
        name
        for name in untried
        if name in ran
        or (least is not None and (gb := memory_of(name)) is not None and gb >= least)
    }


def _largest(names: Collection[str], memory_of: MemoryOf) -> set[str]:
    """Return the types with the most memory; all where none is known."""
    sizes = {name: gb for name in names if (gb := memory_of(name)) is not None}
    most = max(sizes.values(), default=None)
    return {name for name in names if most is None or sizes.get(name) == most}


def _has_as_much(name: str, than: str, memory_of: MemoryOf) -> bool:
    mine, others = memory_of(name), memory_of(than)
    return name == than or (mine is not None and others is not None and mine >= others)


@dataclass
class TypeRecords:
    """All records. `version` changes with them; `news` are not yet saved."""

    of_work: dict[Work, dict[str, TypeRecord]] = field(default_factory=dict)
    version: int = 0
    news: set[tuple[Work, str]] = field(default_factory=set)

    def ran(self, work: Work, gpu_type: str, at_s: float) -> None:
        """Record a run that has shown that the work runs on a type."""
        self._put(work, gpu_type, self._of(work, gpu_type).with_run(at_s))

    def failed(self, work: Work, gpu_type: str, at_s: float, lasted_s: float) -> None:
        """Record an early failure."""
        self._put(work, gpu_type, self._of(work, gpu_type).with_failure(at_s, lasted_s))

    @property
    def failing(self) -> dict[Work, Records]:
        """Return the records of all work of which the last run on some type has failed."""
        return {work: self.of_work[work] for work in self.of_work if self.is_failing(work)}

    def is_failing(self, work: Work) -> bool:
        """Return whether the last run of some work on any type has failed."""
        return any(record.is_failing for record in self.of_work.get(work, {}).values())

    def barred(self, work: Work, could: Collection[str], memory_of: MemoryOf) -> dict[str, Bar]:
        """Return the types of `could`, in lower case, that the work must not have."""
        return barred(self.of_work.get(work, {}), could, memory_of)

    def expire(self, now_s: float) -> None:
        """Forget the failures of more than `KEPT_S` ago."""
        old = [
            (work, gpu_type)
            for work, records in self.of_work.items()
            for gpu_type, record in records.items()
            if record.failed_s and now_s - record.failed_s > KEPT_S
        ]
        for work, gpu_type in old:
            self._put(work, gpu_type, self._of(work, gpu_type).without_failure())

    def _of(self, work: Work, gpu_type: str) -> TypeRecord:
        return self.of_work.get(work, {}).get(gpu_type, TypeRecord())

    def _put(self, work: Work, gpu_type: str, record: TypeRecord) -> None:
        if record != self._of(work, gpu_type):
            self.of_work.setdefault(work, {})[gpu_type] = record
            self.version += 1
            self.news.add((work, gpu_type))
