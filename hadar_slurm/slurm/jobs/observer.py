"""Makes observations of Slurm's state, and remembers what they need of earlier ones."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.job import Job, Phase
from hadar_slurm.core.learned_sizes import EndedJobs
from hadar_slurm.core.moves import level_of
from hadar_slurm.core.snapshot import Ended, GangRules, Snapshot
from hadar_slurm.engine.modes import Mode
from hadar_slurm.engine.notices import Notices
from hadar_slurm.engine.pins import Pins
from hadar_slurm.errors import JobSpecError
from hadar_slurm.jobspec.description import Description, decode
from hadar_slurm.jobspec.estimator import Estimator
from hadar_slurm.slurm.client.fairshare import FairShares
from hadar_slurm.slurm.client.parse import UNTYPED, NodeRow, QueueRow
from hadar_slurm.slurm.client.protocol import SlurmAdapter
from hadar_slurm.slurm.client.state import SlurmState
from hadar_slurm.slurm.enforce.disposition import (
    Disposition,
    disposition_of,
    is_outside,
    jobs_beside_held,
    must_steer,
)
from hadar_slurm.slurm.enforce.ledger import Ledger
from hadar_slurm.slurm.enforce.stoppable import is_ended_by_us
from hadar_slurm.slurm.jobs.choices import Choice, Choices
from hadar_slurm.slurm.jobs.ended_jobs import ClaimChecks, LearnedSizes
from hadar_slurm.slurm.jobs.observation import Forks, Observation
from hadar_slurm.slurm.jobs.policy_view import Phases, PolicyView, is_denied
from hadar_slurm.slurm.jobs.reports import Reports
from hadar_slurm.slurm.jobs.run_outcomes import RunOutcomes, may_retry
from hadar_slurm.slurm.jobs.seen import NOT_DESCRIBED, Course, SeenJob, Treated, final_phase
from hadar_slurm.slurm.settings import BackendSettings
from hadar_slurm.state.spool import has_assignments

if TYPE_CHECKING:
    from hadar_slurm.slurm.jobs.enrolment import Enrolment
    from hadar_slurm.slurm.jobs.forked_jobs import ForkedJobs
    from hadar_slurm.slurm.jobs.throttles import Throttles

# One job beyond a learned limit is tried after this number of pin timeouts.
_RETRY_TIMEOUTS = 5

# A job that Slurm finds impossible on more nodes than these is not tried on others.
_MOST_REFUSED = 3


@dataclass
class Observer:
    """Turns Slurm's state, which `ledger` has seen, into observations.

    What is remembered is a cache: a restart may lose it.
    """

    slurm: SlurmAdapter
    estimator: Estimator
    settings: BackendSettings
    ledger: Ledger
    mode: Mode
    pins: Pins
    # Whether no valid plan can be made with a job.
    is_given_up: Callable[[JobId], bool]
    now_s: Callable[[], float]
    ended: EndedJobs = field(default_factory=EndedJobs)
    notices: Notices = field(default_factory=Notices)
    # Jobs that USR1 from hadard has ended and that Slurm refused to requeue.
    lost: set[JobId] = field(default_factory=set)
    # None: there was no job in copies.
    forked: ForkedJobs | None = None
    checks: ClaimChecks = field(init=False)
    reports: Reports = field(init=False)
    # None: there was no pin and no array that a limit could keep from starting.
    throttles: Throttles | None = None
    _outcomes: RunOutcomes = field(init=False)
    _sizes: LearnedSizes = field(init=False)
    _enrolment: Enrolment | None = None
    _shares: FairShares = field(init=False)
    # As at the last observation.
    _observed_s: float | None = None
    _state: SlurmState = field(default_factory=lambda: SlurmState({}, (), {}))

    def __post_init__(self) -> None:
        own = self.settings
        self.checks = ClaimChecks(self.estimator)
        self.reports = Reports(own.spool, self.estimator, self.notices)
        self._outcomes = RunOutcomes(self.estimator.records)
        self._sizes = LearnedSizes(self.estimator, self.ended, own.learns_sizes)
        self._shares = FairShares(self.slurm)
        if own.enrol:
            from hadar_slurm.slurm.jobs.enrolment import Enrolment

            self._enrolment = Enrolment(
                self.slurm, own.enrol, own.modes, own.enrolled_of_account, notices=self.notices
            )

    def observe(self, state: SlurmState, *, is_off: bool) -> Observation:
        """Return what there is to plan, and to correct; nothing to plan where hadard `is_off`."""
        if [row.node.name for row in state.nodes] != [row.node.name for row in self._state.nodes]:
            self.ledger.unlistable.clear()
        self._state, now_s, queue = state, self.now_s(), state.queue
        self.notices.keep(queue)
        if self._enrolment:
            self._enrolment.read(queue.values())
        self.reports.begin()
        seen = list(filter(None, (self._seen(row, now_s) for row in queue.values())))
        self._learn(seen, now_s)
        way = self._way(seen)
        if self.throttles is None and (state.throttles or any(s.claim.pinned for s in seen)):
            from hadar_slurm.slurm.jobs.throttles import Throttles

            self.throttles = Throttles(_RETRY_TIMEOUTS * self.settings.pin_timeout_s)
        if self.throttles is not None:
            denied = (s.row for s in seen if is_denied(s.row, s.claim))
            self.throttles.learn(state, denied, now_s)
        phases = Phases(self.slurm, state, self.pins, self.settings.grace_s)
        view = self._view(state, way, phases, self._shares.at(now_s) if seen else {})
        treated = [self._treated(each, view, is_off=is_off) for each in seen]
        if self.mode.places and self.throttles is not None:
            treated = self.throttles.marked(treated, now_s)
        forks = self._forks(treated, now_s)
        jobs = {each.seen.key: each for each in treated}
        over = [t.seen for t in forks.not_needed if t.seen.claim.has_changed(t.seen.row)]
        jobs |= {each.key: jobs[each.key]._replace(course=Course.RESTORED) for each in over}
        alone = [t.job for t in treated if t.is_alone and t.job is not None]
        self._keep_pins([*alone, *forks.task_jobs], seen, phases)
        found = Observation(self._snapshot(treated, alone, forks, now_s), forks, way, jobs)
        self.reports.keep(found.alive)
        return found

    def signature(
        self, queue: Mapping[JobId, QueueRow], nodes: Sequence[NodeRow], *, is_off: bool
    ) -> frozenset[tuple[str, str]]:
        """Return what a plan depends on: the jobs in the queue, and the nodes that take work.

        Before the first observation too, as if Slurm had had no jobs.
        """
        marks, now_s = {("hadard", "off")} if is_off else set(), self.now_s()
        live = (row for row in queue.values() if row.is_live)  # a job's start changes no plan
        marks |= {(str(row.key), mark) for row in live if (mark := self._mark(row, now_s))}
        marks |= {(row.node.name, "open" if row.node.is_schedulable else "closed") for row in nodes}
        return frozenset(marks)

    def _mark(self, row: QueueRow, now_s: float) -> str:
        if row.state == "COMPLETING":
            return "ending"
        description, _ = self._description(row)
        may_come = self._enrolment is not None and self._enrolment.is_new(row)
        if description is None and row.state == "PENDING" and not may_come:
            return ""
        if row.dependency or row.begins_later(now_s):
            return "later"
        if row.may_meet_reservation:
            return "reserved"
        return "limited" if is_denied(row, self.ledger[row.key]) else "there"

    def _seen(self, row: QueueRow, now_s: float) -> SeenJob | None:
        """Return a job with a description or a claim; None for any other."""
        description, is_enrolled = self._description(row)
        if description is None and row.key not in self.ledger:
            return None
        if description is not None:
            level = level_of(self.settings.moves, row.partition, row.qos, row.account)
            description = description.moved(level)
        claim, state = self.ledger[row.key], self._state
        mode = self.settings.modes.of(row.partition)
        is_read = (mode is self.mode and row.is_live) or self._outcomes.needs_report(row)
        is_read = description is not None and (is_read or description.copies > 1)
        return SeenJob(
            row=row,
            description=description or NOT_DESCRIBED,
            claim=claim,
            now_s=now_s,
            mode=mode,
            is_enrolled=is_enrolled,
            gang=state.gangs.get(row.key),
            report=self.reports.read(row) if is_read else None,
            limit_s=claim.limit_s.owner_of(state.limits_s.get(row.key, 0.0)),
            most_s=state.most_s.get(row.key, 0.0),
        )

    def _description(self, row: QueueRow) -> tuple[Description | None, bool]:
        """Return the description by hadar-sbatch, or else that of an enrolled job, and which."""
        try:
            if (description := decode(row.comment)) is not None or self._enrolment is None:
                return description, False
        except JobSpecError as error:
            self.notices.say(row.key, f"is left to Slurm: {error}", logging.WARNING)
            return None, False
        is_pending = row.state == "PENDING"
        nodes = self._state.request(row).num_nodes if is_pending else str(len(row.nodes))
        found = self._enrolment.description(row, self.ledger[row.key].own, nodes)
        return found, found is not None

    def _learn(self, jobs: Iterable[SeenJob], now_s: float) -> None:
        """Learn from the jobs' runs how fast they are on which GPU types, before any is placed."""
        self.estimator.records.expire(now_s)
        self.estimator.credits.now_s = now_s
        cluster, shown = self._state.cluster, self._state.queue.keys()
        not_over: dict[JobId, QueueRow] = {}
        for seen in jobs:
            # All modes learn for the same users.
            is_here = seen.mode is self.mode
            if is_here and not seen.description.leaves:
                self.reports.measure(seen)
            # Copies of a forked job end and restart one by one, each on another type.
            if not seen.is_described or seen.description.copies > 1:
                continue
            if seen.row.is_live:
                self._outcomes.see_live(seen)
            elif is_ended_by_us(seen.row, seen.claim):
                not_over[seen.key] = replace(seen.row, state="COMPLETING")
                continue
            else:
                self._outcomes.see_ended(seen, cluster)
            gpu_type = self._outcomes.type_of(seen.row)
            if is_here:
                self.checks.see(seen, gpu_type)
            if is_here and not seen.row.is_live:
                self._sizes.see_ended(seen, gpu_type, cluster.gpus_by_type)
        self._outcomes.keep(shown)
        self.checks.settle(self._state.queue | not_over, now_s)
        self._sizes.keep(shown)
        self._sizes.renew(now_s)

    def _way(self, jobs: Iterable[SeenJob]) -> Mode:
        """Return how waiting jobs are treated now."""
        if self.mode is not Mode.HOLD:
            return self.mode
        known = {seen.key: seen for seen in jobs}

        def is_other(row: QueueRow) -> bool:
            seen = known.get(row.key)
            return seen is None or is_outside(seen.description, seen.claim)

        rows = jobs_beside_held(self._state, self.settings.modes)
        return Mode.STEER if must_steer(rows, is_other) else Mode.HOLD

    def _view(
        self, state: SlurmState, way: Mode, phases: Phases, shares: Mapping[tuple[str, str], float]
    ) -> PolicyView:
        return PolicyView(
            state=state,
            choices=Choices(
                state=state,
                way=way,
                abilities=self.slurm.abilities,
                estimator=self.estimator,
                ledger=self.ledger,
                notices=self.notices,
            ),
            phases=phases,
            reports=self.reports,
            checks=self.checks,
            sizes=self._sizes,
            shares=shares,
            places=self.mode.places,
            restart_cost_s=self.settings.restart_cost_s,
        )

    def _treated(self, seen: SeenJob, view: PolicyView, *, is_off: bool) -> Treated:
        """Return what this round makes of a job."""
        if not seen.row.is_live:
            return self._ended(seen, view.choices, may_requeue=self.mode.places and not is_off)
        mode = Mode.OBSERVE if is_off else seen.mode
        is_here, choice = mode is self.mode, view.choices.of(seen)
        disposition = disposition_of(
            seen.row,
            seen.description,
            seen.claim,
            mode=view.choices.way if is_here else mode,
            is_planned_here=is_here,
            is_placeable=self._is_placeable(seen, choice, view.choices),
        )
        if disposition is Disposition.MANAGE:
            return view.managed(seen, choice)
        is_restored = disposition is Disposition.RESTORE
        return Treated(seen, Course.RESTORED if is_restored else Course.LEFT)

    def _is_placeable(self, seen: SeenJob, choice: Choice, choices: Choices) -> bool:
        """Return whether nodes could hold a job that has a script or is enrolled, not scrontab's.

        Slurm must not have found it impossible on all of these, nor on more than a few.
        """
        key, state = seen.key, self._state
        if not (seen.row.is_batch or seen.is_enrolled) or key in state.set_apart_by_detail:
            return False
        if key in self.ledger.unlistable:
            if seen.is_pending or {*state.excluded.get(key, ())} - state.cluster.by_name.keys():
                self.notices.say(key, "is left to Slurm: it excludes a node that is gone")
                return False
            del self.ledger.unlistable[key]
        if seen.is_pending and self._is_changed(seen):
            self.notices.say(seen.key, "is left to Slurm: its owner has changed its GPUs")
            return False
        if self.is_given_up(seen.parent or seen.key):
            why = "is left to Slurm: no valid plan was made with it"
            self.notices.say(key, why, logging.WARNING)
            return False
        if refused := self.pins.refused(seen.key):
            nodes = choice.nodes or frozenset(self._state.cluster.by_name)
            left = nodes - refused if len(refused) <= _MOST_REFUSED else frozenset()
            if not choices.can_hold(seen, choice._replace(nodes=left)):
                self.notices.say(seen.key, "is left to Slurm, which refuses it on all nodes tried")
                return False
        return choices.can_hold(seen, choice)

    def _is_changed(self, seen: SeenJob) -> bool:
        """Return whether a job no longer asks for the GPUs of its description."""
        row, known = seen.row, seen.description
        is_usual = (*row.gpus_per_node, *row.gpus_otherwise) == ((UNTYPED, known.gpus),)
        if (known.shape is None and is_usual) or seen.is_enrolled:
            return False
        from hadar_slurm.jobspec.owners_gpus import is_as_described

        return not is_as_described(self._state.request(row), row.comment)

    def _ended(self, seen: SeenJob, choices: Choices, *, may_requeue: bool) -> Treated:
        may_requeue &= seen.key not in self.lost
        if may_requeue and is_ended_by_us(seen.row, seen.claim):
            return Treated(seen, Course.REQUEUED)
        if may_requeue and seen.mode is self.mode and seen.parent is None and may_retry(seen):
            choice, failed_on = choices.of(seen), self._outcomes.type_of(seen.row)
            if failed_on in choice.barred and choices.can_hold(seen, choice):
                return Treated(seen, Course.RETRIED, failed_on=failed_on)
        return Treated(seen, Course.ENDED)

    def _forks(self, jobs: Iterable[Treated], now_s: float) -> Forks:
        """Return the forked jobs; what they need is loaded with the first of them."""
        copies = [each for each in jobs if each.seen.parent is not None]
        if self.forked is None:
            place = self.settings.assignments
            # Those of a former hadard are to be removed.
            if copies or (place and self.mode.places and has_assignments(place)):
                from hadar_slurm.slurm.jobs import forked_jobs

                self.forked = forked_jobs.of(place, self._observed_s, self.settings.pin_timeout_s)
            self._observed_s = now_s
        return self.forked.observe(copies, now_s) if self.forked else Forks({})

    def _snapshot(
        self, jobs: Iterable[Treated], alone: Sequence[Job], forks: Forks, now_s: float
    ) -> Snapshot:
        """Return what policies plan from; the jobs that are not forked are `alone`."""
        held = (job.job_id for job in (*alone, *forks.task_jobs))
        snapshot = Snapshot.of(
            now_s=now_s,
            cluster=self._state.cluster,
            jobs=[*alone, *forks.jobs],
            occupied=self._state.occupied(held),
            rules=GangRules(naming_binds=self.slurm.abilities.keeps_types),
            ended=[*(end for each in jobs if (end := _end_of(each))), *forks.ended],
        )
        if self.forked is None or not forks.jobs:
            return snapshot
        ours = {each.seen.key for each in jobs if each.is_managed or each.seen.parent}
        return self.forked.beside_plain(snapshot, self._state, ours)

    def _keep_pins(self, jobs: Iterable[Job], seen: Iterable[SeenJob], phases: Phases) -> None:
        """Forget the pins of all but these jobs, once those that are steered are checked."""
        waiting = {each.key: each for each in seen if each.is_pending}
        steered = {key for key, each in waiting.items() if each.claim.aimed}
        for key in steered:
            phases.check_steered(waiting[key])
        phase_of = {job.job_id: job.phase for job in jobs if job.job_id in waiting}
        starting = {key for key, phase in phase_of.items() if phase is Phase.STARTING}
        self.pins.keep(starting=starting | steered, pending=set(waiting))


def _end_of(each: Treated) -> Ended | None:
    """Return how a job has ended that policies have seen by itself; None for any other."""
    row, seen = each.seen.row, each.seen
    if each.course is not Course.ENDED or not seen.is_described or seen.parent is not None:
        return None
    return Ended(row.key, final_phase(row.state), row.ended_s)
