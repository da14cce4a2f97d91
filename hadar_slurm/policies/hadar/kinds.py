"""Jobs that differ only in their steps and their past: one kind."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from hadar_slurm.core.cluster import TypeIndex
from hadar_slurm.core.job import Job
from hadar_slurm.placement.allocator import Allocator
from hadar_slurm.policies.hadar import tuning

_SAME_COST = 1e-6  # Costs closer than this share are equal: the solver's rounding.


@dataclass(frozen=True, slots=True, eq=False)
class JobKind:
    """The throughputs of jobs of one kind; types by their index."""

    num_gpus: int
    # Steps/s on each type, 0 where the jobs may not run.
    steps_per_s: tuple[float, ...]
    # The types where they may run, the fastest first.
    by_speed: tuple[TypeIndex, ...]
    # Steps/s on the fastest type; 0: they run nowhere.
    best: float
    # The throughputs relative to the fastest type's.
    speeds: tuple[float, ...]
    # Steps/s on the fastest type of the cluster, in whose seconds beliefs are.
    unit: float

    @classmethod
    def of(cls, allocator: Allocator, job: Job) -> JobKind:
        """Return the kind of a job."""
        spec, gpu_types = job.spec, allocator.gpu_types
        steps_per_s = tuple(
            allocator.throughput(job, gpu_type) if allocator.may_use(job, gpu_type) else 0.0
            for gpu_type in gpu_types
        )
        ranked = sorted((-each, index) for index, each in enumerate(steps_per_s))
        best = max(steps_per_s, default=0.0)
        unit = best or 1.0
        return cls(
            spec.num_gpus,
            steps_per_s,
            tuple(i for each, i in ranked if each < 0),
            best,
            tuple(each / unit for each in steps_per_s),
            spec.throughputs.best(gpu_types, spec.num_gpus) or unit,
        )

    def wait_weight(self, job: Job) -> float:
        """Return what a second of a job's wait counts beside one of its run time.

        More if it is long on the mean although most alike end soon. Of stated size: insertion.py.
        """
        if job.belief is None:
            return tuning.LIMIT_WAIT_FACTOR if job.is_estimated else tuning.WAIT_FACTOR
        index_s = job.belief.left_s(job.progress.steps_done / self.unit)
        spread = job.steps_left / self.unit / index_s
        return max(tuning.WAIT_FACTOR, math.pow(spread, tuning.SPREAD_POWER))

    def costs(self, prices: tuple[float, ...] | None) -> dict[TypeIndex, float]:
        """Return by type the price of the work that the fastest type does in one second.

        The unit is the price of one second of the dearest type.
        """
        prices = prices or (0.0,) * len(self.steps_per_s)
        dearest = max(prices) or 1.0
        return {i: prices[i] / dearest * self.best / self.steps_per_s[i] for i in self.by_speed}


@dataclass(slots=True)
class Kinds:
    """The kinds of the jobs of one snapshot, each made once."""

    allocator: Allocator
    # By type, in seconds of the horizon per GPU-second; None: all GPUs are free of cost.
    prices: tuple[float, ...] | None = None
    _found: dict[object, JobKind] = field(default_factory=dict)
    _cheapest: dict[JobKind, tuple[TypeIndex, ...]] = field(default_factory=dict)

    def of(self, job: Job) -> JobKind:
        """Return the kind of a job."""
        like = self.allocator.like(job)
        if (found := self._found.get(like)) is None:
            found = self._found[like] = JobKind.of(self.allocator, job)
        return found

    def cheapest(self, kind: JobKind) -> tuple[TypeIndex, ...]:
        """Return the types that do the work of jobs of `kind` at the least cost, the fastest first.

        All of their types where GPUs are free of cost.
        """
        if (found := self._cheapest.get(kind)) is None:
            costs = kind.costs(self.prices)
            most = min(costs.values()) + _SAME_COST
            found = self._cheapest[kind] = tuple(i for i in kind.by_speed if costs[i] <= most)
        return found
