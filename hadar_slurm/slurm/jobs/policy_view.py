"""Makes of a managed job the job that policies see: its request, progress, phase and remarks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from hadar_slurm.core.cluster import NodeName
from hadar_slurm.core.gang import Allocation, Gang
from hadar_slurm.core.job import Job, JobSpec, Phase, Progress, SizeBelief
from hadar_slurm.core.moves import MovedBy, requeue_remark
from hadar_slurm.core.type_failures import Bar
from hadar_slurm.engine.pins import Pins
from hadar_slurm.jobspec.description import Submitted, job_spec
from hadar_slurm.jobspec.estimator import words
from hadar_slurm.slurm.client.parse import NOTHING, UNTYPED, QueueRow
from hadar_slurm.slurm.client.protocol import SlurmAdapter
from hadar_slurm.slurm.client.state import SlurmState
from hadar_slurm.slurm.enforce.claim import Claim
from hadar_slurm.slurm.enforce.stoppable import kept_part, why_not_migrated, with_loss
from hadar_slurm.slurm.jobs.choices import Choice, Choices
from hadar_slurm.slurm.jobs.ended_jobs import ClaimChecks, LearnedSizes
from hadar_slurm.slurm.jobs.reports import Reports
from hadar_slurm.slurm.jobs.seen import Course, SeenJob, Treated

_RUN_STATES = ("RUNNING", "CONFIGURING", "SIGNALING")
# A begin time within this number of seconds was set by hadard.
_SOON_S = 10.0
# For this number of seconds after a foreign requeue, as of a failed node, Slurm may still end the
# last run on its nodes, and would kill the next one there (docs/slurm.md).
_LATE_END_S = 15.0


def is_denied(row: QueueRow, claim: Claim) -> bool:
    """Return whether a limit keeps a job from starting on the nodes of its pin."""
    if row.state != "PENDING" or row.is_held or not claim.pins(row.requested_nodes):
        return False
    from hadar_slurm.slurm.jobs.throttles import kind_of

    return kind_of(row.reason) is not None


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
        # It waits for another job or, held, for a begin time of its user.
        if row.dependency or (row.is_held_by_user and row.begins_later(seen.now_s)):
            return None, False
        is_barred = gang is not None and any(k.lower() in barred for k in gang.gpus_by_type)
        timed_out = gang is not None and (is_barred or self._has_pin_timed_out(seen, gang))
        # A foreign requeue delays a job by Slurm's two minutes.
        is_delayed = row.reason == "BeginTime" and row.started_s > seen.now_s + _SOON_S
        is_starting = gang is not None and not (
            row.is_held_by_user or is_delayed or timed_out or is_denied(row, seen.claim)
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
        if row.state not in _RUN_STATES:
            return None
        # Until it reports, its batch script may have no USR1 handler yet: USR1 would end it.
        is_signalled = not (seen.description.restart_loss_s or seen.description.signal)
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
        row, excluded = seen.row, seen.claim.excluded
        if row.reason == "BadConstraints" and seen.claim.holds and excluded.is_lent:
            nodes = seen.claim.aimed or self.state.cluster.by_name.keys() - {*excluded.ours}
            self.pins.avoid(seen.key, nodes, seen.now_s, is_final=True)
        avoided = self.pins.avoided(seen.key, seen.now_s)
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
            self.pins.avoid(seen.key, nodes, seen.now_s, is_final=True)
        self._avoid_reserved(seen, nodes)
        return self.pins.is_stuck(seen.key, nodes, seen.now_s)

    def _avoid_reserved(self, seen: SeenJob, nodes: Iterable[NodeName]) -> None:
        """Let a job avoid all reserved nodes if it would not end before one of its own is."""
        if seen.row.reservation or not seen.row.may_meet_reservation:
            return
        if not self._reserved.isdisjoint(nodes):
            self.pins.avoid(seen.key, self._reserved, seen.now_s)

    @cached_property
    def _reserved(self) -> frozenset[NodeName]:
        """Return the nodes of reservations, read when first needed."""
        return self.slurm.reserved_nodes()


@dataclass(frozen=True, slots=True)
class PolicyView:
    """The jobs of one round as policies see them."""

    state: SlurmState
    choices: Choices
    phases: Phases
    reports: Reports
    checks: ClaimChecks
    sizes: LearnedSizes
    # Fair-share factors by account and user.
    shares: Mapping[tuple[str, str], float]
    # Whether hadard places jobs in this mode.
    places: bool
    restart_cost_s: float

    def managed(self, seen: SeenJob, choice: Choice) -> Treated:
        """Return a managed job, with a `job` where policies are to see it."""
        found = Treated(seen, Course.PLANNED)
        if seen.key in self.state.unlisted:
            text = f"is left out: {seen.gang} is not what Slurm lists of its nodes"
            self.choices.notices.say(seen.key, text)
        elif len(choice.bound) <= 1:
            found = self._placed(seen, choice)
        if found.job is None and seen.parent is None and seen.row.dependency and seen.claim.holds:
            nodes = self._allowed_nodes(seen, choice, Phase.QUEUED)
            job = Job(self._spec(seen, choice), allowed_nodes=nodes, bound_type=choice.bound_type)
            return found._replace(course=Course.AWAITS, job=job)
        return found

    def _placed(self, seen: SeenJob, choice: Choice) -> Treated:
        spec, progress, belief, limits_s, doubts = self._believed(seen, choice)
        gang, is_stuck, phase = seen.gang, False, self.phases.of_started(seen, spec)
        if seen.is_pending:
            is_pinned = self.places and not seen.claim.steered
            gang = self.phases.pinned_gang(seen) if is_pinned else None
            phase, is_stuck = self.phases.of_pending(seen, gang, choice.barred.keys())
        if phase is None:
            return Treated(seen, Course.PLANNED, is_stuck=is_stuck)
        spec, kept, why_not = self._movable(seen, spec, progress, phase, gang=gang)
        is_unseen = phase is Phase.QUEUED and seen.key in self.state.unseen
        is_pinned = phase is Phase.STARTING and seen.is_pending
        unseen = "Slurm's details of it could not be read in this round" if is_unseen else ""
        waits, row = _where_it_waits(seen, is_pinned=is_pinned), seen.row
        remarks = (waits, why_not, unseen, *doubts)
        job = Job(
            spec,
            phase,
            progress,
            Allocation.rigid(gang) if gang and phase is not Phase.QUEUED else Allocation(),
            allowed_nodes=self._allowed_nodes(seen, choice, phase),
            bound_type=choice.bound_type,
            fair_share=self.shares.get((row.account, row.user)),
            partition=row.partition,
            remarks=(*self._not_on(seen, choice.barred), *filter(None, remarks)),
            is_pinned=is_pinned,
            left_out=is_unseen or (phase is Phase.QUEUED and row.begins_later(seen.now_s)),
            account=row.account,
            limit_left_s=self.checks.limit_left_s(seen),
            belief=belief,
            is_estimated=not seen.description.steps,
        )
        limits_s = limits_s if seen.description.time_on else {}
        return Treated(seen, Course.PLANNED, job, is_stuck, limits_s=limits_s, kept=kept)

    def _believed(
        self, seen: SeenJob, choice: Choice
    ) -> tuple[JobSpec, Progress, SizeBelief | None, Mapping[str, float], tuple[str, ...]]:
        """Return a job as hadard takes it: with its time limits by type, and doubts about it."""
        claimed = self._spec(seen, choice)
        spec, doubt = self.checks.believed(seen, claimed)
        progress = self.reports.progress(seen, spec)
        done, limits_s = progress.steps_done, self.choices.limits_s(seen, claimed)
        in_time, late = self.choices.in_time(seen, claimed, done, limits_s)
        if late and not self.choices.can_hold(seen, choice._replace(throughputs=in_time)):
            late = ""  # on the types where it ends in time it can never start
        spec = replace(spec, throughputs=in_time) if late else spec
        spec, belief, why = self.sizes.believed(seen, spec, done, self.state.cluster.gpus_by_type)
        return spec, progress, belief, limits_s, (late, why, *choice.doubts, doubt)

    def _spec(self, seen: SeenJob, choice: Choice) -> JobSpec:
        throughputs, row = choice.throughputs, seen.row
        return job_spec(
            Submitted(row.key, row.submitted_s, row.user),
            seen.description,
            throughputs,
            total_steps=self.choices.estimator.total_steps(seen.description, throughputs),
            restart_cost_s=self.restart_cost_s,
            shapes=choice.shapes,
        )

    def _movable(
        self, seen: SeenJob, spec: JobSpec, progress: Progress, phase: Phase, *, gang: Gang | None
    ) -> tuple[JobSpec, float | None, str]:
        """Return the job with what a migration costs it, what it keeps then, and why it stays."""
        row, claim = seen.row, seen.claim
        facts, kept = (row, seen.report, seen.now_s), None
        may_migrate = spec.can_checkpoint and (row.state in _RUN_STATES or claim.ended_run > 0)
        why_not = why_not_migrated(row, seen.report, claim, seen.now_s) if may_migrate else ""
        is_unasked = may_migrate and seen.description.moved_by > MovedBy.STATED
        if is_unasked and row.raw_id in self.state.awaited:
            why_not = "not migrated: other jobs wait for its end"
        if why_not and phase is not Phase.STARTING:
            spec = replace(spec, can_checkpoint=False)
        if (most_s := seen.description.restart_loss_s) and may_migrate and gang is not None:
            total, speed = spec.total_steps, gang.throughput(spec.throughputs)
            done = progress.steps_done / total
            kept = kept_part(claim.kept_part, done, speed / total, *facts)
            spec = with_loss(spec, *facts)
            why_not = why_not or requeue_remark(most_s)
        return spec, kept, why_not

    def _allowed_nodes(
        self, seen: SeenJob, choice: Choice, phase: Phase
    ) -> frozenset[NodeName] | None:
        """Return the nodes that a job may get; None for all nodes."""
        allowed = choice.nodes
        avoided = self.phases.avoided(seen, phase)
        if not avoided:
            return allowed
        if allowed is None:
            allowed = frozenset(node.node.name for node in self.state.nodes)
        return allowed - avoided

    def _not_on(self, seen: SeenJob, barred: Mapping[str, Bar]) -> Iterator[str]:
        for name, why in self.choices.unfit(seen.description).items():
            yield f"not on {name}: {why}"
        for name, bar in barred.items():
            yield f"not on {name}: {words(bar)}"


def _where_it_waits(seen: SeenJob, *, is_pinned: bool) -> str:
    """Return where a pending job may start that is pinned or steered; "" for any other."""
    row, claim = seen.row, seen.claim
    if is_pinned:
        reason = f": {row.reason}" if row.reason not in NOTHING else ""
        return f"pinned to {','.join(row.requested_nodes)}, pending in Slurm{reason}"
    if seen.is_pending and not row.is_held and (claim.aimed or claim.excluded.ours):
        nodes = ",".join(claim.aimed or claim.excluded.ours)
        limit = f"may start on {nodes}" if claim.aimed else f"may not start on {nodes}"
        return f"in Slurm's queue ({row.reason}), {limit}"
    return ""
