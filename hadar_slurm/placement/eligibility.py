"""The nodes on which a job may start, and the GPUs that a plan may use."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from hadar_slurm.core.cluster import GpuType, Node, NodeName, Slot, summed
from hadar_slurm.core.job import Job
from hadar_slurm.core.snapshot import Snapshot


@dataclass(frozen=True)
class Eligibility:
    """Answers for one snapshot; the same question of like jobs is answered once."""

    snapshot: Snapshot
    _answers: dict[object, tuple[Node, ...]] = field(default_factory=dict)
    _fastest: dict[object, frozenset[GpuType]] = field(default_factory=dict)

    def nodes(self, job: Job, gpu_type: GpuType, *, is_mixed: bool) -> tuple[Node, ...]:
        """Return the nodes on which `job` may start on GPUs of `gpu_type`.

        On a node with several types the request must name one; a gang that mixes types
        (`is_mixed`) cannot. Where naming binds, a job that may migrate takes only its fastest type
        there, to avoid a permanent binding to a slow one.
        """
        rules = self.snapshot.rules
        may_name = not (is_mixed and rules.is_uniform) and (
            not rules.naming_binds
            or job.bound_type is not None
            or not job.spec.can_checkpoint
            or gpu_type in self.fastest_types(job)
        )
        key = (job.allowed_nodes, job.bound_type, gpu_type, may_name)
        if key not in self._answers:
            self._answers[key] = tuple(
                node
                for node in self.snapshot.cluster.nodes
                if node.is_schedulable
                and gpu_type in node.by_type
                and job.may_use(node.name)
                and job.bound_type in (None, gpu_type)
                and (node.has_one_type or may_name)
            )
        return self._answers[key]

    def fastest_types(self, job: Job) -> frozenset[GpuType]:
        """Return the GPU types on which a job trains fastest, of those that could hold its gang."""
        spec = job.spec
        key = (spec.throughputs, spec.shapes, spec.gangs, job.allowed_nodes)
        if key not in self._fastest:
            throughputs: dict[GpuType, float] = {}
            for shape in {s for k in self.snapshot.cluster.gpus_by_type for s in spec.shapes_on(k)}:
                num_nodes = Counter(
                    slot.gpu_type
                    for slot, count in self.snapshot.cluster.capacity.items()
                    if count >= shape.gpus_per_node and job.may_use(slot.node)
                )
                on, size, is_spread = spec.throughputs.on, shape.num_gpus, shape.nodes > 1
                for gpu_type, number in num_nodes.items():
                    if number >= shape.nodes and shape in spec.shapes_on(gpu_type):
                        throughput = on(gpu_type, size, is_spread=is_spread)
                        throughputs[gpu_type] = max(throughput, throughputs.get(gpu_type, 0.0))
            best = max(throughputs.values(), default=0.0)
            self._fastest[key] = frozenset(k for k, v in throughputs.items() if v >= best)
        return self._fastest[key]

    def capacity(self) -> dict[Slot, int]:
        """Return the GPUs that a plan may use: those held, and those on which a job may start.

        GPUs on which no job may start would mislead a choice that ignores single nodes.
        """
        held = summed(pair for job in self.snapshot.plannable for pair in job.allocation.slots)
        takeable: set[tuple[NodeName, GpuType]] = set()
        for job in self.snapshot.plannable:
            for gpu_type in self.snapshot.cluster.gpus_by_type:
                nodes = self.nodes(job, gpu_type, is_mixed=False)
                takeable |= {(node.name, gpu_type) for node in nodes}
        return {
            slot: count if slot in takeable else min(count, held[slot])
            for slot, count in self.snapshot.plannable_capacity.items()
        }
