"""Policy `slurm`: an unmodified Slurm that is set up well, and users who choose as they do.

What a site has without hadard: priority/multifactor (`priority`), sched/backfill (here and in
`timeline`), and select/cons_tres (`selection`), for requests as users write them (`requests`).
Backfill plans the waiting jobs in the order of priority. One that can run now to its time limit, on
what those before it leave, starts; for each other one whole nodes are held, from the time at which
a test of the running jobs' time limits lets it start. Nothing is held beyond bf_window, so that
longer jobs may start before a gang that waits for more than that. The main scheduler, which starts
jobs in the same order until the first that has to wait, adds nothing to this, unless both look at
times of their own (`looks`). Jobs are never stopped, unless QOS preempt (`preemption`): then jobs
go by the priority of their QOS first, and one that could not start may have others requeued or
ended.

Source: Slurm's documentation (sched_config.html, slurm.conf) and source (22.05: backfill.c), and a
real slurmctld (docs/slurm-fidelity.md).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, NamedTuple

from hadar_slurm.core.cluster import GpuType, JobId, Slot, natural_key
from hadar_slurm.core.gang import Allocation, Gang
from hadar_slurm.core.job import Job, Shape
from hadar_slurm.core.plan import Plan
from hadar_slurm.core.snapshot import Round, Snapshot
from hadar_slurm.lab.policies.slurm.looks import Look, Looks
from hadar_slurm.lab.policies.slurm.preemption import MadeRoom, Preemptible, room_by_stops
from hadar_slurm.lab.policies.slurm.priority import Holding, Priorities
from hadar_slurm.lab.policies.slurm.requests import UserRequest, written
from hadar_slurm.lab.policies.slurm.selection import Counts, Nodes, Taken, take_any, take_nodes
from hadar_slurm.lab.policies.slurm.settings import Form, Preempt, SlurmSettings, parse_settings
from hadar_slurm.lab.policies.slurm.timeline import FutureRoom, HeldNodes, LimitEnd
from hadar_slurm.placement.allocator import Allocator
from hadar_slurm.placement.eligibility import Eligibility
from hadar_slurm.policies.policy import PolicyOptions


@dataclass(frozen=True, slots=True)
class SlurmMemory:
    """What plain Slurm knows from one plan to the next."""

    priorities: Priorities = field(default_factory=Priorities)
    requests: Mapping[JobId, UserRequest] = field(default_factory=dict)
    # When each running job started, in seconds.
    started_s: Mapping[JobId, float] = field(default_factory=dict)
    # When the queue was last looked at, jobs were last stopped, and a plan was last made, with a
    # look or without, in seconds.
    looked_s: float = -math.inf
    stopped_s: float = -math.inf
    planned_s: float = -math.inf
    # When each requeued job may start again, in seconds.
    begins_s: Mapping[JobId, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PlainSlurm:
    """The policy; its memory is a `SlurmMemory`."""

    settings: SlurmSettings = field(default_factory=SlurmSettings)
    name: str = "slurm"
    # None: at each arrival and end, or as often as `bf_interval` says.
    looks: Looks | None = None
    # hadard is not there to adjust time limits to GPU types.
    keeps_limits: ClassVar[bool] = True

    @property
    def splits_unevenly(self) -> bool:
        """Whether its jobs may have different numbers of GPUs on their nodes."""
        return self.settings.form is Form.GPUS

    @property
    def requeues(self) -> bool:
        """Whether it may stop jobs that cannot be checkpointed."""
        return self.settings.stops

    @property
    def cancels(self) -> bool:
        """Whether a job that it stops is lost."""
        return self.settings.preempt is Preempt.CANCEL

    def plan(self, snapshot: Snapshot, round_: Round) -> Plan:
        """Return which jobs run in `round_`, and on which GPUs."""
        memory = round_.memory if isinstance(round_.memory, SlurmMemory) else SlurmMemory()
        allocator = Allocator(snapshot, round_)
        waiting = {job.job_id: job for job in allocator.jobs if not allocator.stay(job)}
        requests = written(snapshot, memory.requests, self.settings)
        priorities = memory.priorities.at(snapshot, waiting.values(), self.settings)
        started_s = {
            job_id: memory.started_s[job_id]
            if job_id in memory.started_s
            else snapshot.now_s - _ran_s(snapshot, job_id)
            for job_id in allocator.placed
        }
        now_s, begins_s = snapshot.now_s, memory.begins_s
        look = self._look(snapshot, memory)
        if look is not Look.NONE and (self.settings.stops or any(allocator.free.values())):
            queue = [job for job in waiting.values() if begins_s.get(job.job_id, now_s) <= now_s]
            queue.sort(key=partial(self._rank, priorities.by_job))
            waits = self.looks is not None
            turn = _Turn(allocator, requests, started_s, self.settings, waits_for_gone=waits)
            turn.run(queue, look)
        stopped = started_s.keys() - allocator.placed.keys()
        if stopped or begins_s:
            again_s = now_s + self.settings.requeue_delay
            begins_s = {job_id: time_s for job_id, time_s in begins_s.items() if job_id in waiting}
            begins_s |= dict.fromkeys(stopped, again_s)
        held = {
            job_id: priorities.held.get(job_id) or _holding(waiting, snapshot, job_id)
            for job_id in allocator.placed
        }
        kept = SlurmMemory(
            replace(priorities, held=held),
            requests,
            {job_id: started_s.get(job_id, now_s) for job_id in allocator.placed},
            looked_s=memory.looked_s if look is Look.NONE else now_s,
            stopped_s=now_s if stopped else memory.stopped_s,
            planned_s=now_s,
            begins_s=begins_s,
        )
        plan = allocator.plan(memory=kept)
        if self.looks is None:
            return plan
        return replace(plan, next_round_s=self.looks.next_s(now_s, kept.stopped_s))

    def _look(self, snapshot: Snapshot, memory: SlurmMemory) -> Look:
        if self.looks is None:
            is_due = snapshot.now_s >= memory.looked_s + self.settings.bf_interval
            return Look.BACKFILL if is_due else Look.NONE
        return self.looks.look(
            memory.planned_s,
            snapshot.now_s,
            has_ended=bool(snapshot.ended),
            stopped_s=memory.stopped_s,
        )

    def _rank(self, by_job: Mapping[JobId, float], job: Job) -> tuple[Any, ...]:
        job_id, spec = job.job_id, job.spec
        first = (
            -self.settings.qos_priority(spec.qos)
            if self.settings.preempt is not Preempt.NO
            else 0.0
        )
        return first, -by_job[job_id], spec.submitted_s, natural_key(job_id)


def make(options: PolicyOptions) -> PlainSlurm:
    """Return the policy with the settings in `options.words`; raises PolicyError."""
    return PlainSlurm(parse_settings(options.words), ":".join(("slurm", *options.words)))


def _ran_s(snapshot: Snapshot, job_id: JobId) -> float:
    """Return for how long a job has run that another than this policy has started."""
    job = snapshot.by_id[job_id]
    held = sum(gang.num_gpus for gang in job.allocation.gangs)
    return job.progress.service_gpu_s / held if held else 0.0


def _holding(waiting: Mapping[JobId, Job], snapshot: Snapshot, job_id: JobId) -> Holding:
    spec = (waiting.get(job_id) or snapshot.by_id[job_id]).spec
    return Holding(spec.user, spec.num_gpus)


class _Kind(NamedTuple):
    """What decides where a job may start, but its time limit; by group of types, its slots."""

    masks: tuple[tuple[int, ...], ...]
    size: int
    nodes: int


class _Turn:
    """One pass over the queue.

    With `waits_for_gone` a job that has others stopped starts in a later one.
    """

    def __init__(
        self,
        allocator: Allocator,
        requests: Mapping[JobId, UserRequest],
        started_s: Mapping[JobId, float],
        settings: SlurmSettings,
        *,
        waits_for_gone: bool,
    ) -> None:
        self._allocator, self._requests, self._settings = allocator, requests, settings
        self._waits_for_gone = waits_for_gone
        self._going: list[Preemptible] = []
        snapshot = allocator.snapshot
        self._now_s = now_s = snapshot.now_s
        self._reach = Eligibility(snapshot)
        self._nodes = nodes = Nodes.of(snapshot.cluster)
        self._index = {slot: at for at, slot in enumerate(nodes.slots)}
        free = [max(0, allocator.free.get(slot, 0)) for slot in nodes.slots]
        slots_of: list[list[int]] = [[] for _ in snapshot.cluster.nodes]
        for at, node in enumerate(nodes.node_of):
            slots_of[int(node)].append(at)
        self._room = FutureRoom(free, [0] * len(free), settings.test_window, slots_of)
        self._candidates: list[Preemptible] = []
        for job_id, allocation in allocator.placed.items():
            taken = {self._index[slot]: count for slot, count in allocation.slots}
            end_s = started_s[job_id] + requests[job_id].limit_s
            ending = LimitEnd(max(end_s, now_s + 1.0), self._bits(taken), taken)
            self._room.run(ending)
            if settings.stops:
                priority = settings.qos_priority(requests[job_id].qos)
                self._candidates.append(Preemptible(job_id, priority, ending))
        self._line = HeldNodes(
            now_s, settings.bf_window, settings.bf_resolution, (1 << len(slots_of)) - 1
        )
        self._kinds: dict[object, _Kind] = {}
        self._found: dict[object, tuple[float, Taken] | None] = {}

    def run(self, order: Iterable[Job], look: Look) -> None:
        """Start the jobs that may start now, in this order."""
        jobs = [job for job in order if self._requests[job.job_id].groups]
        if look is Look.MAIN:
            # Nothing is held for others: the first that has to wait ends the turn.
            all(self._plan(job, self._kind(job)) for job in jobs)
        else:
            self._backfill(jobs)
        for each in self._going:
            self._free(each)

    def _backfill(self, jobs: Sequence[Job]) -> None:
        kinds = [self._kind(job) for job in jobs[: int(self._settings.bf_max_job_test)]]
        left = Counter(kinds)
        # What is held for a later start matters to those only that could start now.
        may_start = {kind for kind in left if self._fits_now(kind)}
        for job, kind in zip(jobs, kinds, strict=False):
            if not (self._candidates or any(left[each] for each in may_start)):
                return
            left[kind] -= 1
            if self._plan(job, kind):
                may_start = {each for each in may_start if self._fits_now(each)}

    def _plan(self, job: Job, kind: _Kind) -> bool:
        """Start a job, or hold nodes for it; say whether it starts."""
        now_s, limit_s = self._now_s, self._requests[job.job_id].limit_s
        later_s: float | None = now_s
        while later_s is not None:
            since_s = later_s
            is_newer = self._settings.is_newer
            mask, later_s = self._line.usable(since_s, since_s + limit_s, looks_on=is_newer)
            between = since_s if since_s > now_s else 0.0, math.inf if later_s is None else later_s
            found = self._soonest(kind, mask, *(between if is_newer else ()))
            if found is None:
                continue
            start_s, taken = max(found[0], since_s), found[1]
            if start_s > since_s == now_s and (room := self._by_stops(job, kind, mask)):
                start_s, taken = now_s, room.taken
                self._stop(room.stopped)
                if self._waits_for_gone:
                    self._line.hold(now_s, now_s + limit_s, self._bits(taken))
                    return False
            if start_s <= now_s:
                self._start(job, taken, limit_s)
                return True
            if later_s is not None and start_s > later_s:
                continue
            if start_s > now_s + self._settings.bf_window:
                return False
            nodes = self._bits(taken)
            if self._line.is_held(start_s, start_s + limit_s, nodes):
                later_s = start_s if start_s > since_s else later_s
                continue
            self._line.hold(start_s, start_s + limit_s, nodes)
            return False
        return False

    def _by_stops(self, job: Job, kind: _Kind, mask: int) -> MadeRoom | None:
        """Return what the job gets now if others are stopped, of which QOS have less priority."""
        priority = self._settings.qos_priority(self._requests[job.job_id].qos)
        lower = [c for c in self._candidates if c.priority < priority and c.ending.nodes & mask]

        def find(stopped: Sequence[Preemptible]) -> tuple[Taken, int] | None:
            free, jobs_on = self._room.without(each.ending for each in stopped)
            picks = (partial(self._pick, kind, slots) for slots in kind.masks)
            taken = next(filter(None, (pick(free, jobs_on, mask) for pick in picks)), None)
            return (taken, self._bits(taken)) if taken else None

        return room_by_stops(lower, find)

    def _stop(self, stopped: Iterable[Preemptible]) -> None:
        for each in stopped:
            self._candidates.remove(each)
            if self._waits_for_gone:
                self._going.append(each)
            else:
                self._free(each)

    def _free(self, stopped: Preemptible) -> None:
        self._allocator.take_back(self._allocator.snapshot.by_id[stopped.job_id])
        self._room.stop(stopped.ending)

    def _start(self, job: Job, taken: Taken, limit_s: float) -> None:
        slots = self._nodes.slots
        gang = Gang.of({slots[each]: count for each, count in taken.items()})
        self._allocator.put(job, Allocation.rigid(gang))
        for at, count in taken.items():
            self._room.free[at] -= count
        self._room.run(LimitEnd(self._now_s + limit_s, self._bits(taken), taken))

    def _soonest(
        self, kind: _Kind, mask: int, since_s: float = 0.0, until_s: float = math.inf
    ) -> tuple[float, Taken] | None:
        """Return when the job could start on these nodes, and the GPUs; None: never."""
        key = kind, mask, since_s, until_s, self._room.version
        if key not in self._found:
            starts = []
            for place, slots in enumerate(kind.masks):
                pick = partial(self._pick, kind, slots)
                found = self._room.soonest(mask & self._bits(slots), pick, since_s, until_s=until_s)
                if found:
                    starts.append((max(found[0], self._now_s), place, found[1]))
            first = min(starts, key=lambda each: each[:2], default=None)
            self._found[key] = (first[0], first[2]) if first else None
        return self._found[key]

    def _pick(
        self, kind: _Kind, slots: tuple[int, ...], room: Counts, jobs_on: Counts, mask: int
    ) -> Taken | None:
        """Return the GPUs that Slurm would give a job of those slots that are in the mask."""
        least = kind.size if kind.nodes else 1
        node_of = self._nodes.node_of
        candidates = [at for at in slots if room[at] >= least and mask >> node_of[at] & 1]
        if not kind.nodes:
            is_newer = self._settings.is_newer
            return take_any(
                candidates, kind.size, self._nodes, room=room, jobs_on=jobs_on, is_newer=is_newer
            )
        wanted = Shape(kind.nodes, kind.size)
        return take_nodes(candidates, wanted, self._nodes, jobs_on)

    def _fits_now(self, kind: _Kind) -> bool:
        free = self._room.free
        for slots in kind.masks:
            if kind.nodes:
                if sum(free[at] >= kind.size for at in slots) >= kind.nodes:
                    return True
            elif sum(free[at] for at in slots) >= kind.size:
                return True
        return False

    def _bits(self, slots: Iterable[int]) -> int:
        found = 0
        for at in slots:
            found |= 1 << self._nodes.node_of[at]
        return found

    def _kind(self, job: Job) -> _Kind:
        request = self._requests[job.job_id]
        key = (
            request.groups, request.shape, request.num_gpus, job.allowed_nodes, job.bound_type
        )  # fmt: skip
        if key not in self._kinds:
            shape, mixes = request.shape, self._allocator.rules.may_mix_types
            alone = tuple((k,) for group in request.groups for k in group)
            # A gang of several types takes no node that has several.
            is_plain = self._allocator.snapshot.cluster.is_plain
            groups = (*request.groups, *(() if is_plain else alone)) if mixes else alone
            self._kinds[key] = _Kind(
                tuple(self._mask(job, group, request) for group in groups),
                shape.gpus_per_node if shape else request.num_gpus,
                shape.nodes if shape else 0,
            )
        return self._kinds[key]

    def _mask(self, job: Job, group: Sequence[GpuType], request: UserRequest) -> tuple[int, ...]:
        """Return the slots where a job may run on these types, in Slurm's order."""
        is_spread = request.nodes > 1
        on = partial(job.spec.throughputs.on, num_gpus=job.spec.num_gpus, is_spread=is_spread)
        usable = [k for k in group if on(k) > 0]
        # A uniform gang of several types cannot say which of a node's types it gets.
        is_mixed = len(usable) > 1 and is_spread
        found = {
            self._index[Slot(node.name, gpu_type)]
            for gpu_type in usable
            for node in self._reach.nodes(job, gpu_type, is_mixed=is_mixed)
        }
        return tuple(sorted(found))
