"""A cluster in virtual time that implements the loop's Backend.

Jobs end at their exact finish and free their GPUs at once; an arrival or an end wakes the loop
within a round; a restart delays training; gangs over several nodes have a throughput of their own;
forked jobs pay for averaging; nodes may fail; a run that reaches its time limit is ended, as by
Slurm.
Gavel's rules are in `sim/whole_rounds.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from hadar_slurm.core.cluster import (
    Cluster,
    JobId,
    Node,
    NodeName,
    Slot,
    natural_key,
    naturally_sorted,
)
from hadar_slurm.core.gang import Allocation, Gang
from hadar_slurm.core.job import Job, JobSpec, Phase
from hadar_slurm.core.snapshot import Ended, GangRules, Snapshot
from hadar_slurm.engine.actions import Action, Outcome, Renew, Start, Status
from hadar_slurm.engine.backend import Wake
from hadar_slurm.errors import HadarError
from hadar_slurm.sim.columns import Columns
from hadar_slurm.sim.in_order import InOrder
from hadar_slurm.sim.job import SimJob
from hadar_slurm.sim.unread_snapshot import UnreadJobs, UnreadSnapshot

if TYPE_CHECKING:
    from hadar_slurm.sim.run_limits import RunLimits

GAVEL_RULES = GangRules(is_uniform=False, may_mix_types=False, counts_spread=False)

# An access to a member of an enumeration is slow, and there is one for every running job.
_DONE = Status.DONE
# After this many successive rounds without training, no job will ever train.
_IDLE_ROUNDS = 1000


@dataclass(frozen=True, slots=True, order=True)
class Failure:
    """A node down from `down_s` to `up_s`; its jobs lose the round's steps, or all, unsaved."""

    down_s: float
    up_s: float
    node: NodeName


@dataclass
class SimBackend:
    """Simulates `jobs` on `cluster`; time is in seconds and begins at 0."""

    cluster: Cluster
    jobs: Sequence[JobSpec]
    # The gangs allowed.
    rules: GangRules = field(default_factory=GangRules)
    failures: Sequence[Failure] = ()
    # Whether hadard adjusts time limits to the GPU types that jobs get.
    adjusts_limits: bool = False
    # Whether time limits end runs.
    has_limits: bool = True
    now_s: float = 0.0
    num_unfinished: int = field(init=False)
    _jobs: dict[JobId, SimJob] = field(init=False)
    _arrivals: list[JobSpec] = field(init=False)
    # The jobs in the cluster; of these, those that wait, and those that run with one gang only.
    _present: InOrder[SimJob] = field(default_factory=InOrder)
    _queued: InOrder[Job] = field(default_factory=InOrder)
    _alone: InOrder[Allocation] = field(default_factory=InOrder)
    _running: dict[JobId, SimJob] = field(default_factory=dict)
    # The running jobs, those with one copy and the others.
    _lone: Columns = field(init=False)
    _forked: dict[JobId, SimJob] = field(default_factory=dict)
    _free: dict[Slot, int] = field(init=False)
    _changes: list[tuple[float, bool, NodeName]] = field(init=False)
    _down: dict[NodeName, int] = field(default_factory=dict)
    _ended: list[Ended] = field(default_factory=list)
    _idle_rounds: int = 0
    # None where no job has a time limit.
    _limits: RunLimits | None = None
    # The outcomes of the last renewals of jobs that have not changed since.
    _renewed: dict[JobId, Outcome] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.num_unfinished = len(self.jobs)
        self._jobs = {spec.job_id: SimJob(spec) for spec in self.jobs}
        self._lone = Columns(tuple(self.cluster.gpus_by_type))
        # In reverse order: the next arrival, or change of a node, is the last item.
        self._arrivals = sorted(
            self.jobs, key=lambda spec: (spec.submitted_s, natural_key(spec.job_id)), reverse=True
        )
        downs = [(failure.down_s, True, failure.node) for failure in self.failures]
        ups = [(failure.up_s, False, failure.node) for failure in self.failures]
        self._changes = sorted([*downs, *ups], reverse=True)
        self._free = dict(self.cluster.capacity)
        if self.has_limits and any(spec.limit_s < math.inf for spec in self.jobs):
            from hadar_slurm.sim.run_limits import RunLimits

            self._limits = RunLimits(self.adjusts_limits)
        self._admit_arrivals()

    @classmethod
    def from_snapshot(cls, snapshot: Snapshot) -> SimBackend:
        """Return a simulation that continues from a snapshot, at time 0, with its jobs only.

        Jobs keep their progress, and no limit ends them. GPUs of unmanaged jobs are never freed;
        stopping and starting jobs have done so.
        """
        occupied = dict(snapshot.occupied)
        nodes = []
        for node in snapshot.cluster.nodes:
            left = {str(slot.gpu_type): max(0, n - occupied.get(slot, 0)) for slot, n in node.slots}
            nodes.append(Node.of(node.name, left, is_schedulable=node.is_schedulable))
        jobs = [job for job in snapshot.jobs if not job.phase.is_final]
        specs = []
        for job in jobs:
            begun_s = min(0.0, job.spec.submitted_s - snapshot.now_s)
            specs.append(replace(job.spec, submitted_s=begun_s))
        world = cls(Cluster(tuple(nodes)), specs, rules=snapshot.rules, has_limits=False)
        for job in jobs:
            found = world._jobs[job.job_id]
            found.resume(job.progress)
            world._queued.put(job.job_id, found.as_job())
            if job.phase in (Phase.STARTING, Phase.RUNNING):
                found.has_run = False  # what it holds it need not start again
                for number, gang in job.allocation.copies:
                    world._start(found, Start(job.job_id, number, gang))
                found.has_run = True
        return world

    def observe(self) -> Snapshot:
        """Return the jobs in the cluster, and those that ended during the last wait."""
        ended = tuple(sorted(self._ended, key=lambda end: natural_key(end.job_id)))
        read_lone, job_ids = self._lone.reader(), self._present.ids.copy()
        # Those that are not in columns.
        forked = {job_id: job.as_job() for job_id, job in self._forked.items()}
        running, others = self._alone.copy(), self._queued.copy()
        if not forked.keys() <= running.keys():
            others |= {job_id: job for job_id, job in forked.items() if job_id not in running}
            others = {job_id: others[job_id] for job_id in naturally_sorted(others)}

        def read() -> tuple[Job, ...]:
            jobs = {job.spec.job_id: job for job in read_lone()} | others | forked
            return tuple(map(jobs.__getitem__, job_ids))

        return UnreadSnapshot.of_parts(
            self.now_s,
            self.cluster,
            UnreadJobs(read, running, tuple(others.values()), self._free.copy()),
            rules=self.rules,
            ended=ended,
        )

    @property
    def sim_jobs(self) -> Mapping[JobId, SimJob]:
        """Return the jobs' states at this time."""
        self._lone.give_all()
        return self._jobs

    @property
    def is_busy(self) -> bool:
        """Whether any job holds GPUs."""
        return bool(self._running)

    def apply(self, actions: Sequence[Action]) -> Sequence[Outcome]:
        """Stop and start copies of jobs, in order and without delay."""
        known = self._renewed.get
        outcomes = [
            # Most actions are renewals, and those of the previous round.
            outcome
            if (outcome := known(action.job_id)) is not None and outcome.action is action
            else self._apply(action)
            for action in actions
        ]
        for action in [action for action in actions if type(action) is Start]:
            job = self._jobs[action.job_id]
            job.has_run = job.has_run or bool(job.copies)
        return outcomes

    def measured(self) -> Iterator[tuple[JobSpec, Gang, float]]:
        """Yield the job, the gang and the true steps/s of each training copy."""
        self._lone.give_all()
        for job in self._running.values():
            for copy in job.copies.values():
                if copy.ready_s < self.now_s:
                    yield job.spec, copy.gang, copy.throughput

    def wait(self, until_s: float) -> Wake:
        """Advance to the end of the round or, by default, to the first change before it.

        After the last end one more round reports it.
        """
        if self.num_unfinished == 0:
            return Wake.STOP
        self._ended.clear()
        self._check_progress()
        if not self._running and not self._present.ids and self._arrivals:
            # Skip rounds of an empty cluster up to the next arrival.
            until_s = max(until_s, self._arrivals[-1].submitted_s)
        return self._advance(until_s)

    def _advance(self, until_s: float) -> Wake:
        lone_ends_s = self._lone.ends_s(self.now_s)
        events = [job.finish_s(self.now_s) for job in self._forked.values()]
        events.append(float(lone_ends_s.min(initial=math.inf)))
        events += [spec.submitted_s for spec in self._arrivals[-1:]]
        events += [time_s for time_s, _, _ in self._changes[-1:]]
        events += [self._limits.next_s()] if self._limits else []
        next_s = max(self.now_s, min([until_s, *events]))
        ended = [job for job, _ in self._lone.advance(self.now_s, next_s, lone_ends_s)]
        ended += [job for job in self._forked.values() if job.advance(self.now_s, next_s)]
        self.now_s = next_s
        for job in ended:
            self._end(job, next_s)
        for job, number, is_lost in self._limits.reached(next_s) if self._limits else ():
            if is_lost:
                self._end(job, next_s, Phase.FAILED)
            else:
                self._stop(job, number, keeps_steps=False)
        self._change_nodes()
        self._admit_arrivals()
        if next_s < until_s:
            return Wake.CHANGE
        self._save()
        return Wake.ROUND_END

    def _save(self) -> None:
        self._lone.save(self.now_s)
        for job in self._forked.values():
            job.save(self.now_s)

    def _admit_arrivals(self) -> None:
        while self._arrivals and self._arrivals[-1].submitted_s <= self.now_s:
            job_id = self._arrivals.pop().job_id
            self._present.put(job_id, self._jobs[job_id])
            self._queued.put(job_id, self._jobs[job_id].as_job())

    def _apply(self, action: Action) -> Outcome:
        job = self._jobs[action.job_id]
        held = job.copies.get(action.copy)
        if isinstance(action, Renew):
            gang = action.gang
            if held is None or (held.gang is not gang and held.gang != gang):
                return Outcome(action, Status.REFUSED, f"it is not on {gang}")
            outcome = self._renewed[action.job_id] = Outcome(action, _DONE)
            return outcome
        elif isinstance(action, Start):
            if any(self._free[slot] < count for slot, count in action.gang.slots):
                return Outcome(action, Status.DEFERRED, f"{action.gang} is not free yet")
            self._start(job, action)
        elif held:
            self._stop(job, action.copy, keeps_steps=True)
        return Outcome(action, _DONE)

    def _start(self, job: SimJob, action: Start) -> None:
        cost_s = job.spec.restart_cost_s if job.has_run else 0.0
        throughput = self.rules.throughput(action.gang, job.spec.throughputs)
        self._take_out(job)
        job.start(action.copy, action.gang, throughput, ready_s=self.now_s + cost_s)
        if self._limits:
            self._limits.begin(job, action.copy, self.now_s)
        self._running[action.job_id] = job
        self._put_in(job)
        for slot, count in action.gang.slots:
            self._free[slot] -= count

    def _stop(self, job: SimJob, number: int, *, keeps_steps: bool) -> None:
        self._take_out(job)
        self._release(job.stop(number, keeps_steps=keeps_steps))
        if job.copies:
            self._put_in(job)
        else:
            del self._running[job.spec.job_id]
            self._queued.put(job.spec.job_id, job.as_job())

    def _take_out(self, job: SimJob) -> None:
        """Before a change of its copies, take a job out of those that train."""
        job_id = job.spec.job_id
        self._renewed.pop(job_id, None)
        self._queued.drop(job_id)
        self._alone.drop(job_id)
        if not self._lone.take(job):
            self._forked.pop(job_id, None)

    def _put_in(self, job: SimJob) -> None:
        job_id = job.spec.job_id
        if not self._lone.put(job):
            self._forked[job_id] = job
        if job.allocation.is_rigid:
            self._alone.put(job_id, job.allocation)

    def _end(self, job: SimJob, end_s: float, phase: Phase = Phase.DONE) -> None:
        self._take_out(job)
        for gang in job.end(phase):
            self._release(gang)
        del self._running[job.spec.job_id]
        self._present.drop(job.spec.job_id)
        self._ended.append(Ended(job.spec.job_id, phase, end_s))
        self.num_unfinished -= 1

    def _release(self, gang: Gang) -> None:
        for slot, count in gang.slots:
            self._free[slot] += count

    def _change_nodes(self) -> None:
        """Apply the failures and recoveries of nodes that are due."""
        if not self._changes or self._changes[-1][0] > self.now_s:
            return
        while self._changes and self._changes[-1][0] <= self.now_s:
            _, goes_down, name = self._changes.pop()
            self._down[name] = self._down.get(name, 0) + (1 if goes_down else -1)
            running = [
                (job, *item) for job in self._running.values() for item in job.copies.items()
            ]
            for job, number, copy in running if goes_down else ():
                if name in copy.gang.gpus_by_node:
                    self._stop(job, number, keeps_steps=False)
        nodes = self.cluster.nodes
        open_nodes = (replace(n, is_schedulable=not self._down.get(n.name, 0)) for n in nodes)
        self.cluster = Cluster(tuple(open_nodes))

    def _check_progress(self) -> None:
        can_progress = bool(self._running or self._arrivals or self._changes)
        self._idle_rounds = 0 if can_progress else self._idle_rounds + 1
        if self._idle_rounds >= _IDLE_ROUNDS:
            left = list(map(str, self._present.ids))
            raise HadarError(
                f"nothing has trained for {_IDLE_ROUNDS} rounds; jobs that never start: "
                f"{', '.join(left[:20])}"
            )
