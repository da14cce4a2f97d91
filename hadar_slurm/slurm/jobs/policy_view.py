"""Makes of a managed job the job that policies see: its request, progress, phase and remarks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from hadar_slurm.core.cluster import GpuType, JobId, NodeName
from hadar_slurm.core.gang import Allocation, Gang
from hadar_slurm.core.job import Job, JobSpec, Phase, Progress
from hadar_slurm.core.type_failures import Bar
from hadar_slurm.jobspec.description import job_spec
from hadar_slurm.jobspec.estimator import words
from hadar_slurm.slurm.client.parse import NOTHING
from hadar_slurm.slurm.client.state import SlurmState
from hadar_slurm.slurm.enforce import stoppable
from hadar_slurm.slurm.enforce.stoppable import why_not_migrated
from hadar_slurm.slurm.jobs.choices import Choices
from hadar_slurm.slurm.jobs.ended_jobs import ClaimChecks, LearnedSizes
from hadar_slurm.slurm.jobs.phases import RUN_STATES, Phases
from hadar_slurm.slurm.jobs.reports import Reports
from hadar_slurm.slurm.jobs.seen import Course, SeenJob, Treated


@dataclass(frozen=True, slots=True)
class _Believed:
    """A job's request as hadard takes it, how far it has come, and the doubts about it."""

    spec: JobSpec
    progress: Progress
    limits_s: Mapping[str, float]
    late: str
    remarks: tuple[str, ...]


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
    # Jobs that hold GPUs which Slurm does not list.
    unlisted: frozenset[JobId]
    # Whether hadard places jobs in this mode.
    places: bool
    restart_cost_s: float

    def managed(self, seen: SeenJob) -> Treated:
        """Return a managed job, with a `job` where policies are to see it."""
        found = Treated(seen, Course.PLANNED)
        if seen.key in self.unlisted:
            text = f"is left out: {seen.gang} is not what Slurm lists of its nodes"
            self.choices.notices.say(seen.key, text)
        else:
            self.reports.measure(seen)
            if len(self.choices.bound_types(seen)) <= 1:
                found = self._placed(seen)
        if found.job is None and seen.parent is None and seen.row.dependency and seen.claim.holds:
            return replace(found, course=Course.AWAITS, job=self._dependent(seen))
        return found

    def _placed(self, seen: SeenJob) -> Treated:
        believed, barred = self._believed(seen), self.choices.barred(seen)
        spec, gang, is_stuck = believed.spec, seen.gang, False
        phase: Phase | None
        if seen.is_pending:
            is_pinned = self.places and not seen.claim.steered
            gang = self.phases.pinned_gang(seen) if is_pinned else None
            phase, is_stuck = self.phases.of_pending(seen, gang, barred)
        else:
            phase = self.phases.of_started(seen, spec)
        found = Treated(seen, Course.PLANNED, is_stuck=is_stuck)
        if phase is None:
            return found
        spec, kept, why_not = self._movable(seen, believed, phase, gang)
        is_unseen = phase is Phase.QUEUED and seen.key in self.state.unseen
        is_pinned = phase is Phase.STARTING and seen.is_pending
        unseen = "Slurm's details of it could not be read in this round" if is_unseen else ""
        waits = _where_it_waits(seen, is_pinned=is_pinned)
        remarks = (waits, why_not, believed.late, unseen, *believed.remarks)
        bound, row = self.choices.bound_types(seen), seen.row
        job = Job(
            spec,
            phase,
            believed.progress,
            Allocation.rigid(gang) if gang and phase is not Phase.QUEUED else Allocation(),
            self._allowed_nodes(seen, spec, phase),
            GpuType(next(iter(bound))) if bound else None,
            self.shares.get((row.account, row.user)),
            row.partition,
            (*self._not_on(seen, barred), *filter(None, remarks)),
            is_pinned,
            left_out=is_unseen,
            account=row.account,
            limit_left_s=self.checks.limit_left_s(seen),
        )
        limits_s = believed.limits_s if seen.description.time_on else {}
        return replace(found, job=job, kept=kept, limits_s=limits_s)

    def _believed(self, seen: SeenJob) -> _Believed:
        claimed = self._spec(seen)
        spec, doubts = self.checks.believed(seen, claimed)
        progress = self.reports.progress(seen, spec)
        done, limits_s = progress.steps_done, self.choices.limits_s(seen, claimed)
        in_time, late = self.choices.in_time(seen, claimed, done, limits_s)
        spec = replace(spec, throughputs=in_time) if late else spec
        types = self.state.cluster.gpus_by_type
        spec, learned = self.sizes.believed(seen, spec, done, types)
        return _Believed(spec, progress, limits_s, late, (learned, *doubts))

    def _spec(self, seen: SeenJob) -> JobSpec:
        throughputs, row = self.choices.throughputs(seen), seen.row
        return job_spec(
            row.key,
            seen.description,
            throughputs,
            total_steps=self.choices.estimator.total_steps(seen.description, throughputs),
            submitted_s=row.submitted_s,
            restart_cost_s=self.restart_cost_s,
            user=row.user,
            shapes=self.choices.shapes(seen),
        )

    def _movable(
        self, seen: SeenJob, believed: _Believed, phase: Phase, gang: Gang | None
    ) -> tuple[JobSpec, float | None, str]:
        """Return the job with what a migration costs it, what it keeps then, and why it stays."""
        spec, row, claim = believed.spec, seen.row, seen.claim
        facts, kept = (row, seen.report, seen.now_s), None
        may_migrate = spec.can_checkpoint and (row.state in RUN_STATES or claim.ended_run > 0)
        why_not = why_not_migrated(row, seen.report, claim, seen.now_s) if may_migrate else ""
        if why_not and phase is not Phase.STARTING:
            spec = replace(spec, can_checkpoint=False)
        if (most_s := seen.description.restart_loss_s) and may_migrate and gang is not None:
            total, speed = spec.total_steps, gang.throughput(spec.throughputs)
            done = believed.progress.steps_done / total
            kept = stoppable.kept_part(claim.kept_part, done, speed / total, *facts)
            spec = stoppable.with_loss(spec, *facts)
            why_not = why_not or stoppable.remark(most_s)
        return spec, kept, why_not

    def _dependent(self, seen: SeenJob) -> Job:
        """Return a job that waits for another one."""
        bound, spec = self.choices.bound_types(seen), self._spec(seen)
        return Job(
            spec,
            allowed_nodes=self._allowed_nodes(seen, spec, Phase.QUEUED),
            bound_type=GpuType(next(iter(bound))) if len(bound) == 1 else None,
        )

    def _allowed_nodes(
        self, seen: SeenJob, spec: JobSpec, phase: Phase
    ) -> frozenset[NodeName] | None:
        """Return the nodes that a job may get; None for all nodes."""
        allowed = self.choices.nodes_of(seen, spec.shapes)
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
    if seen.is_pending and not row.is_held and (claim.aimed or claim.excluded):
        nodes = ",".join(claim.aimed or claim.excluded)
        limit = f"may start on {nodes}" if claim.aimed else f"may not start on {nodes}"
        return f"in Slurm's queue ({row.reason}), {limit}"
    return ""
