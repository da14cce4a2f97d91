"""A simulated job: its copies, their throughputs and its end."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from hadar_slurm.core.cluster import GpuType, JobId
from hadar_slurm.core.gang import Allocation, Gang
from hadar_slurm.core.job import Job, JobSpec, Phase, Progress
from hadar_slurm.errors import HadarError


class PhaseError(HadarError):
    """Internal: an impossible transition between a job's phases."""


# Steps below this are rounding: the job has finished.
_FRACTION = 1e-6


@dataclass(slots=True)
class SimCopy:
    """A running gang that trains from `ready_s` on; a node failure loses its `unsaved` steps."""

    gang: Gang
    throughput: float
    ready_s: float
    unsaved: float = 0.0


def least_steps(throughput: float) -> float:
    """Return the steps below which a job of this throughput has none left."""
    return _FRACTION * max(1.0, throughput)


@dataclass(slots=True, eq=False)
class SimJob:
    """One job's state in virtual time.

    While a job is in `Columns`, the numbers there are valid, and those here outdated.
    """

    spec: JobSpec
    phase: Phase = Phase.QUEUED
    copies: dict[int, SimCopy] = field(default_factory=dict)
    # All steps trained, lost ones included.
    trained_steps: float = 0.0
    # Steps lost by node failures, and by stops of jobs that cannot save.
    lost_steps: float = 0.0
    # GPU-seconds held, by type.
    service: dict[GpuType, float] = field(default_factory=dict)
    # GPU-seconds in which steps were trained.
    productive_gpu_s: float = 0.0
    restarts: int = 0
    has_run: bool = False
    # End of a forked job's last averaging, once all its steps are trained.
    aggregates_s: float | None = None
    # The job for a snapshot, and its allocation, until they change.
    _job: Job | None = field(default=None, init=False)
    _held: Allocation | None = field(default=None, init=False)

    @property
    def steps_done(self) -> float:
        """Return the steps trained and kept."""
        return self.trained_steps - self.lost_steps

    @property
    def aggregation_s(self) -> float:
        """Return the seconds that averaging the copies' parameters takes."""
        return self.spec.aggregation_cost_s if len(self.copies) > 1 else 0.0

    def as_job(self) -> Job:
        """Return the job for a snapshot."""
        if self._job is None:
            done = self.steps_done
            if self.aggregates_s is not None:
                # Until the averaging ends the job has not: keep at least one step left.
                done = max(0.0, min(done, self.spec.total_steps - 1.0))
            progress = Progress(done, self.restarts, tuple(sorted(self.service.items())))
            self._job = Job(self.spec, self.phase, progress, self.allocation)
        return self._job

    @property
    def allocation(self) -> Allocation:
        """Return what the job holds."""
        if self._held is None:
            self._held = Allocation.of({n: copy.gang for n, copy in self.copies.items()})
        return self._held

    def resume(self, progress: Progress) -> None:
        """Continue from a job's progress so far."""
        self.trained_steps = progress.steps_done
        self.restarts, self.service = progress.restarts, dict(progress.service_by_type)
        self.has_run = bool(progress.steps_done or progress.service_gpu_s)
        self._job = None

    def start(self, number: int, gang: Gang, throughput: float, *, ready_s: float) -> None:
        """Start a copy on a gang."""
        if not self.copies:
            self._move_to(Phase.RUNNING)
        self.restarts += self.has_run
        self.copies[number] = SimCopy(gang, throughput, ready_s)
        self._job = self._held = self.aggregates_s = None

    def stop(self, number: int, *, keeps_steps: bool = True) -> Gang:
        """Stop a copy; without `keeps_steps` it loses what it has not saved, without saves all."""
        copy = self.copies.pop(number)
        if not (self.copies or self.spec.can_checkpoint):
            self.lost_steps = self.trained_steps
        elif not keeps_steps:
            self.lost_steps += copy.unsaved
        if not self.copies:
            self._move_to(Phase.QUEUED)
        self._job = self._held = self.aggregates_s = None
        return copy.gang

    def finish_s(self, now_s: float) -> float:
        """Return when the job ends if its copies keep their GPUs."""
        if self.aggregates_s is not None:
            return self.aggregates_s
        return self.trained_s(now_s) + self.aggregation_s

    def trained_s(self, now_s: float) -> float:
        """Return when the last step is trained if the copies keep their GPUs."""
        left = self.spec.total_steps - self.steps_done
        if len(self.copies) == 1:
            (copy,) = self.copies.values()
            if copy.throughput <= 0:
                return math.inf
            return max(copy.ready_s, now_s) + max(0.0, left) / copy.throughput
        throughput, time_s = 0.0, now_s
        copies = sorted((max(c.ready_s, now_s), c.throughput) for c in self.copies.values())
        for ready_s, more in copies:
            if throughput > 0 and left <= throughput * (ready_s - time_s):
                break
            left -= throughput * (ready_s - time_s)
            throughput, time_s = throughput + more, ready_s
        return time_s + max(0.0, left) / throughput if throughput > 0 else math.inf

    def advance(self, now_s: float, to_s: float, *, trains_until_s: float | None = None) -> bool:
        """Train from `now_s` to `to_s`; return whether the job has ended by then.

        GPUs are held to the job's end or `to_s`; training stops at `trains_until_s`, if given.
        """
        until_s = to_s if trains_until_s is None else min(to_s, trains_until_s)
        held_s = max(0.0, min(to_s, self.finish_s(now_s)) - now_s)
        if self.aggregates_s is None:
            until_s = min(until_s, self.trained_s(now_s))
        for copy in self.copies.values():
            if self.aggregates_s is None:
                trains_s = max(0.0, until_s - max(copy.ready_s, now_s))
                copy.unsaved += trains_s * copy.throughput
                self.trained_steps += trains_s * copy.throughput
                self.productive_gpu_s += trains_s * copy.gang.num_gpus
            for gpu_type, count in copy.gang.gpus_by_type.items():
                self.service[gpu_type] = self.service.get(gpu_type, 0.0) + held_s * count
        self._job = None
        throughput = sum(copy.throughput for copy in self.copies.values())
        left = self.spec.total_steps - self.steps_done
        if left <= least_steps(throughput) and self.aggregates_s is None:
            self.aggregates_s = until_s + self.aggregation_s
        return self.aggregates_s is not None and self.aggregates_s <= to_s + 1e-9

    def end(self, phase: Phase) -> Iterable[Gang]:
        """End the job and return the gangs it held."""
        self._move_to(phase)
        gangs = [copy.gang for copy in self.copies.values()]
        self.copies.clear()
        self._job = self._held = self.aggregates_s = None
        return gangs

    def save(self, now_s: float) -> None:
        """End a round: average the copies' parameters and save their steps."""
        if self.aggregates_s is None:
            for copy in self.copies.values():
                copy.ready_s = max(copy.ready_s, now_s + self.aggregation_s)
        for copy in self.copies.values():
            copy.unsaved = 0.0

    def _move_to(self, phase: Phase) -> None:
        check_phase_move(self.spec.job_id, self.phase, phase)
        self.phase = phase


def check_phase_move(job_id: JobId, before: Phase, after: Phase) -> None:
    """Raise PhaseError where a job that has ended would go on."""
    if before.is_final and before is not after:
        raise PhaseError(f"job {job_id} cannot go from {before} to {after}")
