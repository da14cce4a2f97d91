"""Forecast of the start times of a snapshot's jobs, by simulation without further arrivals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.gang import Gang
from hadar_slurm.core.job import Job, Phase
from hadar_slurm.core.snapshot import Snapshot
from hadar_slurm.engine.actions import Action, Outcome, Start, Status
from hadar_slurm.engine.backend import Wake
from hadar_slurm.engine.loop import RoundRecord, run_rounds
from hadar_slurm.errors import HadarError
from hadar_slurm.policies.policy import Policy
from hadar_slurm.sim.backend import SimBackend


class Begin(NamedTuple):
    """When a queued job starts, in seconds from the snapshot, and on which gang."""

    in_s: float
    gang: Gang


def after(clock: Callable[[], float], limit_s: float) -> Callable[[], bool]:
    """Return a function that returns whether `limit_s` seconds have passed since now."""
    deadline_s = clock() + limit_s
    return lambda: clock() >= deadline_s


def begins(
    snapshot: Snapshot,
    policy: Policy,
    *,
    is_enough: Callable[[Mapping[JobId, Begin]], bool],
    round_s: float,
    is_late: Callable[[], bool],
    memory: object = None,
) -> dict[JobId, Begin]:
    """Return the starts of queued jobs, in their order, until those found are enough.

    All jobs have the snapshot's throughputs; no job arrives, no node fails, and unmanaged jobs keep
    their GPUs. A job is missing if it never starts, or was not found before `is_late`
    became true. `memory` goes to the policy, which sees the snapshot's times. Raises HadarError
    when a round fails.
    """
    world = _ForecastBackend(SimBackend.from_snapshot(snapshot), snapshot, is_enough, is_late)

    def check(record: RoundRecord) -> None:
        if record.errors:
            raise HadarError(f"the forecast fails: {'; '.join(record.errors)}")

    run_rounds(
        world,
        policy,
        check,
        length_s=round_s,
        now_s=lambda: snapshot.now_s + world.world.now_s,
        clock=lambda: 0.0,  # nobody reads how long the rounds of a forecast take
        memory=memory,
        is_logged=False,
    )
    return world.begun


@dataclass
class _ForecastBackend:
    """The simulated cluster at times that go on from the snapshot's, until enough have started."""

    world: SimBackend
    snapshot: Snapshot
    is_enough: Callable[[Mapping[JobId, Begin]], bool]
    is_late: Callable[[], bool]
    begun: dict[JobId, Begin] = field(default_factory=dict)

    def observe(self) -> Snapshot:
        found, begun_s = self.world.observe(), self.snapshot.now_s
        jobs = tuple(map(self._in_snapshot, found.jobs))
        return replace(found, now_s=begun_s + found.now_s, jobs=jobs, ended=())

    def apply(self, actions: Sequence[Action]) -> Sequence[Outcome]:
        outcomes = self.world.apply(actions)
        done = (outcome.action for outcome in outcomes if outcome.status is Status.DONE)
        for start in (action for action in done if isinstance(action, Start)):
            if self.snapshot.by_id[start.job_id].phase is Phase.QUEUED:
                self.begun.setdefault(start.job_id, Begin(self.world.now_s, start.gang))
        return outcomes

    def wait(self, until_s: float) -> Wake:
        """Advance, unless enough jobs have started, nothing runs, or time is up.

        If nothing runs, no job was started although all GPUs were free: it is assumed that those
        left can never start.
        """
        if self.is_enough(self.begun) or self.is_late() or not self.world.is_busy:
            return Wake.STOP
        return self.world.wait(until_s - self.snapshot.now_s)

    def _in_snapshot(self, job: Job) -> Job:
        """Return a simulated job with what the snapshot knows of it."""
        known = self.snapshot.by_id[job.job_id]
        return replace(
            known,
            phase=job.phase,
            progress=job.progress,
            allocation=job.allocation,
            bound_type=known.bound_type if job.phase is Phase.QUEUED else None,
            is_pinned=False,
        )
