"""Several copies of a job, each a whole gang on a node of its own (HadarE)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count

from hadar_slurm.core.cluster import GpuType
from hadar_slurm.core.gang import Allocation, Gang
from hadar_slurm.core.job import Job, JobSpec, Phase, Shape
from hadar_slurm.core.throughput import GangThroughput, Throughputs
from hadar_slurm.placement.allocator import Allocator

# A measured throughput within this fraction of the expected one changes nothing.
_NEAR = 0.1


@dataclass(frozen=True, slots=True)
class Copies:
    """Places copies with an allocator."""

    allocator: Allocator

    def places(
        self, job: Job, gpu_types: Sequence[GpuType], gangs: Sequence[Gang]
    ) -> Iterator[Gang]:
        """Yield where copies could go, each on a node of its own; held places before tight fits."""
        free = self.allocator.free
        taken = {node for gang in gangs for node in gang.gpus_by_node}
        held = [gang for gang in held_by(job).gangs if not gang.is_spread]
        for gpu_type in gpu_types:
            size = job.spec.gpus_on(gpu_type)
            slots = [slot for slot in self.allocator.slots_for(job, gpu_type) if free[slot] >= size]
            slots.sort(key=lambda slot: free[slot])
            for gang in [
                *(gang for gang in held if gpu_type in gang.gpus_by_type and self.is_free(gang)),
                *(Gang.of({slot: size}) for slot in slots),
            ]:
                if taken.isdisjoint(gang.gpus_by_node):
                    taken.update(gang.gpus_by_node)
                    yield gang

    def is_free(self, gang: Gang) -> bool:
        """Return whether all GPUs of a gang are free."""
        return self.allocator.fits(Allocation.rigid(gang))

    def give(self, job: Job, gangs: Sequence[Gang]) -> None:
        """Give a job these gangs instead of what it was given; those it holds keep their number."""
        if job.job_id in self.allocator.placed:
            self.allocator.take_back(job)
        numbers = {gang: number for number, gang in held_by(job).copies}
        copies = {numbers[gang]: gang for gang in gangs if gang in numbers}
        unused = (number for number in count() if number not in copies)
        copies |= dict(zip(unused, [gang for gang in gangs if gang not in numbers], strict=False))
        self.allocator.put(job, Allocation.of(copies))


def held_by(job: Job) -> Allocation:
    """Return what a job holds; a queued one's allocation is history."""
    return Allocation() if job.phase is Phase.QUEUED else job.allocation


def with_one_copy(job: Job, gpu_type: GpuType) -> Job:
    """Return a job as if, of what it holds, it had one copy on `gpu_type` at most.

    A gang over several nodes excludes further copies: a job that may fork releases it.
    """
    gangs = [gang for gang in held_by(job).gangs if not (may_fork(job) and gang.is_spread)]
    gang = next((gang for gang in gangs if gpu_type in gang.gpus_by_type), None)
    return replace(job, allocation=Allocation.rigid(gang) if gang else Allocation())


def may_fork(job: Job) -> bool:
    """Return whether a job may ever have several copies."""
    spec = job.spec
    has_shape = Shape(1, spec.num_gpus) in spec.shapes
    return spec.max_copies > 1 and spec.can_checkpoint and has_shape


def restart_s(job: Job) -> float:
    """Return the seconds that starting a copy costs: 0 if the job never ran."""
    has_run = job.phase is Phase.RUNNING or job.progress.steps_done > 0
    return job.spec.restart_cost_s if has_run or job.progress.service_gpu_s > 0 else 0.0


def measured_throughputs(spec: JobSpec, speeds: Mapping[str, float]) -> Throughputs:
    """Return a job's steps/s by GPU type, where `speeds` are what its copies have measured.

    A type without a measurement keeps its proportion to the measured types. A measurement near
    the described value does not replace it: noise would make equal jobs differ, and swap GPUs
    every round.
    """
    said = {k: spec.throughput_on(k) for k in spec.throughputs.gpu_types}
    ratios = [speed / said[k] for k, speed in speeds.items() if said.get(k, 0.0) > 0]
    factor = sum(ratios) / len(ratios) if ratios else 1.0
    factor = 1.0 if _agree(factor, 1.0) else factor
    scaled = {k: speed * factor for k, speed in said.items()}
    news = {k: speed for k, speed in speeds.items() if not _agree(speed, scaled.get(k, 0.0))}
    found = scaled | news
    return Throughputs.of({(k, spec.gpus_on(k)): GangThroughput(v) for k, v in found.items()})


def _agree(measured: float, expected: float) -> bool:
    return abs(measured - expected) <= _NEAR * expected
