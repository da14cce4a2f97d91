"""Which nodes, GPU types and layouts a job may have, by its owner's words and what was learned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from hadar_slurm.core.cluster import JobId, Node, NodeName
from hadar_slurm.core.gang import Gang
from hadar_slurm.core.job import JobSpec, Progress, Shape, uniform_shapes
from hadar_slurm.core.throughput import Throughputs
from hadar_slurm.core.time_limit import format_time_limit, late_types, limits_by_type
from hadar_slurm.core.type_failures import Bar
from hadar_slurm.errors import JobSpecError
from hadar_slurm.jobspec.description import Description
from hadar_slurm.jobspec.estimator import Estimator, fitting_types
from hadar_slurm.slurm.client.parse import QueueRow
from hadar_slurm.slurm.client.protocol import SlurmAdapter
from hadar_slurm.slurm.client.state import SlurmState
from hadar_slurm.slurm.enforce.ledger import Ledger
from hadar_slurm.slurm.enforce.modes import Mode
from hadar_slurm.slurm.jobs.enrolment import Enrolment
from hadar_slurm.slurm.jobs.notices import Notices


@dataclass
class Choices:
    """What jobs may have in one state of Slurm after another (`see`)."""

    slurm: SlurmAdapter
    estimator: Estimator
    ledger: Ledger
    enrolment: Enrolment
    notices: Notices
    # The time limit in seconds by GPU type, of jobs whose limit depends on it.
    limits_s: dict[JobId, Mapping[str, float]] = field(default_factory=dict)
    _state: SlurmState = field(init=False)
    _way: Mode = field(init=False)
    # Thousands of pending jobs differ in a few keys only.
    _runnable: dict[object, bool] = field(default_factory=dict)
    _bars: dict[object, dict[str, Bar]] = field(default_factory=dict)

    def see(self, state: SlurmState, way: Mode) -> None:
        """Answer for this state, in which waiting jobs are treated as in mode `way`."""
        self._state, self._way = state, way
        self._runnable, self._bars, self.limits_s = {}, {}, {}

    def can_run(self, row: QueueRow, description: Description) -> bool:
        """Return whether nodes, open to work or not, could hold the job at a known throughput."""
        shapes, bound = self.shapes(row, description), self.bound_types(row)
        throughputs, size_on = self.throughputs(row, description), description.gpus_on
        allowed = self.nodes_of(row, shapes)
        key = (throughputs, description.gpus, shapes, allowed, bound, *description.gangs.items())
        if key not in self._runnable:
            nodes = [n for n in self._state.cluster.nodes if allowed is None or n.name in allowed]

            def most(node: Node) -> int:
                """Return the GPUs of one type on a node; of copies 1 where the type's gang fits."""
                counts = ((k, n) for k, n in node.gpus if bound <= {k})
                able = [(k, n) for k, n in counts if throughputs.on(k, size_on(k)) > 0]
                if description.gangs:
                    able = [(k, description.gpus * (n >= size_on(k))) for k, n in able]
                return max([0, *(n for _, n in able)])

            counts = [most(node) for node in nodes]
            fits = (sum(n >= s.gpus_per_node for n in counts) >= s.nodes for s in shapes)
            self._runnable[key] = any(fits)
        return self._runnable[key]

    def nodes_of(self, row: QueueRow, shapes: Sequence[Shape]) -> frozenset[NodeName] | None:
        """Return the nodes that the job's owner allows; None for all nodes.

        None of them, where only Slurm can read the constraint.
        """
        excluded = self.ledger.excluded_by_owner(row, self._state.excluded.get(row.key))
        try:
            most = max([1, *(shape.nodes for shape in shapes)])
            allowed = self._state.nodes_of(row, most, excluded)
            return allowed if not self._is_steered_only(row) else self._of_one_type(allowed)
        except JobSpecError as error:
            self.notices.say(row.key, f"is left to Slurm: {error}")
            return frozenset()

    def _is_steered_only(self, row: QueueRow) -> bool:
        """Return whether a waiting job is placed by limits of its nodes alone."""
        return row.state == "PENDING" and self.enrolment.may_include(row)

    def _of_one_type(self, allowed: frozenset[NodeName] | None) -> frozenset[NodeName] | None:
        """Return the nodes where no type has to be chosen; None for all nodes."""
        mixed = {node.name for node in self._state.cluster.nodes if not node.has_one_type}
        if not mixed:
            return allowed
        names = {row.node.name for row in self._state.nodes} if allowed is None else allowed
        return frozenset(names - mixed)

    def bound_types(self, row: QueueRow) -> frozenset[str]:
        """Return the GPU types that nodes of the job must have."""
        claim = self.ledger[row.key]
        if self.slurm.abilities.keeps_types:
            return claim.named_types(row)
        # Slurm starts it with the request that it has.
        is_steered = self._way is Mode.STEER and row.state == "PENDING" and not row.is_held
        return row.named_types if is_steered and claim.asks_own(row) else frozenset()

    def throughputs(self, row: QueueRow, description: Description) -> Throughputs:
        """Return the job's throughputs on the cluster's GPU types, without the barred ones."""
        gpus_by_type = self._state.cluster.gpus_by_type
        barred = self.barred(row, description).keys()
        return self.estimator.throughputs(description, row.user, gpus_by_type, without=barred)

    def barred(self, row: QueueRow, description: Description) -> dict[str, Bar]:
        """Return the GPU types, in lower case, that the job must not have after failures there."""
        if description.copies > 1 or not self.estimator.has_failed(description, row.user):
            return {}
        key = (row.user, row.comment, row.partition, row.features, row.request.num_nodes)
        if key not in self._bars:
            shapes = self.shapes(row, description)
            allowed, cluster = self.nodes_of(row, shapes), self._state.cluster
            nodes = [n for n in cluster.nodes if allowed is None or n.name in allowed]
            types = fitting_types(nodes, shapes)
            self._bars[key] = self.estimator.barred(description, row.user, types)
        # What it holds it keeps: another job of its workload has failed there.
        gang = self._state.gangs.get(row.key)
        held = {name.lower() for name in gang.gpus_by_type} if gang is not None else set()
        return {name: bar for name, bar in self._bars[key].items() if name not in held}

    def unfit(self, description: Description) -> dict[str, str]:
        """Return the GPU types that lack what the job needs of each GPU, and why."""
        if not (description.needs.memory_gb or description.needs.compute_capability):
            return {}
        why = {k: self.estimator.why_not(description, k) for k in self._state.cluster.gpus_by_type}
        return {str(name): text for name, text in why.items() if text}

    def shapes(self, row: QueueRow, description: Description) -> tuple[Shape, ...]:
        """Return the layouts that the adapter can request for a job."""
        one = description.shape
        shapes = (one,) if one else uniform_shapes(description.gpus)
        if self.slurm.abilities.spreads:
            return shapes
        return tuple(shape for shape in shapes if str(shape.nodes) == row.request.num_nodes)

    def in_time(
        self,
        row: QueueRow,
        description: Description,
        spec: JobSpec,
        done: Progress,
        gang: Gang | None,
    ) -> tuple[JobSpec, str]:
        """Return the job without the GPU types on which it would not end in time; say why.

        Its time limit may depend on the type (`limits_by_type`).
        """
        own_s = self.ledger[row.key].limit_of_owner(self._state.limits_s.get(row.key, 0.0))
        time_on = description.time_on
        is_known = time_on or self.estimator.counts_real_steps(description, row.user)
        if not own_s or not is_known or description.copies > 1:
            return spec, ""
        most_s = self._state.most_s.get(row.key, 0.0)
        throughputs, size = spec.throughputs, spec.num_gpus
        limits_s = limits_by_type(throughputs, size, own_s, measured_on=time_on, most_s=most_s)
        if time_on:
            self.limits_s[row.key] = limits_s
        left = spec.total_steps - done.steps_done
        held = gang.gpus_by_type if gang is not None else ()
        late = late_types(throughputs, size, left, limits_s, self._state.cluster.gpus_by_type, held)
        if not late:
            return spec, ""
        reasons = (
            f"what is left takes {format_time_limit(lasts_s)} on {name}, where its time limit is "
            f"{format_time_limit(limits_s[name])}"
            for name, lasts_s in sorted(late.items())
        )
        return replace(spec, throughputs=throughputs.without(late.keys())), "; ".join(reasons)
