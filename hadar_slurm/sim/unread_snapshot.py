"""Snapshots of a simulation: their jobs are made only when they are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from hadar_slurm.core.cluster import Cluster, JobId, Slot
from hadar_slurm.core.gang import Allocation
from hadar_slurm.core.job import Job
from hadar_slurm.core.snapshot import Ended, GangRules, Snapshot


class UnreadJobs(NamedTuple):
    """The jobs of a snapshot: a function that returns them all, at any later time.

    The others are what the properties of these names would return for these jobs.
    """

    read: Callable[[], tuple[Job, ...]]
    running: Mapping[JobId, Allocation]
    others: tuple[Job, ...]
    spare: Mapping[Slot, int]


class UnreadSnapshot(Snapshot):
    """A snapshot whose `jobs` are made when they are first read.

    In most rounds within a round's length nothing but the queue is read.
    """

    @classmethod
    def of_parts(
        cls,
        now_s: float,
        cluster: Cluster,
        parts: UnreadJobs,
        *,
        occupied: tuple[tuple[Slot, int], ...] = (),
        rules: GangRules,
        ended: tuple[Ended, ...],
    ) -> Snapshot:
        """Return the snapshot of a cluster with the jobs in `parts`."""
        snapshot = cls.__new__(cls)
        snapshot.__dict__.update(
            now_s=now_s, cluster=cluster, occupied=occupied, rules=rules, ended=ended,
            running=parts.running, others=parts.others, spare=parts.spare, _read=parts.read,
        )  # fmt: skip
        return snapshot

    if not TYPE_CHECKING:

        @cached_property
        def jobs(self) -> tuple[Job, ...]:
            """Return the jobs, in canonical order."""
            return self._read()


def with_progress(snapshot: Snapshot, change: Callable[[Job], Job]) -> Snapshot:
    """Return the snapshot with each job changed in its spec and progress only."""
    return UnreadSnapshot.of_parts(
        snapshot.now_s,
        snapshot.cluster,
        UnreadJobs(
            read=lambda: tuple([change(job) for job in snapshot.jobs]),
            running=snapshot.running,
            others=tuple([change(job) for job in snapshot.others]),
            spare=snapshot.spare,
        ),
        occupied=snapshot.occupied,
        rules=snapshot.rules,
        ended=snapshot.ended,
    )
