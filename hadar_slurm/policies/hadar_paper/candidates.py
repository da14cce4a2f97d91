"""The ways a job could run: which shape on which GPU types, and staying where it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from typing import NamedTuple

from hadar_slurm.core.cluster import GpuType, Slot
from hadar_slurm.core.gang import Gang
from hadar_slurm.core.job import Job, Phase, Shape
from hadar_slurm.placement.eligibility import Eligibility
from hadar_slurm.policies.hadar_paper.utility import Appraisal

# Beyond this many nodes a mixed gang takes two types at most: every mix of more would be listed.
_FULL_MIX_NODES = 4


@dataclass(frozen=True)
class Candidate:
    """One way to run `job` during the round.

    `types` names the GPU type of each node of the gang, sorted; `present` is the gang itself when
    the candidate is to stay in place. `value` is the utility at the finish it leads to, restart
    included. Staying is worth another restart on top (ours): a job that is not chosen counts as 0,
    which would make it free to stop one for an equal other and start it again later. `throughput`
    is in steps/s.
    """

    job: Job
    gpus_per_node: int
    types: tuple[GpuType, ...]
    throughput: float
    value: float
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
            return {
                (gpu_type, self.gpus_per_node): n for gpu_type, n in Counter(self.types).items()
            }
        return dict(Counter((slot.gpu_type, count) for slot, count in self.present.slots))


class Way(NamedTuple):
    """A gang a job could start on: GPUs a node, the GPU type of each node, steps/s."""

    gpus_per_node: int
    types: tuple[GpuType, ...]
    throughput: float


@dataclass(frozen=True)
class CandidateSource:
    """Lists candidates of the jobs of one snapshot, given what may be taken of each slot."""

    reach: Eligibility
    appraisal: Appraisal
    free: Mapping[Slot, int]
    _known: dict[object, tuple[Way, ...]] = field(default_factory=dict)

    @cached_property
    def _kinds(self) -> tuple[GpuType, ...]:
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
            throughput = gang.throughput(job.spec.throughputs)
            types = tuple(sorted(slot.gpu_type for slot, _ in gang.slots))
            fits = all(self.free.get(slot, 0) >= count for slot, count in gang.slots)
            if fits:
                # Where the rate is unknown, a job stays for as long as nobody else gains.
                value = self._value_of_staying(job, throughput) if throughput > 0 else 0.0
                yield Candidate(job, 0, types, throughput, value, gang)

    def _value_of_staying(self, job: Job, throughput: float) -> float:
        """Return the value of `job` at `throughput`; if it runs, plus the value a restart costs."""
        value = self._value(job, throughput, restart_s=0.0)
        if job.phase is not Phase.RUNNING:
            return value
        return 2 * value - self._value(job, throughput, restart_s=job.spec.restart_cost_s)

    def _new(self, job: Job) -> Iterator[Candidate]:
        if job.is_pinned_in_place:
            return
        # A job that has not run yet starts anywhere at the same cost.
        restart_s = job.spec.restart_cost_s if job.phase is Phase.RUNNING else 0.0
        ways = self._ways(job)
        values = {
            throughput: self._value(job, throughput, restart_s=restart_s)
            for throughput in {w.throughput for w in ways}
        }
        for way in ways:
            yield Candidate(job, *way, values[way.throughput])

    def _ways(self, job: Job) -> tuple[Way, ...]:
        """Return how `job` could start; many jobs ask for the same."""
        spec = job.spec
        key = (
            spec.throughputs,
            spec.shapes,
            spec.num_gpus,
            spec.can_checkpoint,
            job.allowed_nodes,
            job.bound_type,
        )
        if key not in self._known:
            self._known[key] = tuple(
                Way(shape.gpus_per_node, types, throughput)
                for shape in spec.shapes
                for types in self._type_mixes(job, shape)
                if (
                    throughput := spec.throughputs.of_gang(
                        types, spec.num_gpus, is_spread=shape.nodes > 1
                    )
                )
                > 0
            )
        return self._known[key]

    def _type_mixes(self, job: Job, shape: Shape) -> Iterator[tuple[GpuType, ...]]:
        most = len(self._kinds) if shape.nodes <= _FULL_MIX_NODES else 2
        if not self.reach.snapshot.rules.may_mix_types:
            most = 1
        own = (job.bound_type,) if job.bound_type is not None else self._kinds
        for num_kinds in range(1, min(most, len(own), shape.nodes) + 1):
            for gpu_types in combinations(own, num_kinds):
                limits = [
                    self._nodes_with(job, gpu_type, shape.gpus_per_node, is_mixed=num_kinds > 1)
                    for gpu_type in gpu_types
                ]
                for counts in _splits(shape.nodes, limits):
                    yield tuple(
                        gpu_type
                        for gpu_type, n in zip(gpu_types, counts, strict=True)
                        for _ in range(n)
                    )

    def _nodes_with(self, job: Job, gpu_type: GpuType, gpus: int, *, is_mixed: bool) -> int:
        """Return how many nodes could give a job `gpus` of `gpu_type` if no movable job ran."""
        nodes = self.reach.nodes(job, gpu_type, is_mixed=is_mixed)
        return sum(self.free.get(Slot(node.name, gpu_type), 0) >= gpus for node in nodes)

    def _value(self, job: Job, throughput: float, *, restart_s: float) -> float:
        return self.appraisal.value(job, restart_s + job.steps_left / throughput)


def _splits(total: int, limits: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield the ways to write `total` as a sum of one count per limit, each from 1 to its limit."""
    first, *others = limits
    if not others:
        if 1 <= total <= first:
            yield (total,)
        return
    least = max(1, total - sum(others))
    for count in range(least, min(first, total - len(others)) + 1):
        for rest in _splits(total - count, others):
            yield (count, *rest)
