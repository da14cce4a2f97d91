"""Whether jobs wait, start, run or stop, and which nodes they avoid, in one state of Slurm."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property

from hadar_slurm.core.cluster import NodeName
from hadar_slurm.core.gang import Gang
from hadar_slurm.core.job import JobSpec, Phase
from hadar_slurm.slurm.client.parse import UNTYPED
from hadar_slurm.slurm.client.protocol import SlurmAdapter
from hadar_slurm.slurm.client.state import SlurmState
from hadar_slurm.slurm.enforce.pins import Pins
from hadar_slurm.slurm.jobs.seen import SeenJob
from hadar_slurm.slurm.jobs.throttles import is_denied

RUN_STATES = ("RUNNING", "CONFIGURING", "SIGNALING")
# A begin time within this number of seconds was set by hadard.
_SOON_S = 10.0
# For this number of seconds after a foreign requeue, Slurm may send the end of the last run to its
# nodes. When a node fails, Slurm requeues the job and tries for 10 s to reach the node; it kills a
# run that starts there meanwhile in place of the previous one (seen with 22.05.8).
_LATE_END_S = 15.0


@dataclass(frozen=True)
class Phases:
    """The phases of jobs in this state; `pins` remembers how long they have waited on nodes."""

    slurm: SlurmAdapter
    state: SlurmState
    pins: Pins
    grace_s: float

    def pinned_gang(self, seen: SeenJob) -> Gang | None:
        """Return the gang that hadard has pinned a pending job to, read back from its request."""
        row = seen.row
        if len(row.gpus_per_node) != 1 or not row.requested_nodes or row.gpus_otherwise:
            return None
        ((gpu_type, count),) = row.gpus_per_node
        counts: dict[tuple[str, str], int] = {}
        for name in row.requested_nodes:
            node = self.state.cluster.by_name.get(name)
            if node is None or (gpu_type == UNTYPED and not node.has_one_type):
                return None
            counts[name, node.gpus[0][0] if gpu_type == UNTYPED else gpu_type] = count
        return Gang.of(counts)

    def of_pending(
        self, seen: SeenJob, gang: Gang | None, barred: Collection[str]
    ) -> tuple[Phase | None, bool]:
        """Return the phase of a pending job, and whether it is stuck on the nodes of its pin.

        `gang` are the GPUs that it is pinned to.
        """
        row = seen.row
        if seen.is_for_later:
            return None, False
        is_barred = gang is not None and any(k.lower() in barred for k in gang.gpus_by_type)
        timed_out = gang is not None and (is_barred or self._has_pin_timed_out(seen, gang))
        # A foreign requeue delays a job by Slurm's two minutes.
        is_delayed = row.reason == "BeginTime" and row.started_s > seen.now_s + _SOON_S
        is_starting = gang is not None and not (
            row.is_held_by_user or is_delayed or timed_out or is_denied(seen)
        )
        is_pinned = bool(gang or row.request.is_cleared)
        is_stuck = is_pinned and not is_starting and not row.is_held_by_user
        return Phase.STARTING if is_starting else Phase.QUEUED, is_stuck

    def of_started(self, seen: SeenJob, spec: JobSpec) -> Phase | None:
        """Return the phase of a job that Slurm has started."""
        row, gang = seen.row, seen.gang
        # A job with whole nodes (--exclusive, or an exclusive partition) is never migrated.
        if gang is None or not spec.has_size_of(gang):
            return None
        if row.state == "COMPLETING":
            return Phase.STOPPING
        if row.state not in RUN_STATES:
            return None
        # Until it reports, its batch script may have no USR1 handler yet: USR1 would end it.
        is_signalled = not seen.description.restart_loss_s
        is_early = is_signalled and 0 <= seen.now_s - row.started_s < self.grace_s
        return Phase.STARTING if is_early and not seen.reports_run else Phase.RUNNING

    def check_steered(self, seen: SeenJob) -> None:
        """Let a job avoid the nodes that it was to start on and has not in time."""
        row, cluster, used = seen.row, self.state.cluster, self.state.in_use
        nodes = seen.claim.aimed
        self._avoid_reserved(seen, nodes)
        known = (cluster.by_name[name] for name in nodes if name in cluster.by_name)
        are_free = any(count > used[slot] for node in known for slot, count in node.slots)
        if not are_free:
            self.pins.forget(row.key)
        elif row.key in self.pins:
            self.pins.is_stuck(row.key, nodes, seen.now_s)

    def avoided(self, seen: SeenJob, phase: Phase) -> frozenset[NodeName]:
        """Return the nodes that a job must not get now, whatever its owner allows."""
        row, avoided = seen.row, self.pins.avoided(seen.key, seen.now_s)
        if phase is Phase.QUEUED and row.restarts > seen.claim.requeued:
            # A requeue counts as a submission.
            is_late = seen.now_s - row.submitted_s < _LATE_END_S
            chosen = row.requested_nodes or seen.claim.aimed
            avoided |= frozenset(chosen if is_late else ())
        return avoided

    def _has_pin_timed_out(self, seen: SeenJob, gang: Gang) -> bool:
        """Return whether a pending job cannot start, or has not in time, on its pinned nodes."""
        cluster, used, nodes = self.state.cluster, self.state.in_use, gang.gpus_by_node
        if not nodes.keys() <= cluster.open_names:
            return True
        if any(cluster.capacity.get(slot, 0) - used[slot] < count for slot, count in gang.slots):
            return True  # foreign jobs have taken the GPUs
        if seen.row.reason == "BadConstraints":  # Slurm then holds it by a priority of 0
            self.pins.avoid(seen.key, nodes, seen.now_s)
        self._avoid_reserved(seen, nodes)
        return self.pins.is_stuck(seen.key, nodes, seen.now_s)

    def _avoid_reserved(self, seen: SeenJob, nodes: Iterable[NodeName]) -> None:
        """Let a job avoid all reserved nodes if it would not end before one of its own is."""
        if seen.row.reservation or not seen.may_meet_reservation:
            return
        if not self._reserved.isdisjoint(nodes):
            self.pins.avoid(seen.key, self._reserved, seen.now_s)

    @cached_property
    def _reserved(self) -> frozenset[NodeName]:
        """Return the nodes of reservations, read when first needed."""
        return self.slurm.reserved_nodes()
