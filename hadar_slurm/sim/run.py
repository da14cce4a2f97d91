"""A job inside the simulator: its copies, how fast they train, when it will end."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from hadar_slurm.core.cluster import GpuType
from hadar_slurm.core.gang import Allocation, Gang
from hadar_slurm.core.job import Job, JobSpec, Phase, Progress, check_phase_move

# Steps below this are rounding: the job has finished.
_FRACTION = 1e-6


@dataclass(slots=True)
class SimCopy:
    """A gang at work; its steps count from `ready_s` on. `unsaved` would be lost with its node."""

    gang: Gang
    rate: float
    ready_s: float
    unsaved: float = 0.0


@dataclass(slots=True)
class Run:
    """One job's state in virtual time.

    `trained_steps` counts every step, `lost_steps` those that died with a node; the difference is
    the progress. `service` counts the GPU-seconds held, `productive_gpu_s` those of them in which
    steps were trained. `aggregates_s` is when the last aggregation of a forked job will be done,
    once all its steps are trained.
    """

    spec: JobSpec
    phase: Phase = Phase.QUEUED
    copies: dict[int, SimCopy] = field(default_factory=dict)
    trained_steps: float = 0.0
    lost_steps: float = 0.0
    service: dict[GpuType, float] = field(default_factory=dict)
    productive_gpu_s: float = 0.0
    restarts: int = 0
    has_run: bool = False
    aggregates_s: float | None = None
    _job: Job | None = None

    @property
    def steps_done(self) -> float:
        """Return the steps trained and kept."""
        return self.trained_steps - self.lost_steps

    @property
    def aggregation_s(self) -> float:
        """Return what making the copies' parameters one costs, as many copies as there are."""
        return self.spec.aggregation_cost_s if len(self.copies) > 1 else 0.0

    def job(self) -> Job:
        """Return the job as a snapshot shows it."""
        if self._job is None:
            done = self.steps_done
            if self.aggregates_s is not None:
                # What is not aggregated yet is not done, and a job without steps has ended.
                done = max(0.0, min(done, self.spec.total_steps - 1.0))
            self._job = Job(
                self.spec,
                self.phase,
                Progress(done, self.restarts, tuple(sorted(self.service.items()))),
                Allocation.of({number: copy.gang for number, copy in self.copies.items()}),
            )
        return self._job

    def start(self, number: int, gang: Gang, rate: float, *, ready_s: float) -> None:
        """Put a copy on a gang."""
        if not self.copies:
            self._move_to(Phase.RUNNING)
        self.restarts += self.has_run
        self.copies[number] = SimCopy(gang, rate, ready_s)
        self._changed()

    def stop(self, number: int, *, keeps_steps: bool = True) -> Gang:
        """Take a copy from its gang; without `keeps_steps`, its steps since the last save die."""
        copy = self.copies.pop(number)
        if not keeps_steps:
            self.lost_steps += copy.unsaved
        if not self.copies:
            self._move_to(Phase.QUEUED)
        self._changed()
        return copy.gang

    def finish_s(self, now_s: float) -> float:
        """Return when the job ends if its copies stay where they are."""
        if self.aggregates_s is not None:
            return self.aggregates_s
        return self.trained_s(now_s) + self.aggregation_s

    def trained_s(self, now_s: float) -> float:
        """Return when the last step is trained if the copies stay where they are."""
        left = self.spec.total_steps - self.steps_done
        if len(self.copies) == 1:
            (copy,) = self.copies.values()
            if copy.rate <= 0:
                return math.inf
            return max(copy.ready_s, now_s) + max(0.0, left) / copy.rate
        rate, time_s = 0.0, now_s
        for ready_s, more in sorted((max(c.ready_s, now_s), c.rate) for c in self.copies.values()):
            if rate > 0 and left <= rate * (ready_s - time_s):
                break
            left -= rate * (ready_s - time_s)
            rate, time_s = rate + more, ready_s
        return time_s + max(0.0, left) / rate if rate > 0 else math.inf

    def advance(self, now_s: float, to_s: float, *, trains_until_s: float | None = None) -> bool:
        """Train from `now_s` to `to_s` and say whether the job has ended by then.

        GPUs are held to the job's end or `to_s`; steps are trained to `trains_until_s` only, where
        given.
        """
        until_s = to_s if trains_until_s is None else min(to_s, trains_until_s)
        held_s = max(0.0, min(to_s, self.finish_s(now_s)) - now_s)
        if self.aggregates_s is None:
            until_s = min(until_s, self.trained_s(now_s))
        for copy in self.copies.values():
            if self.aggregates_s is None:
                trains_s = max(0.0, until_s - max(copy.ready_s, now_s))
                copy.unsaved += trains_s * copy.rate
                self.trained_steps += trains_s * copy.rate
                self.productive_gpu_s += trains_s * copy.gang.num_gpus
            for gpu_type, count in copy.gang.gpus_by_type.items():
                self.service[gpu_type] = self.service.get(gpu_type, 0.0) + held_s * count
        self._changed(keeps_aggregation=True)
        rate = sum(copy.rate for copy in self.copies.values())
        left = self.spec.total_steps - self.steps_done
        if left <= _FRACTION * max(1.0, rate) and self.aggregates_s is None:
            self.aggregates_s = until_s + self.aggregation_s
        return self.aggregates_s is not None and self.aggregates_s <= to_s + 1e-9

    def end(self) -> Iterable[Gang]:
        """Finish the job and return the gangs it held."""
        self._move_to(Phase.DONE)
        gangs = [copy.gang for copy in self.copies.values()]
        self.copies.clear()
        self._changed()
        return gangs

    def save(self, now_s: float) -> None:
        """End a round: what the copies have trained is made one and kept."""
        if self.aggregates_s is None:
            for copy in self.copies.values():
                copy.ready_s = max(copy.ready_s, now_s + self.aggregation_s)
        for copy in self.copies.values():
            copy.unsaved = 0.0

    def _changed(self, *, keeps_aggregation: bool = False) -> None:
        self._job = None
        if not keeps_aggregation:
            self.aggregates_s = None

    def _move_to(self, phase: Phase) -> None:
        check_phase_move(self.spec.job_id, self.phase, phase)
        self.phase = phase
