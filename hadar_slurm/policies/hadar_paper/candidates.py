"""The candidates of a job: each shape on each mix of GPU types, and staying in place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from itertools import chain, combinations, product, repeat

from hadar_slurm.core.cluster import GpuType, Slot
from hadar_slurm.core.gang import Gang
from hadar_slurm.core.job import Job, Phase, Shape
from hadar_slurm.placement.eligibility import Eligibility
from hadar_slurm.policies.hadar_paper.utility import Appraisal

# Above this many nodes a mixed gang takes two types at most, to limit the number of candidates.
_FULL_MIX_NODES = 4


@dataclass(frozen=True)
class Candidate:
    """One way to run `job` during the round."""

    job: Job
    gpus_per_node: int
    # The GPU type of each node of the gang, sorted.
    types: tuple[GpuType, ...]
    # Steps/s.
    throughput: float
    # The utility at the resulting finish, restart included. One restart is added to the value of
    # staying (our rule); otherwise the ILP would swap equal jobs for free.
    value: float
    # The gang of a candidate that stays in place.
    present: Gang | None = None

    @cached_property
    def usage(self) -> Mapping[GpuType, int]:
        """Return the GPUs it takes of each type."""
        if self.present is not None:
            return self.present.gpus_by_type
        return {gpu_type: n * self.gpus_per_node for gpu_type, n in Counter(self.types).items()}

    @cached_property
    def chunks(self) -> dict[tuple[GpuType, int], int]:
        """Return how many pieces of (type, GPUs on one node) it takes."""
        if self.present is None:
            return dict(Counter((gpu_type, self.gpus_per_node) for gpu_type in self.types))
        return dict(Counter((slot.gpu_type, count) for slot, count in self.present.slots))


# A gang on which a job could start: GPUs per node, the GPU type of each node, steps/s.
_Start = tuple[int, tuple[GpuType, ...], float]


@dataclass(frozen=True)
class CandidateSource:
    """Lists candidates of the jobs of one snapshot, given the usable GPUs of each slot."""

    reach: Eligibility
    appraisal: Appraisal
    free: Mapping[Slot, int]
    _known: dict[object, tuple[_Start, ...]] = field(default_factory=dict)

    @cached_property
    def _gpu_types(self) -> tuple[GpuType, ...]:
        return tuple(sorted({slot.gpu_type for slot, count in self.free.items() if count}))

    def of(self, job: Job) -> list[Candidate]:
        """Return the job's candidates, the most valuable first; staying wins ties."""
        return sorted(
            [*self.in_place(job), *self._new(job)],
            key=lambda c: (-c.value, c.present is None, len(c.types), c.types),
        )

    def in_place(self, job: Job) -> Iterator[Candidate]:
        """Yield the candidate that keeps the gang a job has, if it has one."""
        if job.phase is Phase.QUEUED:
            return
        for gang in job.allocation.gangs:
            if all(self.free.get(slot, 0) >= count for slot, count in gang.slots):
                throughput = gang.throughput(job.spec.throughputs)
                types = tuple(sorted(slot.gpu_type for slot, _ in gang.slots))
                # With an unknown throughput a job stays as long as no other job gains.
                value = self._value(job, throughput, restart_s=0.0) if throughput > 0 else 0.0
                if throughput > 0 and job.phase is Phase.RUNNING:
                    restart_s = job.spec.restart_cost_s
                    value = 2 * value - self._value(job, throughput, restart_s=restart_s)
                yield Candidate(job, 0, types, throughput, value, gang)

    def _new(self, job: Job) -> Iterator[Candidate]:
        if job.is_pinned_in_place:
            return
        # A job that has not run yet starts anywhere at the same cost.
        restart_s = job.spec.restart_cost_s if job.phase is Phase.RUNNING else 0.0
        value = cache(partial(self._value, job, restart_s=restart_s))
        for start in self._starts(job):
            yield Candidate(job, *start, value(start[-1]))

    def _starts(self, job: Job) -> tuple[_Start, ...]:
        """Return how `job` could start; many jobs have the same request."""
        spec, where = job.spec, (job.allowed_nodes, job.bound_type)
        key = (spec.throughputs, spec.shapes, spec.num_gpus, spec.can_checkpoint, where)
        if key not in self._known:
            throughput = partial(spec.throughputs.of_gang, num_gpus=spec.num_gpus)
            found = (
                (s.gpus_per_node, types, throughput(types, is_spread=s.nodes > 1))
                for s in spec.shapes
                for types in self._type_mixes(job, s)
            )
            self._known[key] = tuple(start for start in found if start[-1] > 0)
        return self._known[key]

    def _type_mixes(self, job: Job, shape: Shape) -> Iterator[tuple[GpuType, ...]]:
        most = len(self._gpu_types) if shape.nodes <= _FULL_MIX_NODES else 2
        if not self.reach.snapshot.rules.may_mix_types:
            most = 1
        own = (job.bound_type,) if job.bound_type is not None else self._gpu_types
        for number in range(1, min(most, len(own), shape.nodes) + 1):
            for gpu_types in combinations(own, number):
                # Every type has one node at least.
                most_nodes = shape.nodes - number + 1
                limits = (self._nodes_with(job, k, shape, number > 1) for k in gpu_types)
                for counts in product(*(range(1, min(n, most_nodes) + 1) for n in limits)):
                    if sum(counts) == shape.nodes:
                        yield tuple(chain.from_iterable(map(repeat, gpu_types, counts)))

    def _nodes_with(self, job: Job, gpu_type: GpuType, shape: Shape, is_mixed: bool) -> int:
        """Return how many nodes have the GPUs for a node of `shape` if no movable job ran."""
        nodes, least = self.reach.nodes(job, gpu_type, is_mixed=is_mixed), shape.gpus_per_node
        return sum(self.free.get(Slot(node.name, gpu_type), 0) >= least for node in nodes)

    def _value(self, job: Job, throughput: float, *, restart_s: float) -> float:
        return self.appraisal.value(job, restart_s + job.steps_left / throughput)
