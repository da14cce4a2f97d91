"""Which nodes, GPU types and layouts a job may have, by its owner's words and what was learned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hadar_slurm.core.cluster import GpuType, Node, NodeName
from hadar_slurm.core.job import JobSpec, Shape, uniform_shapes
from hadar_slurm.core.throughput import Throughputs
from hadar_slurm.core.time_limit import format_time_limit, late_types, limits_by_type
from hadar_slurm.core.type_failures import Bar
from hadar_slurm.engine.modes import Mode
from hadar_slurm.engine.notices import Notices
from hadar_slurm.errors import JobSpecError
from hadar_slurm.jobspec.description import Description
from hadar_slurm.jobspec.estimator import Estimator, fitting_types
from hadar_slurm.slurm.client.protocol import Abilities
from hadar_slurm.slurm.client.state import SlurmState
from hadar_slurm.slurm.enforce.ledger import Ledger
from hadar_slurm.slurm.jobs.seen import SeenJob


class Choice(NamedTuple):
    """What one job may have."""

    shapes: tuple[Shape, ...]
    # Those that its owner allows; None for all.
    nodes: frozenset[NodeName] | None
    # The GPU types that nodes of the job must have.
    bound: frozenset[str]
    # The GPU types, in lower case, that it must not have after failures there.
    barred: Mapping[str, Bar]
    # On the cluster's GPU types, without the barred ones, and which of its owner's are not used.
    throughputs: Throughputs
    doubts: tuple[str, ...] = ()

    @property
    def bound_type(self) -> GpuType | None:
        """Return the one GPU type that it must have; None where there is no such one."""
        return GpuType(next(iter(self.bound))) if len(self.bound) == 1 else None


@dataclass(frozen=True, slots=True)
class Choices:
    """What jobs may have in this state of Slurm, where waiting jobs are treated as in `way`."""

    state: SlurmState
    way: Mode
    abilities: Abilities
    estimator: Estimator
    ledger: Ledger
    notices: Notices
    # Thousands of pending jobs differ in a few keys only.
    _runnable: dict[object, bool] = field(default_factory=dict)
    _bars: dict[object, dict[str, Bar]] = field(default_factory=dict)

    def of(self, seen: SeenJob) -> Choice:
        """Return what a job may have."""
        row, shapes = seen.row, self._shapes(seen)
        nodes = self._nodes_of(seen, shapes)
        barred = self._barred(seen, shapes, nodes)
        known = self.estimator.known(
            seen.description, row.user, self.state.cluster.gpus_by_type, without=barred
        )
        bound = self._bound_types(seen)
        return Choice(shapes, nodes, bound, barred, known.throughputs, known.doubts)

    def can_hold(self, seen: SeenJob, choice: Choice) -> bool:
        """Return whether nodes, open to work or not, could hold the job at a known throughput."""
        description, throughputs, bound = seen.description, choice.throughputs, choice.bound
        size_on, gangs = description.gpus_on, description.gangs
        key = (throughputs, description.gpus, choice.shapes, choice.nodes, bound, *gangs.items())
        if key not in self._runnable:

            def most(node: Node) -> int:
                """Return the GPUs of one type on a node; of copies 1 where the type's gang fits."""
                counts = ((k, n) for k, n in node.gpus if bound <= {k})
                able = [(k, n) for k, n in counts if throughputs.on(k, size_on(k)) > 0]
                if gangs:
                    able = [(k, description.gpus * (n >= size_on(k))) for k, n in able]
                return max([0, *(n for _, n in able)])

            counts = [most(node) for node in self._among(choice.nodes)]
            shapes = choice.shapes
            fits = (sum(n >= s.gpus_per_node for n in counts) >= s.nodes for s in shapes)
            self._runnable[key] = any(fits)
        return self._runnable[key]

    def _among(self, names: frozenset[NodeName] | None) -> list[Node]:
        return [n for n in self.state.cluster.nodes if names is None or n.name in names]

    def _nodes_of(self, seen: SeenJob, shapes: Sequence[Shape]) -> frozenset[NodeName] | None:
        """Return the nodes that the job's owner allows; None for all nodes.

        None of them, where only Slurm can read the constraint.
        """
        excluded = self.ledger.excluded_by_owner(seen.row, self.state.excluded.get(seen.key))
        try:
            most = max([1, *(shape.nodes for shape in shapes)])
            allowed = self.state.nodes_of(seen.row, most, excluded)
        except JobSpecError as error:
            self.notices.say(seen.key, f"is left to Slurm: {error}")
            return frozenset()
        if not (seen.is_pending and seen.is_enrolled):
            return allowed
        # It is placed by limits of its nodes alone: none where a type has to be chosen.
        mixed = {node.name for node in self.state.cluster.nodes if not node.has_one_type}
        names = {row.node.name for row in self.state.nodes} if allowed is None else allowed
        return frozenset(names - mixed) if mixed else allowed

    def _bound_types(self, seen: SeenJob) -> frozenset[str]:
        """Return the GPU types that nodes of the job must have."""
        row, claim = seen.row, seen.claim
        if self.abilities.keeps_types:
            return claim.named_types(row)
        # Slurm starts it with the request that it has.
        is_steered = self.way is Mode.STEER and seen.is_pending and not row.is_held
        return row.named_types if is_steered and claim.asks_own(row) else frozenset()

    def _barred(
        self, seen: SeenJob, shapes: Sequence[Shape], nodes: frozenset[NodeName] | None
    ) -> dict[str, Bar]:
        row, description = seen.row, seen.description
        if description.copies > 1 or not self.estimator.has_failed(description, row.user):
            return {}
        key = (row.user, row.comment, row.partition, row.features, row.request.num_nodes)
        if key not in self._bars:
            types = fitting_types(self._among(nodes), shapes)
            self._bars[key] = self.estimator.barred(description, row.user, types)
        # What it holds it keeps: another job of its workload has failed there.
        held = {name.lower() for name in seen.gang.gpus_by_type} if seen.gang else set()
        return {name: bar for name, bar in self._bars[key].items() if name not in held}

    def unfit(self, description: Description) -> dict[str, str]:
        """Return the GPU types that lack what the job needs of each GPU, and why."""
        if not (description.needs.memory_gb or description.needs.compute_capability):
            return {}
        why = {k: self.estimator.why_not(description, k) for k in self.state.cluster.gpus_by_type}
        return {str(name): text for name, text in why.items() if text}

    def limits_s(self, seen: SeenJob, spec: JobSpec) -> Mapping[str, float]:
        """Return the job's time limit in seconds by GPU type; {} where it says nothing."""
        on, own_s = seen.description.time_on, seen.limit_s
        is_known = on or self.estimator.counts_real_steps(seen.description, seen.row.user)
        if not own_s or not is_known or seen.description.copies > 1:
            return {}
        speeds, size = spec.throughputs, spec.num_gpus
        return limits_by_type(speeds, size, own_s, measured_on=on, most_s=seen.most_s)

    def in_time(
        self, seen: SeenJob, spec: JobSpec, steps_done: float, limits_s: Mapping[str, float]
    ) -> tuple[Throughputs, str]:
        """Return the job's throughputs where it would end within these limits; say why."""
        throughputs, left = spec.throughputs, spec.total_steps - steps_done
        if not limits_s:
            return throughputs, ""
        held, types = seen.gang.gpus_by_type if seen.gang else (), self.state.cluster.gpus_by_type
        late = late_types(throughputs, spec.num_gpus, left, limits_s, types, held)
        reasons = (
            f"what is left takes {format_time_limit(lasts_s)} on {name}, where its time limit is "
            f"{format_time_limit(limits_s[name])}"
            for name, lasts_s in sorted(late.items())
        )
        return throughputs.without(late.keys()), "; ".join(reasons)

    def _shapes(self, seen: SeenJob) -> tuple[Shape, ...]:
        """Return the layouts that the adapter can request for a job."""
        one = seen.description.shape
        return (one,) if one else uniform_shapes(seen.description.gpus)
